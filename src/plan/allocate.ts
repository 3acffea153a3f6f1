/**
 * Bit allocation: which layers' keys and values get more bits. A profile holds the sensitivity of each side of each layer
 * (the divergence if only that side is quantized) and its error at each number of bits. One budget for all sides is spent
 * where it reduces the divergence most.
 */
import type { Side } from '../codec/codec.ts';
import type { KvShape } from '../codec/kv.ts';
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

/** Relative squared error of TurboQuant at 1 to 4 bits, and its specs. */
const TQ_LOSS = [0.3634, 0.1175, 0.03455, 0.0095];
const TQ_SPECS = ['tq1', 'tq2', 'tq3', 'tq4'];
/** The codec whose sensitivities are measured. */
const TQ_PROBE = 'tq2';

const learnedArray = (
  profile: Pick<Profile, 'learned'>,
  { layer, side }: LayerSide,
  name: string,
): Float32Array | undefined => (profile.learned[layer][side] as Learned)[name];

/** Whether the profile has mead's sensitivities. */
export const canAllocateMead = (profile?: Profile): profile is Profile => profile?.sensitivities.mead2 !== undefined;
/** Whether the profile has TurboQuant's sensitivities. */
export const canAllocateTurboQuant = (profile?: Profile): profile is Profile =>
  profile?.sensitivities[TQ_PROBE] !== undefined;

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
  const all = Float32Array.from(losses.flatMap(loss => [...loss]));
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

/** Bits per value of TurboQuant besides its codes: an f16 norm per vector, and the keys' f16 mean per page. */
export const turboOverheadBits = ({ headDim, pageTokens = 128 }: KvShape): number => 16 / headDim + 8 / pageTokens;

/** A TurboQuant spec for each side, for an average of `bits` per value, norms and means included. */
export function allocateTurboQuant(
  profile: Profile,
  sides: readonly LayerSide[],
  bits: number,
  shape: KvShape,
): Allocation<string> {
  const levels = TQ_LOSS.length;
  const losses = Float32Array.from(
    sides.flatMap(({ layer, side }) => {
      const divergence = profile.sensitivities[TQ_PROBE][layer][side];
      return TQ_LOSS.map(loss => (divergence * loss) / TQ_LOSS[1]);
    }),
  );
  // Each side has one bit; the rest is allocated.
  const amounts = allocateBits(losses, levels, Math.floor((bits - turboOverheadBits(shape) - 1) * sides.length + 1e-9));
  return {
    amounts: sides.map((_, i) => TQ_SPECS[amounts[i]]),
    predicted: sides.reduce((sum, _, i) => sum + losses[i * levels + amounts[i]], 0),
  };
}
