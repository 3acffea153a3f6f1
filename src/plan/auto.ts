/**
 * Plans that choose for themselves: `auto`, `auto:2.25` (bits a value), `auto-tq:3.25` (TurboQuant only), each with a
 * window behind it as any spec. With a profile, bits go where they count; without one, the best codec that needs no
 * data and fits, and a notice that says so.
 */
import { createCodec } from '../codec/kv.ts';
import { DEFAULT_WINDOW, parseSpec, type Window } from '../codec/spec.ts';
import { CapacityError, InputError, SpecError } from '../errors.ts';
import { packedPages } from '../kernel/visibility.ts';
import { formatBytes, formatCount } from '../units.ts';
import { shareMead, sharesMead, sharesTurbo, shareTurbo } from './allocate.ts';
import { bitsOf, byLayer, type Plan, type PlanShape, planBytes, planOf, planOfCodecs, unitsOf } from './plan.ts';
import type { Profile } from './profile.ts';

interface Auto {
  family?: 'mead' | 'tq';
  bits?: number;
  /** As written, with its plus signs. */
  windowText: string;
  window: Required<Window>;
}

/** With a profile, three bits of mead read like four and a quarter of tq4. */
const DEFAULT_BITS = 3;
/** A quad has at most six nibbles. */
const MOST_MEAD_BITS = 6;
/** Of tq4, and the norms on top. */
const MOST_TURBO_BITS = 4;
/** Codecs that need no data, best first. */
const DATA_FREE = ['f16', 'q8_0', 'tq4', 'tq3', 'tq2', 'tq1'];

const PATTERN = /^auto(?:-(mead|tq))?(?::(\d+(?:\.\d+)?))?((?:\+.*)?)$/;

export const isAuto = (spec: string): boolean => /^auto(?![a-z0-9])/.test(spec);

function parseAuto(spec: string): Auto {
  const [, family, bits, windowText] = spec.match(PATTERN) ?? [];
  if (windowText === undefined)
    throw new SpecError(
      `"${spec}" is not a plan. Write auto, auto:2.25, auto-mead:2 or auto-tq:3.25, and +sink4 and the like.`,
    );
  // The grammar of windows is that of any spec.
  const { window } = parseSpec(`tq4${windowText}`);
  return {
    family: family as Auto['family'],
    bits: bits === undefined ? undefined : Number(bits),
    windowText,
    window: { ...DEFAULT_WINDOW, ...window },
  };
}

export interface Target {
  /** Most bytes of one sequence of `context` tokens. */
  kvMemory?: number;
  context?: number;
}

/** The plan of any spec, `auto` or not. */
export function choosePlan(spec: string, shape: PlanShape, profile?: Profile, target: Target = {}): Plan {
  if (!isAuto(spec)) {
    if (target.kvMemory === undefined) return planOf(spec, shape, profile);
    throw new InputError(`A memory budget chooses the codec itself: use kv "auto" with it, not "${spec}".`);
  }
  const auto = parseAuto(spec);
  checkBits(spec, auto, shape);
  const within = target.kvMemory === undefined ? undefined : bitsWithin(auto, shape, target);
  const bits = Math.min(auto.bits ?? Number.POSITIVE_INFINITY, within ?? Number.POSITIVE_INFINITY);
  const wanted = Number.isFinite(bits) ? bits : DEFAULT_BITS;
  const plan = planAuto(auto, wanted, shape, profile, within !== undefined);
  if (target.kvMemory !== undefined && planBytes(plan, target.context!) > target.kvMemory)
    throw new CapacityError(tooSmall(target, plan));
  return plan;
}

function checkBits(spec: string, { family, bits }: Auto, { headDim }: PlanShape): void {
  const most = family === 'mead' ? MOST_MEAD_BITS : family === 'tq' ? MOST_TURBO_BITS + 16 / headDim : 16;
  if (bits === undefined || (bits > 0 && bits <= most)) return;
  const name = family ? `auto-${family}` : 'auto';
  throw new SpecError(
    `"${spec}" asks for ${bits} bits per value. ${name} takes more than 0 and at most ${round(most)}.`,
  );
}

