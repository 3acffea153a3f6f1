/**
 * Quantizes a page's unnormalized softmax probabilities to 7 bits, for sums in integers. `exponentiatePage` computes
 * 2^(score - max) in 16 bits, eight tokens per vector. `quantizeProbabilities` multiplies them by a factor per token,
 * if there is one, and quantizes them with a scale that makes the largest nearly 127.
 *
 * Probabilities of about one step or less are dithered: the rounding error is carried to the token 16 further on, and
 * the first 16 tokens start with different carries, so that the sum of many small ones is preserved. Larger ones are
 * rounded.
 */
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, lanes32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import {
  dotInt8,
  dotLaneSumsI16,
  hoist,
  MAX_INT16,
  multiplyAdd,
  multiplyQ15,
  reduceAdd,
  reduceMax,
  reduceMaxSplat,
  TINY,
  truncate,
} from '../ops.ts';
import type { AttentionShape } from './attend.ts';

/** The largest quantized probability. */
export const MAX_PROBABILITY = 127;

/** Lower bound of the maximum, for pages where all tokens are masked. */
const MIN_SCORE = -1e6;

/**
 * EXP_ONE x 2^-x is approximated by (z^2 + EXP_CONSTANT)^32 in Q15, with z = EXP_START - EXP_SLOPE x. The relative
 * error is 0.2 % down to 2^-6 and 0.5 % down to 2^-12; from 2^-17 on the result is zero. The largest result is 127 x
 * 256.
 */
const EXP_START = 24397;
const EXP_SLOPE = 474.68;
const EXP_CONSTANT = 14595;
const EXP_SQUARINGS = 5;
const EXP_ONE = 32548;

/** Scaled probabilities have 16 bits: a step is this many of their units, so that the high byte is the quantized one. */
const STEP_BITS = 8;
const STEP = 1 << STEP_BITS;
const MAX_SCALED = 126.5 * STEP;

/** Max sum of quantized probabilities, per lane or per half of the lanes. */
export interface SumLimit {
  lanes: 1 | 4;
  max: number;
  /** Tokens per sum. Default: the whole page. */
  runTokens?: number;
}

export interface PageExponentials {
  /** The 16-bit exponentials are in units of 2^exponent (in all lanes). */
  exponent: V128;
  /** Sum of the exponentials, in four parts. */
  sum: V128;
}

/**
 * Replaces a group's scores by 16-bit exponentials, which fill the first half of each head's scores. `scratch` has
 * EXPONENTIATE_SCRATCH bytes. Here and below each stage runs for all heads before the next one, to hide latencies.
 */
export function exponentiatePage(k: Kernel, shape: AttentionShape, scores: I32, scratch: I32): PageExponentials[] {
  const { group, pageTokens, relaxed } = shape;
  const heads = Array.from({ length: group }, (_, g) => k.i32(i32.add(scores, 4 * g * pageTokens)));
  const maxima = heads.map(from => k.v128(reduceMaxSplat(k, maxOfPage(k, pageTokens, from))));
  const square = multiplyQ15(relaxed);
  const exponential = k.v128();
  return heads.map((head, g) => {
    const max = maxima[g];
    const [from, to] = [k.i32(head), k.i32(head)];
    const sums = [0, 1].map(() => k.v128(v128.zero));
    const [slope, start, constant] = hoist(k, scratch, [
      f32x4.const(EXP_SLOPE),
      f32x4.sub(f32x4.const(EXP_START + 0.5), f32x4.mul(max, f32x4.const(EXP_SLOPE))),
      i16x8.const(EXP_CONSTANT),
    ]);
    k.for(0, pageTokens, 16, () => {
      sums.forEach((sum, n) => {
        const [a, b] = [0, 16].map(offset => {
          const z = multiplyAdd(relaxed)(v128.load(from, 32 * n + offset), slope, start);
          return truncate(relaxed)(z);
        });
        // Unsigned saturation makes negative z zero.
        k.set(exponential, i16x8.narrowU(a, b));
        k.set(exponential, i16x8.add(square(exponential, exponential), constant));
        for (let i = 0; i < EXP_SQUARINGS; i++) k.set(exponential, square(exponential, exponential));
        k.set(sum, i32x4.add(sum, i32x4.dot(exponential, i16x8.const(1))));
        k.do(v128.store(to, exponential, 16 * n));
      });
      k.increment(from, 64);
      k.increment(to, 32);
    });
    return {
      exponent: k.v128(f32x4.sub(max, f32x4.const(Math.log2(EXP_ONE)))),
      sum: k.v128(f32x4.fromI32(i32x4.add(sums[0], sums[1]))),
    };
  });
}
export const EXPONENTIATE_SCRATCH = 16 * 3;

