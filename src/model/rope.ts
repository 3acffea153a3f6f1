/**
 * Rotary positions: pair i of a head turns by position x frequency i. The angles are made here in f64, as tables that
 * every device uses, because float32 angles lose their meaning at long contexts.
 */
import { FormatError, ShapeError } from '../errors.ts';

export type RopeScaling =
  | { readonly type: 'none' }
  /** All positions squeezed by the factor. */
  | { readonly type: 'linear'; readonly factor: number }
  /** Slow pairs squeezed, fast pairs left, a ramp between them; attention sharpened a little. */
  | {
      readonly type: 'yarn';
      readonly factor: number;
      readonly originalContext: number;
      /** Turns within the original context above which a pair is fast, and below which it is slow. */
      readonly betaFast: number;
      readonly betaSlow: number;
      /** How much of the ramp is applied: 1, unless a file says otherwise. */
      readonly extFactor: number;
    };

export interface RopeConfig {
  readonly base: number;
  /** Dimensions of a head that turn; the rest are left alone. */
  readonly dims: number;
  /** Which dimensions the file pairs: 2i with 2i + 1, or i with i + dims / 2. The engine knows adjacent pairs only. */
  readonly pairing: 'adjacent' | 'halves';
  readonly scaling: RopeScaling;
  /** Multiplies every rotated query and key. */
  readonly attnFactor: number;
  /** The file has a divisor for each frequency (Llama 3's `rope_freqs.weight`). */
  readonly hasFactors: boolean;
}

/** The angle by which each pair turns from one position to the next, and what the turned vectors are multiplied by. */
export interface RopeFrequencies {
  readonly frequencies: Float64Array;
  readonly magnitude: number;
}

export function ropeFrequencies(rope: RopeConfig, factors?: ArrayLike<number>): RopeFrequencies {
  const pairs = rope.dims / 2;
  if (rope.hasFactors !== (factors !== undefined) || (factors && factors.length !== pairs))
    throw new ShapeError(
      `RoPE over ${rope.dims} dimensions needs ${rope.hasFactors ? pairs : 'no'} frequency factors.`,
    );
  const { scaling } = rope;
  const frequencies = Float64Array.from({ length: pairs }, (_, i) => {
    const plain = rope.base ** (-i / pairs) / (factors?.[i] ?? 1);
    if (scaling.type === 'none') return plain;
    const squeezed = plain / scaling.factor;
    if (scaling.type === 'linear') return squeezed;
    const mix = yarnRamp(rope.base, rope.dims, scaling, i) * scaling.extFactor;
    return squeezed * (1 - mix) + plain * mix;
  });
  // Longer contexts flatten the softmax; YaRN's authors found that this much sharpening makes up for it.
  const sharpen = scaling.type === 'yarn' && scaling.extFactor !== 0 ? 1 + 0.1 * Math.log(scaling.factor) : 1;
  return { frequencies, magnitude: rope.attnFactor * sharpen };
}

/** 1 for pairs fast enough to stay as they are, 0 for pairs so slow that they are squeezed whole. */
function yarnRamp(base: number, dims: number, scaling: RopeScaling & { type: 'yarn' }, pair: number): number {
  // The pair, as a real number, that makes `turns` turns within the original context.
  const pairOf = (turns: number) =>
    (dims * Math.log(scaling.originalContext / (turns * 2 * Math.PI))) / (2 * Math.log(base));
  const low = Math.max(0, Math.floor(pairOf(scaling.betaFast)));
  const high = Math.min(dims - 1, Math.ceil(pairOf(scaling.betaSlow)));
  const slowness = (pair - low) / Math.max(0.001, high - low);
  return 1 - Math.min(1, Math.max(0, slowness));
}

export interface RopeTable {
  /** [position][pair], times the magnitude. */
  readonly cos: Float32Array<ArrayBuffer>;
  readonly sin: Float32Array<ArrayBuffer>;
}

/** cos and sin for `count` positions from `first` on. */
export function ropeTable({ frequencies, magnitude }: RopeFrequencies, first: number, count: number): RopeTable {
  const pairs = frequencies.length;
  const cos = new Float32Array(count * pairs);
  const sin = new Float32Array(count * pairs);
  for (let p = 0; p < count; p++) {
    for (let i = 0; i < pairs; i++) {
      const angle = (first + p) * frequencies[i];
      cos[p * pairs + i] = magnitude * Math.cos(angle);
      sin[p * pairs + i] = magnitude * Math.sin(angle);
    }
  }
  return { cos, sin };
}

/**
 * Turns the rows of a Q or K matrix (or the values of its bias or norm: rows of one float) from split halves into
 * adjacent pairs, in place, head by head. Rows are moved whole, so it works on any weight type. Queries and keys are
 * permuted alike, so their dot products stay what they were.
 */
export function pairRows(bytes: Uint8Array, rowBytes: number, headDim: number, ropeDims: number): void {
  const headBytes = rowBytes * headDim;
  if (headBytes <= 0 || bytes.length % headBytes !== 0 || ropeDims > headDim || ropeDims % 2 !== 0)
    throw new ShapeError(`${bytes.length} bytes are not whole heads of ${headDim} rows of ${rowBytes} bytes.`);
  const half = ropeDims / 2;
  const turned = new Uint8Array(rowBytes * ropeDims);
  for (let head = 0; head < bytes.length; head += headBytes) {
    for (let i = 0; i < ropeDims; i++) {
      const from = head + rowBytes * (i % 2 === 0 ? i / 2 : half + (i - 1) / 2);
      turned.set(bytes.subarray(from, from + rowBytes), i * rowBytes);
    }
    bytes.set(turned, head);
  }
}

/** Frequency factors from a file, which divide: each must be a positive, finite number. */
export function checkFactors(factors: Float32Array): Float32Array {
  const bad = factors.findIndex(x => !(x > 0 && Number.isFinite(x)));
  if (bad >= 0) throw new FormatError(`rope_freqs.weight holds ${factors[bad]} at ${bad}; factors must be positive.`);
  return factors;
}
