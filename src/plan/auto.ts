/**
 * Automatic plans: `auto`, `auto:2.25` (bits per value), `auto-tq:3.25` (TurboQuant only), with window options like any
 * spec. With a profile, it is the plan with the lowest expected divergence: sensitive layers get more bits, or one of the
 * codecs that calibration measured. Without one, all layers use the best codec that fits and needs no calibration, and the
 * plan has a notice.
 */

import { trackedErrorBytes } from '../cache/page-errors.ts';
import { createCodec } from '../codec/kv.ts';
import { DEFAULT_WINDOW, type F16Window, parseSpec } from '../codec/spec.ts';
import { packedPages } from '../kernel/visibility.ts';
import { CapacityError, InputError, SpecError } from '../util/errors.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import {
  allocateMead,
  allocateTurboQuant,
  canAllocateMead,
  canAllocateTurboQuant,
  turboOverheadBits,
} from './allocate.ts';
import {
  codecBits,
  codecsByLayer,
  codedSides,
  createPlan,
  createPlanFromCodecs,
  fixedBytes,
  type Plan,
  type PlanShape,
  planBytes,
} from './plan.ts';
import type { Profile } from './profile.ts';

interface AutoSpec {
  family?: 'mead' | 'tq';
  bits?: number;
  /** As given, such as `+sink4+recent64`. */
  windowText: string;
  window: Required<F16Window>;
}

/** With a profile, mead at 3 bits is nearly as good as tq4. */
const DEFAULT_BITS = 3;
/** A mead quad has at most 6 nibbles. */
const MAX_MEAD_BITS = 6;
/** Of codes. */
const [MIN_TURBO_BITS, MAX_TURBO_BITS] = [1, 4];
/** Codecs that need no calibration, best first. */
const DATA_FREE_SPECS = ['f16', 'q8_0', 'tq4', 'tq3', 'tq2', 'tq1'];

const PATTERN = /^auto(?:-(mead|tq))?(?::(\d+(?:\.\d+)?))?((?:\+.*)?)$/;

export const isAuto = (spec: string): boolean => /^auto(?![a-z0-9])/.test(spec);

function parseAuto(spec: string): AutoSpec {
  const [, family, bits, windowText] = spec.match(PATTERN) ?? [];
  if (windowText === undefined)
    throw new SpecError(
      `"${spec}" is not a plan. Use auto, auto:2.25, auto-mead:2 or auto-tq:3.25, optionally with +sink4 or +recent64.`,
    );
  // Windows have the same grammar in every spec.
  const { window } = parseSpec(`tq4${windowText}`);
  return {
    family: family as AutoSpec['family'],
    bits: bits === undefined ? undefined : Number(bits),
    windowText,
    window: { ...DEFAULT_WINDOW, ...window },
  };
}

export interface MemoryTarget {
  /** Max bytes of one sequence of `context` tokens. */
  contextMemory?: number;
  context?: number;
}

/** Creates the plan of any spec, `auto` or not. */
export function choosePlan(spec: string, shape: PlanShape, profile?: Profile, target: MemoryTarget = {}): Plan {
  if (!isAuto(spec)) {
    if (target.contextMemory === undefined) return createPlan(spec, shape, profile);
    throw new InputError(`A memory budget chooses the codec: use kv "auto" with it, not "${spec}".`);
  }
  const auto = parseAuto(spec);
  checkBits(spec, auto, shape);
  const errorBytes = auto.family !== 'tq' && canAllocateMead(profile) ? trackedErrorBytes(shape.layers) : 0;
  const affordable = target.contextMemory === undefined ? undefined : bitsForMemory(auto, shape, target, errorBytes);
  const maxBits = Math.min(auto.bits ?? Number.POSITIVE_INFINITY, affordable ?? Number.POSITIVE_INFINITY);
  const bits = Number.isFinite(maxBits) ? maxBits : DEFAULT_BITS;
  const plan = createAutoPlan(auto, bits, shape, profile, affordable !== undefined);
  if (target.contextMemory !== undefined && planBytes(plan, target.context!) > target.contextMemory)
    throw new CapacityError(describeTooSmall(target, plan));
  return plan;
}

function checkBits(spec: string, { family, bits }: AutoSpec, shape: PlanShape): void {
  const max = family === 'mead' ? MAX_MEAD_BITS : family === 'tq' ? MAX_TURBO_BITS + turboOverheadBits(shape) : 16;
  if (bits === undefined || (bits > 0 && bits <= max)) return;
  const name = family ? `auto-${family}` : 'auto';
  throw new SpecError(
    `"${spec}" asks for ${bits} bits per value. ${name} takes more than 0 and at most ${round(max)}.`,
  );
}

function createAutoPlan(
  auto: AutoSpec,
  bits: number,
  shape: PlanShape,
  profile: Profile | undefined,
  budgeted: boolean,
): Plan {
  const { family } = auto;
  if (budgeted && bits >= 16 && !family) return createPlan('f16', shape);
  const candidates: Candidate[] = [];
  if (family !== 'tq' && canAllocateMead(profile)) candidates.push(meadPlan(auto, bits, shape, profile));
  const fitsTurboQuant = bits >= MIN_TURBO_BITS + turboOverheadBits(shape) || candidates.length === 0;
  if (family !== 'mead' && fitsTurboQuant && canAllocateTurboQuant(profile))
    candidates.push(turboQuantPlan(auto, bits, shape, profile));
  if (!family && profile) candidates.push(...measuredPlans(auto, bits, shape, profile));
  if (candidates.length > 0) return candidates.reduce((a, b) => (b.predicted < a.predicted ? b : a)).create();
  if (family)
    throw new SpecError(
      `auto-${family} needs a profile with sensitivities of ${family === 'mead' ? 'mead' : 'TurboQuant'}, and there is none. ` +
        `Run \`kvasir calibrate MODEL --kv ${family === 'mead' ? 'mead2' : 'tq4'}\`.`,
    );
  return {
    ...(auto.bits === undefined && !budgeted
      ? createPlan(`tq4${auto.windowText}`, shape)
      : createDataFreePlan(bits, shape, auto.windowText)),
    notice: NO_PROFILE,
  };
}

