/**
 * Where the bits of a cache go: which layers' keys and values get more of them. A profile says how much each side of
 * each layer matters (its divergence when it alone is coded) and what each amount of bits leaves of its error; one
 * budget is then spent where it helps most.
 */
import type { Side } from '../codec/codec.ts';
import type { Learned } from '../codec/learned.ts';
import { spend } from '../codec/mead/spend.ts';
import type { Profile } from './profile.ts';

/** One side of one layer. */
export interface Unit {
  layer: number;
  side: Side;
}

export interface Allocation<T> {
  /** In the order of the units. */
  amounts: T[];
  /** Divergence that the whole should cause, nats a token. */
  predicted: number;
}

/** Amounts that mead's units may have: 0 to 6. */
const LEVELS = 7;
/** The probe of mead gives every side this many bits. */
const PROBE_BITS = 2;
/** Bits of values in a quad's nibble, and in a unit of the uniform code. */
const NIBBLE = 4;

/** Squared error of TurboQuant by bits, and the specs of each side: centred keys, corrected norms where that helps. */
const TQ_LOSS = [0.3634, 0.1175, 0.03455, 0.0095];
const TQ: Record<Side, string[]> = {
  key: ['tq1-c', 'tq2-c', 'tq3-c-nc', 'tq4-c-nc'],
  value: ['tq1', 'tq2', 'tq3-nc', 'tq4-nc'],
};
/** Bits that the norms of a head cost a value. */
const normBits = (headDim: number) => 16 / headDim;

const arrayOf = (profile: Pick<Profile, 'learned'>, { layer, side }: Unit, name: string): Float32Array | undefined =>
  (profile.learned[layer][side] as Learned)[name];

/** Whether the profile can share out bits over mead's units. */
export const sharesMead = (profile?: Profile): profile is Profile => profile?.sensitivities.mead2 !== undefined;
export const sharesTurbo = (profile?: Profile): profile is Profile => profile?.sensitivities['tq2-c'] !== undefined;

/** Nibbles of every quad (bits of every dim, if uniform) for `bits` a value over all units. */
export function shareMead(
  profile: Profile,
  units: readonly Unit[],
  bits: number,
  uniform: boolean,
): Allocation<Float32Array> {
  const losses = units.map(unit => {
    const loss = arrayOf(profile, unit, uniform ? 'mead.step-loss' : 'mead.loss') ?? new Float32Array(0);
    const weight = weightOf(profile, unit, uniform);
    return loss.map(x => x * weight);
  });
  const all = join(losses);
  const values = (all.length / LEVELS) * (uniform ? 1 : NIBBLE);
  const shared = spend(all, LEVELS, Math.floor((bits * values) / (uniform ? 1 : NIBBLE)));
  let first = 0;
  let predicted = 0;
  const amounts = losses.map(loss => {
    const count = loss.length / LEVELS;
    const own = Float32Array.from(shared.subarray(first, first + count));
    own.forEach((amount, i) => {
      predicted += loss[i * LEVELS + amount];
    });
    first += count;
    return own;
  });
  return { amounts, predicted };
}

/**
 * What a unit of a side's loss costs in divergence: that of its probe over the loss that the probe left. Both codes go
 * by one probe; a profile may know the scale of uniform ones apart.
 */
function weightOf({ sensitivities, ...profile }: Profile, unit: Unit, uniform: boolean): number {
  const loss = arrayOf(profile, unit, 'mead.loss');
  if (!loss) return 0;
  const quads = loss.length / LEVELS;
  const amounts = spend(loss, LEVELS, PROBE_BITS * quads);
  let left = 0;
  amounts.forEach((amount, quad) => {
    left += loss[quad * LEVELS + amount];
  });
  const probed = (uniform && sensitivities.mead2u) || sensitivities.mead2;
  const divergence = probed[unit.layer][unit.side];
  return left > 0 ? divergence / left : 0;
}

/** A TurboQuant spec for every unit, for `bits` a value on average, norms included. */
export function shareTurbo(
  profile: Profile,
  units: readonly Unit[],
  bits: number,
  headDim: number,
): Allocation<string> {
  const levels = TQ_LOSS.length;
  const losses = Float32Array.from(
    units.flatMap(({ layer, side }) => {
      const divergence = profile.sensitivities['tq2-c'][layer][side];
      return TQ_LOSS.map(loss => (divergence * loss) / TQ_LOSS[1]);
    }),
  );
  // Everyone has one bit; the rest is shared.
  const amounts = spend(losses, levels, Math.floor((bits - normBits(headDim) - 1) * units.length + 1e-9));
  return {
    amounts: units.map(({ side }, i) => TQ[side][amounts[i]]),
    predicted: units.reduce((sum, _, i) => sum + losses[i * levels + amounts[i]], 0),
  };
}

function join(arrays: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(arrays.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const array of arrays) {
    all.set(array, at);
    at += array.length;
  }
  return all;
}
