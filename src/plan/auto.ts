/**
 * Automatic plans: `auto`, `auto:2.25` (bits per value), `auto-tq:3.25` (TurboQuant only), with window options like any
 * spec. With a profile, it is the plan with the lowest expected divergence: sensitive layers get more bits, or one of the
 * codecs that calibration measured. Without one, all layers use the best codec that fits and needs no calibration, and the
 * plan has a notice.
 */

import { sealedBytes } from '../cache/leaf.ts';
import { trackedErrorBytes } from '../cache/page-errors.ts';
import { createCodec, type KvCodec } from '../codec/kv.ts';
import {
  DEFAULT_WINDOW,
  F16,
  type F16Window,
  formatSpec,
  type KvSpec,
  parseSpec,
  parseWindow,
  specOf,
} from '../codec/spec.ts';
import { packedPages } from '../kernel/visibility.ts';
import { CapacityError, InputError, optionError, SpecError } from '../util/errors.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import {
  type Allocation,
  allocateMead,
  allocateTurboQuant,
  canAllocateMead,
  canAllocateTurboQuant,
  type LayerSide,
  turboOverheadBits,
} from './allocate.ts';
import {
  codecBits,
  codecsByLayer,
  codedSides,
  createPlan,
  createPlanFromCodecs,
  fixedBytes,
  type KvMode,
  maxPagesIn,
  type Plan,
  type PlanShape,
  planBytes,
  shapeOfLayer,
  withMode,
} from './plan.ts';
import type { Profile } from './profile.ts';

/** `auto`, parsed. */
export interface AutoSpec {
  auto: 'mead' | 'tq' | 'any';
  /** Per value. */
  bits?: number;
  /** In the order in which it was written, which is part of the plan's name. */
  window: F16Window;
}

/** What chooses the codecs of a cache. */
export type PlanSpec = KvSpec | AutoSpec;

export const AUTO: AutoSpec = { auto: 'any', window: {} };

/** With a profile, mead at 3 bits is nearly as good as tq4. */
const DEFAULT_BITS = 3;
/** A mead quad has at most 6 nibbles. */
const MAX_MEAD_BITS = 6;
/** Of codes. */
const [MIN_TURBO_BITS, MAX_TURBO_BITS] = [1, 4];
/** Codecs that need no calibration, best first. */
const DATA_FREE_CODECS = ['f16', 'q8_0', 'tq4', 'tq3', 'tq2', 'tq1'];

const PATTERN = /^auto(?:-(mead|tq))?(?::(\d+(?:\.\d+)?))?((?:\+.*)?)$/;

export const isAuto = (spec: PlanSpec): spec is AutoSpec => 'auto' in spec;

/** Parses any spec, `auto` or not. */
export function parsePlanSpec(text: string): PlanSpec {
  if (!/^auto(?![a-z0-9])/.test(text)) return parseSpec(text);
  const [, family = 'any', bits, window] = text.match(PATTERN) ?? [];
  if (window === undefined)
    throw new SpecError(
      `"${text}" is not a plan. Use auto, auto:2.25, auto-mead:2 or auto-tq:3.25, optionally with +sink4 or +recent64.`,
    );
  return {
    auto: family as AutoSpec['auto'],
    bits: bits === undefined ? undefined : Number(bits),
    window: parseWindow(window, text),
  };
}

export function formatPlanSpec(spec: PlanSpec): string {
  if (!isAuto(spec)) return formatSpec(spec);
  const { auto, bits, window } = spec;
  const windows = Object.entries(window).map(([name, tokens]) => `+${name}${tokens}`);
  return `auto${auto === 'any' ? '' : `-${auto}`}${bits === undefined ? '' : `:${round(bits)}`}${windows.join('')}`;
}

const windowOfAuto = ({ window }: AutoSpec): Required<F16Window> => ({ ...DEFAULT_WINDOW, ...window });

export interface MemoryTarget {
  /** Max bytes of one sequence of `context` tokens. */
  contextMemory?: number;
  context?: number;
  /** Modes with exact pages need room for them, too. Default: `packed`. */
  kvMode?: KvMode;
}

