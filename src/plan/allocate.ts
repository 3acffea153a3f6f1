/**
 * Bit allocation: which layers' keys and values get more bits. A profile holds the sensitivity of each side of each layer
 * (the divergence if only that side is quantized) and its error at each number of bits. One budget for all sides is spent
 * where it reduces the divergence most.
 */
import type { Side } from '../codec/codec.ts';
import type { Learned } from '../codec/learned.ts';
import { allocateBits } from '../codec/mead/allocate-bits.ts';
import type { Profile } from './profile.ts';

/** The keys or the values of one layer. */
export interface LayerSide {
  layer: number;
  side: Side;
}

export interface Allocation<T> {
  /** One per side, in the order given. */
  amounts: T[];
  /** Predicted KL divergence of the whole plan, in nats per token. */
  predicted: number;
}

/** A mead quad has 0 to 6 nibbles, a dim of the uniform code 0 to 6 bits. */
const LEVELS = 7;
/** Bits per value at which mead's sensitivity was measured. */
const PROBE_BITS = 2;

/** Relative squared error of TurboQuant at 1 to 4 bits, and the spec of each side: centered keys, corrected norms. */
const TQ_LOSS = [0.3634, 0.1175, 0.03455, 0.0095];
const TQ_SPECS: Record<Side, string[]> = {
  key: ['tq1-c', 'tq2-c', 'tq3-c-nc', 'tq4-c-nc'],
  value: ['tq1', 'tq2', 'tq3-nc', 'tq4-nc'],
};
/** Bits per value for the f16 norm of each vector. */
const normBits = (headDim: number) => 16 / headDim;

const learnedArray = (
  profile: Pick<Profile, 'learned'>,
  { layer, side }: LayerSide,
  name: string,
): Float32Array | undefined => (profile.learned[layer][side] as Learned)[name];

/** Whether the profile has mead's sensitivities. */
export const canAllocateMead = (profile?: Profile): profile is Profile => profile?.sensitivities.mead2 !== undefined;
/** Whether the profile has TurboQuant's sensitivities. */
export const canAllocateTurboQuant = (profile?: Profile): profile is Profile =>
  profile?.sensitivities['tq2-c'] !== undefined;

/** Nibbles per quad of each side (uniform: bits per dim), for an average of `bits` per value over all sides. */
export function allocateMead(
  profile: Profile,
  sides: readonly LayerSide[],
  bits: number,
  uniform: boolean,
): Allocation<Float32Array> {
  const losses = sides.map(side => {
    const loss = learnedArray(profile, side, uniform ? 'mead.step-loss' : 'mead.loss') ?? new Float32Array(0);
    const weight = divergencePerLoss(profile, side, uniform);
    return loss.map(x => x * weight);
  });
  const all = concatenate(losses);
  // A nibble per quad is a bit per value, so the budget is the same for both codes.
  const allocated = allocateBits(all, LEVELS, Math.floor(bits * (all.length / LEVELS)));
  let first = 0;
  let predicted = 0;
  const amounts = losses.map(loss => {
    const count = loss.length / LEVELS;
    const ofSide = Float32Array.from(allocated.subarray(first, first + count));
    ofSide.forEach((amount, i) => {
      predicted += loss[i * LEVELS + amount];
    });
    first += count;
    return ofSide;
  });
  return { amounts, predicted };
}

/**
 * Divergence per unit of a side's loss: its measured divergence over its loss at the measured bits. Both codes use the
 * same measurement, unless the profile has one of the uniform code.
 */
export function divergencePerLoss(
  { sensitivities, ...profile }: Profile,
  layerSide: LayerSide,
  uniform: boolean,
): number {
  const loss = learnedArray(profile, layerSide, 'mead.loss');
  if (!loss) return 0;
  const remaining = lossOfMead2(loss).reduce((sum, quad) => sum + quad, 0);
  const probed = (uniform && sensitivities.mead2u) || sensitivities.mead2;
  const divergence = probed[layerSide.layer][layerSide.side];
  return remaining > 0 ? divergence / remaining : 0;
}

/** What remains of each quad's loss (`mead.loss`) if a side allocates two bits per value by itself. */
export function lossOfMead2(loss: Float32Array): number[] {
  const amounts = allocateBits(loss, LEVELS, (PROBE_BITS * loss.length) / LEVELS);
  return Array.from(amounts, (amount, quad) => loss[quad * LEVELS + amount]);
}

/** A TurboQuant spec for each side, for an average of `bits` per value, norms included. */
export function allocateTurboQuant(
  profile: Profile,
  sides: readonly LayerSide[],
  bits: number,
  headDim: number,
): Allocation<string> {
  const levels = TQ_LOSS.length;
  const losses = Float32Array.from(
    sides.flatMap(({ layer, side }) => {
      const divergence = profile.sensitivities['tq2-c'][layer][side];
      return TQ_LOSS.map(loss => (divergence * loss) / TQ_LOSS[1]);
    }),
  );
  // Each side has one bit; the rest is allocated.
  const amounts = allocateBits(losses, levels, Math.floor((bits - normBits(headDim) - 1) * sides.length + 1e-9));
  return {
    amounts: sides.map(({ side }, i) => TQ_SPECS[side][amounts[i]]),
    predicted: sides.reduce((sum, _, i) => sum + losses[i * levels + amounts[i]], 0),
  };
}

function concatenate(arrays: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(arrays.reduce((sum, { length }) => sum + length, 0));
  let offset = 0;
  for (const array of arrays) {
    all.set(array, offset);
    offset += array.length;
  }
  return all;
}
