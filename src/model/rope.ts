/**
 * Rotary position embeddings (RoPE): pair i of a head is rotated by position x frequency i. The angles are computed
 * here in f64 and uploaded as tables, because f32 angles are too inexact at long contexts.
 */
import { FormatError, ShapeError } from '../util/errors.ts';

export type RopeScaling =
  | { readonly type: 'none' }
  /** Position interpolation: all frequencies are divided by the factor. */
  | { readonly type: 'linear'; readonly factor: number }
  /** YaRN: low frequencies are interpolated, high ones kept, with a ramp between; attention is sharpened. */
  | {
      readonly type: 'yarn';
      readonly factor: number;
      readonly originalContext: number;
      /** Rotations within the original context: above betaFast a pair is kept, below betaSlow it is interpolated. */
      readonly betaFast: number;
      readonly betaSlow: number;
      /** How much of the sharpening is taken back; 0: nothing. */
      readonly logMultiplier?: number;
    };

export interface RopeConfig {
  readonly base: number;
  /** Dimensions of a head that are rotated; the rest are unchanged. */
  readonly dims: number;
  /** Which dimensions the file pairs: 2i with 2i + 1, or i with i + dims / 2. Loading converts to adjacent pairs. */
  readonly pairing: 'adjacent' | 'halves';
  readonly scaling: RopeScaling;
  /** Multiplies every rotated query and key. */
  readonly attnFactor: number;
  /** The tensor with a divisor per frequency, if there is one. */
  readonly factors?: string;
  /** Queries grow with their position beyond the original context, so that attention stays sharp among more tokens. */
  readonly sharpening?: { readonly scale: number; readonly originalContext: number };
}

export interface RopeFrequencies {
  /** Radians per position, one per pair. */
  readonly frequencies: Float64Array;
  /** Factor of the rotated vectors. */
  readonly magnitude: number;
  /** Those of layers with a window, if they are others. */
  readonly local?: RopeFrequencies;
  readonly sharpening?: RopeConfig['sharpening'];
}

export function ropeFrequencies(rope: RopeConfig, factors?: ArrayLike<number>): RopeFrequencies {
  const pairs = rope.dims / 2;
  if ((rope.factors !== undefined) !== (factors !== undefined) || (factors && factors.length !== pairs))
    throw new ShapeError(`RoPE over ${rope.dims} dimensions needs ${rope.factors ? pairs : 'no'} frequency factors.`);
  const { scaling } = rope;
  const frequencies = Float64Array.from({ length: pairs }, (_, i) => {
    const frequency = rope.base ** (-i / pairs) / (factors?.[i] ?? 1);
    if (scaling.type === 'none') return frequency;
    const interpolated = frequency / scaling.factor;
    if (scaling.type === 'linear') return interpolated;
    const mix = yarnRamp(rope.base, rope.dims, scaling, i);
    return interpolated * (1 - mix) + frequency * mix;
  });
  // Longer contexts flatten the softmax; this is YaRN's correction for it.
  const sharpen = scaling.type === 'yarn' ? yarnMagnitude(scaling) : 1;
  return { frequencies, magnitude: rope.attnFactor * sharpen, sharpening: rope.sharpening };
}

function yarnMagnitude({ factor, logMultiplier = 0 }: RopeScaling & { type: 'yarn' }): number {
  const magnitude = (multiplier: number) => 1 + 0.1 * multiplier * Math.log(Math.max(1, factor));
  return magnitude(1) / magnitude(logMultiplier);
}

/** 1 for high-frequency pairs, which are kept, 0 for low-frequency pairs, which are interpolated. */
function yarnRamp(base: number, dims: number, scaling: RopeScaling & { type: 'yarn' }, pair: number): number {
  // The fractional pair index that makes this many rotations within the original context.
  const pairOf = (rotations: number) =>
    (dims * Math.log(scaling.originalContext / (rotations * 2 * Math.PI))) / (2 * Math.log(base));
  const low = Math.max(0, Math.floor(pairOf(scaling.betaFast)));
  const high = Math.min(dims - 1, Math.ceil(pairOf(scaling.betaSlow)));
  const ramp = (pair - low) / Math.max(0.001, high - low);
  return 1 - Math.min(1, Math.max(0, ramp));
}

export interface RopeTable {
  /** [position][pair], times the magnitude. */
  readonly cos: Float32Array<ArrayBuffer>;
  readonly sin: Float32Array<ArrayBuffer>;
}

/** cos and sin for `count` positions starting at `first`; `sharpened`: those of queries, if they differ. */
export function ropeTable(rope: RopeFrequencies, first: number, count: number, sharpened = false): RopeTable {
  const { frequencies, sharpening } = rope;
  const pairs = frequencies.length;
  const cos = new Float32Array(count * pairs);
  const sin = new Float32Array(count * pairs);
  for (let p = 0; p < count; p++) {
    const magnitude = rope.magnitude * (sharpened && sharpening ? queryFactor(sharpening, first + p) : 1);
    for (let i = 0; i < pairs; i++) {
      const angle = (first + p) * frequencies[i];
      cos[p * pairs + i] = magnitude * Math.cos(angle);
      sin[p * pairs + i] = magnitude * Math.sin(angle);
    }
  }
  return { cos, sin };
}

const queryFactor = ({ scale, originalContext }: NonNullable<RopeConfig['sharpening']>, position: number): number =>
  1 + scale * Math.log(1 + Math.floor(position / originalContext));

/**
 * Reorders the rows of a Q or K matrix (or the values of its bias or norm) from split halves to adjacent pairs, in
 * place, per head. Whole rows are moved, so it works on any weight type. Queries and keys are permuted the same way, so
 * their dot products do not change.
 */
export function interleaveHalves(bytes: Uint8Array, rowBytes: number, headDim: number, ropeDims: number): void {
  const headBytes = rowBytes * headDim;
  if (headBytes <= 0 || bytes.length % headBytes !== 0 || ropeDims > headDim || ropeDims % 2 !== 0)
    throw new ShapeError(`${bytes.length} bytes are not whole heads of ${headDim} rows of ${rowBytes} bytes.`);
  const half = ropeDims / 2;
  const interleaved = new Uint8Array(rowBytes * ropeDims);
  for (let head = 0; head < bytes.length; head += headBytes) {
    for (let i = 0; i < ropeDims; i++) {
      const from = head + rowBytes * (i % 2 === 0 ? i / 2 : half + (i - 1) / 2);
      interleaved.set(bytes.subarray(from, from + rowBytes), i * rowBytes);
    }
    bytes.set(interleaved, head);
  }
}

/** Frequency factors from a file are divisors: each must be positive and finite. */
export function checkFrequencyFactors(factors: Float32Array, name: string): Float32Array {
  const bad = factors.findIndex(x => !(x > 0 && Number.isFinite(x)));
  if (bad >= 0) throw new FormatError(`${name} has ${factors[bad]} at index ${bad}; factors must be positive.`);
  return factors;
}