/** Creates the plan of any spec, `auto` or not. */
export function choosePlan(spec: PlanSpec, shape: PlanShape, profile?: Profile, target: MemoryTarget = {}): Plan {
  if (!isAuto(spec)) {
    if (target.contextMemory === undefined) return createPlan(spec, shape, profile);
    throw new InputError(
      option => `A memory budget chooses the codec: use ${option('kv', 'auto')} with it, not "${formatSpec(spec)}".`,
      { option: 'kv' },
    );
  }
  checkBits(spec, shape);
  const errorBytes = spec.auto !== 'tq' && canAllocateMead(profile) ? trackedErrorBytes(shape.layers) : 0;
  const affordable = target.contextMemory === undefined ? undefined : bitsForMemory(spec, shape, target, errorBytes);
  const maxBits = Math.min(spec.bits ?? Number.POSITIVE_INFINITY, affordable ?? Number.POSITIVE_INFINITY);
  const bits = Number.isFinite(maxBits) ? maxBits : DEFAULT_BITS;
  const plan = createAutoPlan(spec, bits, shape, profile, affordable !== undefined);
  const stored = withMode(plan, target.kvMode ?? 'packed');
  if (target.contextMemory !== undefined && planBytes(stored, target.context!) > target.contextMemory)
    throw new CapacityError(describeTooSmall(target, stored));
  return plan;
}

function checkBits({ auto, bits, window }: AutoSpec, shape: PlanShape): void {
  const max = { mead: MAX_MEAD_BITS, tq: MAX_TURBO_BITS + turboOverheadBits(shape), any: 16 }[auto];
  if (bits === undefined || (bits > 0 && bits <= max)) return;
  throw new SpecError(
    `"${formatPlanSpec({ auto, bits, window })}" asks for ${bits} bits per value. ` +
      `${formatPlanSpec({ auto, window: {} })} takes more than 0 and at most ${round(max)}.`,
  );
}

function createAutoPlan(
  spec: AutoSpec,
  bits: number,
  shape: PlanShape,
  profile: Profile | undefined,
  budgeted: boolean,
): Plan {
  const { auto, window } = spec;
  if (budgeted && bits >= 16 && auto === 'any') return createPlan(F16, shape);
  const candidates: Candidate[] = [];
  if (auto !== 'tq' && canAllocateMead(profile)) candidates.push(meadPlan(spec, bits, shape, profile));
  const fitsTurboQuant = bits >= MIN_TURBO_BITS + turboOverheadBits(shape) || candidates.length === 0;
  if (auto !== 'mead' && fitsTurboQuant && canAllocateTurboQuant(profile))
    candidates.push(turboQuantPlan(spec, bits, shape, profile));
  if (auto === 'any' && profile) candidates.push(...measuredPlans(spec, bits, shape, profile));
  if (candidates.length > 0) return candidates.reduce((a, b) => (b.predicted < a.predicted ? b : a)).create();
  if (auto !== 'any')
    throw new SpecError(
      `auto-${auto} needs a profile with sensitivities of ${auto === 'mead' ? 'mead' : 'TurboQuant'}, and there is none. ` +
        `Run \`kvasir calibrate MODEL --kv ${auto === 'mead' ? 'mead2' : 'tq4'}\`.`,
    );
  const codec = spec.bits === undefined && !budgeted ? 'tq4' : dataFreeCodec(bits, shape);
  return { ...createPlan(codec === 'f16' ? F16 : specOf(codec, window), shape), notice: NO_PROFILE };
}

/** A plan with its expected divergence, not created yet. */
interface Candidate {
  predicted: number;
  create(): Plan;
}

function meadPlan(spec: AutoSpec, bits: number, shape: PlanShape, profile: Profile): Candidate {
  const spent = Math.min(bits, MAX_MEAD_BITS);
  return allocatedPlan({ ...spec, auto: 'mead', bits: spent }, shape, profile, {
    allocate: sides => allocateMead(profile, sides, spent, false),
    createCodec: (keyNibbles, valueNibbles, { key, value }, own) =>
      createCodec(specOf('mead2'), own, {
        key: { ...key, 'mead.nibbles': keyNibbles },
        value: { ...value, 'mead.nibbles': valueNibbles },
      }),
  });
}

const turboQuantPlan = (spec: AutoSpec, bits: number, shape: PlanShape, profile: Profile): Candidate =>
  allocatedPlan({ ...spec, auto: 'tq', bits }, shape, profile, {
    allocate: sides => allocateTurboQuant(profile, sides, bits, shape),
    createCodec: (key, value, learned, own) =>
      createCodec({ key: specOf(key).key, value: specOf(value).value, window: {} }, own, learned),
  });