/** A plan with its expected divergence, not created yet. */
interface Candidate {
  predicted: number;
  create(): Plan;
}

function meadPlan({ window, windowText }: AutoSpec, bits: number, shape: PlanShape, profile: Profile): Candidate {
  const sides = codedSides(shape.layers, window.edge);
  const spent = Math.min(bits, MAX_MEAD_BITS);
  const { amounts, predicted } = allocateMead(profile, sides, spent, false);
  const codecOf = (layer: number) => {
    const index = sides.findIndex(side => side.layer === layer);
    const known = profile.learned[layer];
    return createCodec('mead2', shape, {
      key: { ...known.key, 'mead.nibbles': amounts[index] },
      value: { ...known.value, 'mead.nibbles': amounts[index + 1] },
    });
  };
  const spec = `auto-mead:${round(spent)}${windowText}`;
  const codecs = () => codecsByLayer(shape, window.edge, codecOf);
  return { predicted, create: () => createPlanFromCodecs(spec, window, codecs(), predicted, profile) };
}

function turboQuantPlan({ window, windowText }: AutoSpec, bits: number, shape: PlanShape, profile: Profile): Candidate {
  const sides = codedSides(shape.layers, window.edge);
  const { amounts, predicted } = allocateTurboQuant(profile, sides, bits, shape);
  const codecOf = (layer: number) => {
    const index = sides.findIndex(side => side.layer === layer);
    return createCodec(`${amounts[index]}/${amounts[index + 1]}`, shape, profile.learned[layer]);
  };
  const spec = `auto-tq:${round(bits)}${windowText}`;
  const codecs = () => codecsByLayer(shape, window.edge, codecOf);
  return { predicted, create: () => createPlanFromCodecs(spec, window, codecs(), predicted) };
}

/** The codecs that calibration measured and that take at most `bits` per value. */
const measuredPlans = ({ windowText }: AutoSpec, bits: number, shape: PlanShape, profile: Profile): Candidate[] =>
  profile.measurements
    .filter(measured => measured.bits <= bits + 1e-9 && !isAuto(measured.kv))
    .map(({ kv, kld }) => ({
      predicted: kld,
      create: () => ({ ...createPlan(kv + windowText, shape, profile), predicted: kld }),
    }));

const NO_PROFILE =
  'This model has no profile, so all layers use the same codec, one that needs no calibration. ' +
  'Run `kvasir calibrate MODEL` to give sensitive layers more bits.';

const round = (bits: number) => Number(bits.toFixed(3));

/** The best codec without calibration that takes at most `bits` per value; the smallest one if none does. */
function createDataFreePlan(bits: number, shape: PlanShape, windowText: string): Plan {
  const fits = DATA_FREE_SPECS.find(spec => codecBits(createCodec(spec, shape)) <= bits + 1e-9);
  const spec = fits ?? DATA_FREE_SPECS[DATA_FREE_SPECS.length - 1];
  return createPlan(spec === 'f16' ? spec : spec + windowText, shape);
}

/** Bits per value that the memory allows for pages, after windows, tail and page errors. */
function bitsForMemory(
  { window }: AutoSpec,
  shape: PlanShape,
  { contextMemory = 0, context }: MemoryTarget,
  errorBytes: number,
): number {
  if (context === undefined || !Number.isInteger(context) || context < 1)
    throw new InputError('A memory budget needs a context: the number of tokens that it must hold.');
  const exact = createPlan('f16', shape);
  const pages = packedPages(context, { pageTokens: exact.pageTokens, recent: window.recent });
  const empty = createPlanFromCodecs('', window, exact.codecs);
  const room = contextMemory - (planBytes(empty, context) - pages * empty.leaf.bytes) - errorBytes;
  if (pages === 0) return room >= 0 ? 16 : 0;
  const edges = 2 * Math.min(window.edge, shape.layers / 2);
  const leafRoom = room / pages - (exact.leaf.bytes * edges) / shape.layers;
  return Math.max(0, (16 * leafRoom) / ((exact.leaf.bytes * (shape.layers - edges)) / shape.layers));
}

function describeTooSmall({ contextMemory = 0, context = 0 }: MemoryTarget, plan: Plan): string {
  const fixed = fixedBytes(plan);
  const pages = Math.max(0, Math.floor((contextMemory - fixed) / Math.max(1, plan.leaf.bytes)));
  const fits = contextMemory < fixed ? 0 : pages * plan.pageTokens + plan.window.recent + plan.pageTokens;
  return (
    `${formatCount(context)} tokens do not fit into ${formatBytes(contextMemory)}: the smallest plan needs ` +
    `${formatBytes(planBytes(plan, context))}, ${formatBytes(fixed)} of it for the f16 tail and sinks. ` +
    (fits > 0 ? `About ${formatCount(Math.min(fits, context))} tokens would fit.` : 'Allow more memory.')
  );
}