function planAuto(auto: Auto, bits: number, shape: PlanShape, profile: Profile | undefined, budgeted: boolean): Plan {
  const { family, window, windowText } = auto;
  const units = unitsOf(shape.layers, window.edge);
  if (budgeted && bits >= 16 && !family) return planOf('f16', shape);
  if (family !== 'tq' && sharesMead(profile)) {
    const spent = Math.min(bits, MOST_MEAD_BITS);
    const { amounts, predicted } = shareMead(profile, units, spent, false);
    const codecs = byLayer(shape, window.edge, layer => {
      const at = units.findIndex(unit => unit.layer === layer);
      const known = profile.learned[layer];
      return createCodec('mead2', shape, {
        key: { ...known.key, 'mead.nibbles': amounts[at] },
        value: { ...known.value, 'mead.nibbles': amounts[at + 1] },
      });
    });
    return planOfCodecs(`auto-mead:${round(spent)}${windowText}`, window, codecs, predicted);
  }
  if (family !== 'mead' && sharesTurbo(profile)) {
    const { amounts, predicted } = shareTurbo(profile, units, bits, shape.headDim);
    const codecs = byLayer(shape, window.edge, layer => {
      const at = units.findIndex(unit => unit.layer === layer);
      return createCodec(`${amounts[at]}/${amounts[at + 1]}`, shape, profile.learned[layer]);
    });
    return planOfCodecs(`auto-tq:${round(bits)}${windowText}`, window, codecs, predicted);
  }
  if (family)
    throw new SpecError(
      `auto-${family} shares bits out by a profile that knows ${family === 'mead' ? 'mead' : 'TurboQuant'}, and there is none. ` +
        'Run `kvasir calibrate MODEL`.',
    );
  return { ...dataFree(auto.bits === undefined && !budgeted ? 4.25 : bits, shape, windowText), notice: NO_PROFILE };
}

const NO_PROFILE =
  'There is no profile of this model, so every layer has the same codec, one that needs no data. ' +
  '`kvasir calibrate MODEL` makes one; bits then go where they count.';

const round = (bits: number) => Number(bits.toFixed(3));

/** The best codec without data that takes at most `bits`; the smallest where none does. */
function dataFree(bits: number, shape: PlanShape, windowText: string): Plan {
  const fits = DATA_FREE.find(spec => bitsOf(createCodec(spec, shape)) <= bits + 1e-9);
  const spec = fits ?? DATA_FREE[DATA_FREE.length - 1];
  return planOf(spec === 'f16' ? spec : spec + windowText, shape);
}

/** Bits a value that a budget leaves for pages, windows and tail taken off. */
function bitsWithin({ window }: Auto, shape: PlanShape, { kvMemory = 0, context }: Target): number {
  if (context === undefined || !Number.isInteger(context) || context < 1)
    throw new InputError('A memory budget is for a context: say how many tokens it must hold.');
  const exact = planOf('f16', shape);
  const pages = packedPages(context, { pageTokens: exact.pageTokens, recent: window.recent });
  const empty = planOfCodecs('', window, exact.codecs);
  const room = kvMemory - planBytes(empty, 1);
  if (pages === 0) return room >= 0 ? 16 : 0;
  const edges = 2 * Math.min(window.edge, shape.layers / 2);
  const leafRoom = room / pages - (exact.leaf.bytes * edges) / shape.layers;
  return Math.max(0, (16 * leafRoom) / ((exact.leaf.bytes * (shape.layers - edges)) / shape.layers));
}

function tooSmall({ kvMemory = 0, context = 0 }: Target, plan: Plan): string {
  const fixed = planBytes(plan, 1);
  const pages = Math.max(0, Math.floor((kvMemory - fixed) / Math.max(1, plan.leaf.bytes)));
  const fits = kvMemory < fixed ? 0 : pages * plan.pageTokens + plan.window.recent + plan.pageTokens;
  return (
    `${formatCount(context)} tokens do not fit into ${formatBytes(kvMemory)}: the smallest plan takes ` +
    `${formatBytes(planBytes(plan, context))}, ${formatBytes(fixed)} of it the f16 tail and sinks. ` +
    (fits > 0 ? `About ${formatCount(Math.min(fits, context))} tokens would fit.` : 'Give it more memory.')
  );
}