interface Allocator<T> {
  allocate(sides: readonly LayerSide[]): Allocation<T>;
  /** The codec of a layer, from what its sides got. */
  createCodec(key: T, value: T, learned: Profile['learned'][number], shape: PlanShape): KvCodec;
}

function allocatedPlan<T>(
  spec: AutoSpec,
  shape: PlanShape,
  profile: Profile,
  { allocate, createCodec }: Allocator<T>,
): Candidate {
  const window = windowOfAuto(spec);
  const sides = codedSides(shape.layers, window.edge);
  const { amounts, predicted } = allocate(sides);
  const codecOf = (layer: number) => {
    const index = sides.findIndex(side => side.layer === layer);
    return createCodec(amounts[index], amounts[index + 1], profile.learned[layer], shapeOfLayer(shape, layer));
  };
  const codecs = () => codecsByLayer(shape, window.edge, codecOf);
  return {
    predicted,
    create: () => createPlanFromCodecs(formatPlanSpec(spec), window, codecs(), { ...shape, predicted, profile }),
  };
}

/** The codecs that calibration measured and that take at most `bits` per value. */
const measuredPlans = ({ window }: AutoSpec, bits: number, shape: PlanShape, profile: Profile): Candidate[] =>
  profile.measurements
    .filter(measured => measured.bits <= bits + 1e-9 && !measured.kv.startsWith('auto'))
    .map(({ kv, kld }) => ({
      predicted: kld,
      create: () => ({ ...createPlan({ ...parseSpec(kv), window }, shape, profile), predicted: kld }),
    }));

const NO_PROFILE =
  'This model has no profile, so all layers use the same codec, one that needs no calibration. ' +
  'Run `kvasir calibrate MODEL` to give sensitive layers more bits.';

const round = (bits: number) => Number(bits.toFixed(3));

/** The best codec without calibration that takes at most `bits` per value; the smallest one if none does. */
const dataFreeCodec = (bits: number, shape: PlanShape): string =>
  DATA_FREE_CODECS.find(codec => codecBits(createCodec(specOf(codec), shape)) <= bits + 1e-9) ??
  DATA_FREE_CODECS[DATA_FREE_CODECS.length - 1];

/** Bits per value that the memory allows for pages, after windows, tail and page errors. */
function bitsForMemory(
  spec: AutoSpec,
  shape: PlanShape,
  { contextMemory = 0, context, kvMode = 'packed' }: MemoryTarget,
  errorBytes: number,
): number {
  if (context === undefined || !Number.isInteger(context) || context < 1)
    throw optionError('context', 'is missing. A memory budget needs the number of tokens that it must hold.');
  const window = windowOfAuto(spec);
  const exact = createPlan(F16, shape);
  const pages = packedPages(context, { pageTokens: exact.pageTokens, recent: window.recent });
  const empty = createPlanFromCodecs('', window, exact.codecs, shape);
  const exactBytes = sealedBytes(empty.leaf, pages, empty.pageTokens);
  const room = contextMemory - (planBytes(withMode(empty, kvMode), context) - exactBytes) - errorBytes;
  if (pages === 0) return room >= 0 ? 16 : 0;
  const edges = 2 * Math.min(window.edge, shape.layers / 2);
  const edgeBytes = (exactBytes * edges) / shape.layers;
  return Math.max(0, (16 * (room - edgeBytes)) / (exactBytes - edgeBytes));
}

function describeTooSmall({ contextMemory = 0, context = 0 }: MemoryTarget, plan: Plan): string {
  const fixed = fixedBytes(plan);
  const pages = Math.max(0, maxPagesIn(plan, contextMemory - fixed));
  const fits = contextMemory < fixed ? 0 : pages * plan.pageTokens + plan.window.recent + plan.pageTokens;
  return (
    `${formatCount(context)} tokens do not fit into ${formatBytes(contextMemory)}: the smallest plan needs ` +
    `${formatBytes(planBytes(plan, context))}, ${formatBytes(fixed)} of it for the f16 tail and sinks. ` +
    (fits > 0 ? `About ${formatCount(Math.min(fits, context))} tokens would fit.` : 'Allow more memory.')
  );
}