/** The maximum of a page's scores or factors, in one of the four lanes. */
function maxOfPage(k: Kernel, pageTokens: number, from: I32): V128 {
  const maxima = [0, 1, 2, 3].map(() => k.v128(f32x4.const(MIN_SCORE)));
  k.for(0, 4 * pageTokens, 64, i => {
    for (const [n, max] of maxima.entries()) k.set(max, f32x4.max(max, v128.load(i32.add(from, i), 16 * n)));
  });
  return maxima.reduce<V128>(f32x4.max, maxima[0]);
}

/** Dot product of a page's exponentials with other values per token, [pageTokens] f32. */
export function dotExponentials(
  k: Kernel,
  { pageTokens, relaxed }: AttentionShape,
  exponentials: I32,
  values: I32,
): F32 {
  const [from, value] = [k.i32(exponentials), k.i32(values)];
  const [exponential, sum] = [k.v128(), k.v128(v128.zero)];
  k.for(0, pageTokens, 8, () => {
    k.set(exponential, v128.load(from));
    for (const [n, extend] of [i32x4.extendLowS, i32x4.extendHighS].entries())
      k.set(sum, multiplyAdd(relaxed)(f32x4.fromI32(extend(exponential)), v128.load(value, 16 * n), sum));
    k.increment(from, 16);
    k.increment(value, 32);
  });
  return k.f32(reduceAdd(k, sum));
}

/**
 * Converts the factors of a page's tokens, [pageTokens] non-negative f32, to the Q15 that `quantizeProbabilities`
 * takes, relative to the largest. That one follows them, as f32.
 */
export function quantizeFactors(k: Kernel, { pageTokens, relaxed }: AttentionShape, factors: I32, out: I32): void {
  const [from, to] = [k.i32(factors), k.i32(out)];
  const max = k.f32(f32.max(reduceMax(k, maxOfPage(k, pageTokens, from)), f32.const(TINY)));
  k.do(f32.store(to, max, 2 * pageTokens));
  const toQ15 = k.v128(f32x4.splat(f32.div(f32.const(MAX_INT16), max)));
  k.for(0, pageTokens, 16, () => {
    for (const n of [0, 1]) {
      const [a, b] = [0, 16].map(i => truncate(relaxed)(f32x4.mul(v128.load(from, 32 * n + i), toQ15)));
      k.do(v128.store(to, i16x8.narrowS(a, b), 16 * n));
    }
    k.increment(from, 64);
    k.increment(to, 32);
  });
}
export const factorBytes = (pageTokens: number) => 2 * pageTokens + 16;

/** Of the first 16 tokens: parts of a step, half of one on average, neighbours far apart. */
const FIRST_CARRIES = Array.from({ length: 16 }, (_, i) => ((7 * i) % 16) * 8 + 68);

/** Of an f32. */
const MANTISSA_BITS = 0x7fffff;
const EXPONENT_BITS = 0x7f800000;

export interface QuantizedProbabilities {
  /** One step, in units of the exponentials (in all lanes). */
  step: V128;
  /** Sum of all quantized probabilities; needs `sumCodes`. */
  total(): F32;
}

interface QuantizeOptions {
  /** [pageTokens] in Q15, the largest nearly 1. */
  factors?: I32;
  /** The steps are made larger if sums would exceed it. */
  limit?: SumLimit;
  sumCodes?: boolean;
}

/** Quantizes a group's exponentials to `codes`, [head][pageTokens] bytes. */
export function quantizeProbabilities(
  k: Kernel,
  shape: AttentionShape,
  exponentials: I32,
  codes: I32,
  { factors, limit, sumCodes = false }: QuantizeOptions,
): QuantizedProbabilities[] {
  const { group, pageTokens, relaxed } = shape;
  const multiply = multiplyQ15(relaxed);
  // Products with factors are stored after the exponentials.
  const productsOffset = factors === undefined ? 0 : 2 * pageTokens;
  const heads = Array.from({ length: group }, (_, g) => k.i32(i32.add(exponentials, 4 * g * pageTokens)));
  const scales = heads.map(head => k.v128(probabilityScale(k, shape, head, productsOffset, factors, limit)));
  // scale = powerOfTwo x fraction, where powerOfTwo >= scale and the fraction is Q15.
  const splitScales = scales.map(scale => {
    const above = v128.and(i32x4.add(scale, i32x4.const(MANTISSA_BITS)), i32x4.const(EXPONENT_BITS));
    const whole = k.v128(f32x4.max(above, f32x4.const(1)));
    const words = [f32x4.div(f32x4.mul(scale, f32x4.const(MAX_INT16)), whole), whole].map(x => {
      const word = k.v128(truncate(relaxed)(x));
      return k.v128(i16x8.narrowS(word, word));
    });
    return { fraction: words[0], powerOfTwo: words[1] };
  });
  const value = k.v128();
  const words = [0, 1].map(() => k.v128());
  return heads.map((head, g) => {
    const { fraction, powerOfTwo } = splitScales[g];
    const [from, to] = [k.i32(head), k.i32(i32.add(codes, g * pageTokens))];
    const total = k.v128(v128.zero);
    const carry = words.map((_, n) => k.v128(i16x8.const(...FIRST_CARRIES.slice(8 * n, 8 * n + 8))));
    k.for(0, pageTokens, 16, () => {
      words.forEach((word, n) => {
        const scaled = multiply(v128.load(from, productsOffset + 16 * n), fraction);
        k.set(value, i16x8.add(factors === undefined ? scaled : i16x8.mul(scaled, powerOfTwo), carry[n]));
        k.set(word, i16x8.shrU(value, STEP_BITS));
        // The fraction of a step; for more than one step, a half.
        k.set(carry[n], v128.and(i16x8.minS(value, i16x8.const(1.5 * STEP - 1)), i16x8.const(STEP - 1)));
      });
      const packed = k.v128(i8x16.narrowS(words[0], words[1]));
      k.do(v128.store(to, packed));
      if (sumCodes) k.set(total, i32x4.add(total, i32x4.dot(dotInt8(relaxed)(packed, i8x16.const(1)), i16x8.const(1))));
      k.increment(from, 32);
      k.increment(to, 16);
    });
    return { step: k.v128(f32x4.div(f32x4.const(STEP), scales[g])), total: () => reduceAdd(k, f32x4.fromI32(total)) };
  });
}

/**
 * Multiplies a head's exponentials by the factors and returns the scale of the products, in all lanes: it maps the
 * largest to MAX_SCALED, or to less if sums would exceed the limit.
 */
function probabilityScale(
  k: Kernel,
  { pageTokens, relaxed }: AttentionShape,
  exponentials: I32,
  productsOffset: number,
  factors: I32 | undefined,
  limit: SumLimit | undefined,
): V128 {
  if (factors === undefined && !limit) return f32x4.const(1);
  const multiply = multiplyQ15(relaxed);
  const [from, factor] = [k.i32(exponentials), k.i32(factors ?? 0)];
  const maxWords = k.v128(v128.zero);
  const run = limit?.runTokens ?? pageTokens;
  const words = [0, 1].map(() => k.v128());
  const lanes = words.map(() => k.v128());
  const maxSum = k.v128(v128.zero);
  k.for(0, pageTokens / run, 1, () => {
    for (const sum of lanes) k.set(sum, v128.zero);
    k.for(0, run, 16, () => {
      words.forEach((word, n) => {
        k.set(word, v128.load(from, 16 * n));
        if (factors === undefined) return;
        k.set(word, multiply(word, v128.load(factor, 16 * n)));
        k.do(v128.store(from, word, productsOffset + 16 * n));
        k.set(maxWords, i16x8.maxS(maxWords, word));
      });
      if (limit)
        for (const [n, sum] of dotLaneSumsI16(words, relaxed).entries()) k.set(lanes[n], i32x4.add(lanes[n], sum));
      k.increment(from, 32);
      k.increment(factor, 32);
    });
    if (limit) k.set(maxSum, i32x4.maxS(maxSum, maxLaneSum(k, lanes, limit)));
  });
  const scaleTo = (target: number, x: V128) =>
    f32x4.div(f32x4.const(target), f32x4.max(reduceMaxSplat(k, f32x4.fromI32(x)), f32x4.const(1)));
  const max = i32x4.maxS(i32x4.extendLowS(maxWords), i32x4.extendHighS(maxWords));
  const scale = factors === undefined ? f32x4.const(1) : f32x4.min(scaleTo(MAX_SCALED, max), f32x4.const(MAX_SCALE));
  // Each code may be almost one more than the exact value.
  return limit ? f32x4.min(scale, scaleTo(STEP * (limit.max - (limit.lanes * run) / 8), maxSum)) : scale;
}
/** Products are scaled up by at most this: below 1 / this of the largest they lose bits. */
const MAX_SCALE = 128;

/** The largest sum of one lane, or of four lanes together. */
function maxLaneSum(k: Kernel, lanes: readonly V128[], { lanes: count }: SumLimit): V128 {
  if (count === 1) return i32x4.maxS(lanes[0], lanes[1]);
  const halfSums = lanes.map(sum => {
    const pairs = k.v128(i32x4.add(sum, v128.shuffle(sum, sum, lanes32(2, 3, 0, 1))));
    return i32x4.add(pairs, v128.shuffle(pairs, pairs, lanes32(1, 0, 3, 2)));
  });
  return i32x4.maxS(halfSums[0], halfSums[1]);
}
