/**
 * Online softmax. A state is {m, l, 0, 0, o[n]} in f32: running maximum, normalizer, weighted sum. Queries are scaled
 * by log2 e, so the weights are 2^(score - m), a few instructions for four tokens.
 */
import { type F32, f32, f32x4, type I32, i32, i32x4, index, type Local, lanes32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { hoist, multiplyAdd, ROUND, reduceAdd, reduceMax } from '../ops.ts';

/** The score of a masked token. */
export const MASKED = -1e30;
export const STATE_HEADER = 16;
export const stateBytes = (n: number) => STATE_HEADER + 4 * n;

/** Polynomial of 2^x for x in [-1/2, 1/2], highest power first: accurate to 1e-7. */
const [LEADING, ...COEFFICIENTS] = [0.0013276487, 0.0096755466, 0.0555071328, 0.2402211963, 0.693146967, 1.0000000717];

/** The constants of `exp2x4`. */
const EXP2_CONSTANTS = [-100, ROUND, LEADING, ...COEFFICIENTS].map(c => f32x4.const(c));

export const SOFTMAX_SCRATCH = 16 * (EXP2_CONSTANTS.length + 1);

/** 2^x of four values x <= 0, clamped at 2^-100 to avoid subnormals. */
function exp2x4(k: Kernel, value: V128, relaxed = false, constants: readonly V128[] = EXP2_CONSTANTS): V128 {
  const [min, round, leading, ...coefficients] = constants;
  const x = k.v128(f32x4.max(value, min));
  const shifted = k.v128(f32x4.add(x, round));
  const fraction = k.v128(f32x4.sub(x, f32x4.sub(shifted, round)));
  const p = coefficients.reduce((p: V128, c) => multiplyAdd(relaxed)(p, fraction, c), leading);
  // The low bits of the shifted value are the integer part: it is added to the exponent.
  return i32x4.add(p, i32x4.shl(shifted, 23));
}

const exp2x1 = (k: Kernel, x: F32): F32 => f32x4.lane(exp2x4(k, f32x4.splat(x)), 0);

/**
 * Scores s become softcap * tanh(s / softcap); no change if `softcap`, the bits of an f32, is 0. `count` is a multiple of 4.
 * Scores are to the base 2, hence the factor of the result.
 */
export function capScores(k: Kernel, scores: I32, count: I32, softcap: I32): void {
  k.if(softcap, () => {
    const from = k.i32(scores);
    const cap = k.f32(f32.fromBits(softcap));
    const slope = k.v128(f32x4.splat(f32.div(f32.const(-2), cap)));
    const max = k.v128(f32x4.splat(f32.mul(cap, f32.const(Math.LOG2E))));
    const one = f32x4.const(1);
    k.for(0, i32.mul(count, 4), 16, i => {
      const score = k.v128(v128.load(i32.add(from, i)));
      const power = k.v128(exp2x4(k, f32x4.mul(f32x4.abs(score), slope)));
      const size = f32x4.mul(max, f32x4.div(f32x4.sub(one, power), f32x4.add(one, power)));
      // The polynomial is not exactly 1 at 0, so the size of a small score may be below 0: abs.
      const sign = v128.and(score, i32x4.const(-0x80000000));
      k.do(v128.store(i32.add(from, i), v128.or(f32x4.abs(size), sign)));
    });
  });
}

export function clearState(k: Kernel, state: I32, n: number): void {
  const at = k.i32(state);
  k.do(f32.store(at, f32.const(MASKED)), f32.store(at, f32.const(0), 4));
  k.for(STATE_HEADER, stateBytes(n), 16, i => k.do(v128.store(i32.add(at, i), v128.zero)));
}

/**
 * Updates one head's m and l with `count` scores (a multiple of 4), replaces the scores by their weights, and returns
 * the correction factor for the sums accumulated so far. With a scratch of SOFTMAX_SCRATCH bytes, loops keep their
 * constants in registers.
 */
export function onlineSoftmax(k: Kernel, scores: I32, count: I32, state: I32, relaxed: boolean, scratch?: I32): F32 {
  const at = k.i32(state);
  const old = k.f32(f32.load(at));
  const m = k.f32(maxScore(k, scores, i32.mul(count, 4), old));
  const correction = k.f32(exp2x1(k, f32.sub(old, m)));
  const sum = exponentiate(k, scores, count, m, relaxed, scratch);
  k.do(f32.store(at, m));
  k.do(f32.store(at, f32.add(f32.mul(f32.load(at, 4), correction), sum), 4));
  return correction;
}

/**
 * Updates a state's m and l with a page whose weights are given in units of 2^exponent; `sum` is their sum in four
 * parts. Returns, in all lanes, the correction factor for the old sums and the scale of one unit.
 */
export function addPageToState(k: Kernel, state: I32, exponent: V128, sum: V128): { correction: V128; scale: V128 } {
  const at = k.i32(state);
  const old = k.v128(v128.load32Splat(at));
  const m = k.v128(f32x4.max(old, exponent));
  const factors = k.v128(exp2x4(k, f32x4.sub(v128.shuffle(old, exponent, lanes32(0, 4, 0, 4)), m)));
  const [correction, scale] = [0, 1].map(lane =>
    k.v128(v128.shuffle(factors, factors, lanes32(lane, lane, lane, lane))),
  );
  k.do(v128.store32Lane(at, m, 0));
  const l = f32.add(
    f32.mul(f32.load(at, 4), f32x4.lane(factors, 0)),
    f32.mul(reduceAdd(k, sum), f32x4.lane(factors, 1)),
  );
  k.do(f32.store(at, l, 4));
  return { correction, scale };
}

/** The maximum of `initial` and `bytes` / 4 scores (a multiple of 4). */
function maxScore(k: Kernel, scores: I32, bytes: I32, initial: F32): F32 {
  const max = k.v128(f32x4.splat(f32.max(initial, f32.const(MASKED / 2))));
  const from = k.i32(scores);
  k.for(0, bytes, 16, i => k.set(max, f32x4.max(max, v128.load(i32.add(from, i)))));
  return reduceMax(k, max);
}

/**
 * Replaces scores by 2^(score - max) and returns their sum: two vectors at a time, which V8 can join. Masked scores are far
 * below any maximum.
 */
function exponentiate(k: Kernel, scores: I32, count: I32, max: F32, relaxed: boolean, scratch?: I32): F32 {
  const from = k.i32(scores);
  const values = [f32x4.splat(max), ...EXP2_CONSTANTS];
  const [m, ...constants] = scratch === undefined ? [k.v128(values[0]), ...EXP2_CONSTANTS] : hoist(k, scratch, values);
  const sums = [0, 1].map(() => k.v128(v128.zero));
  const pairs = k.i32(i32.add(from, i32.mul(i32.and(count, -8), 4)));
  const add = (at: I32, sums: Local<'v128'>[]) => {
    const scores = sums.map((_, v) => k.v128(v128.load(at, 16 * v)));
    const weights = scores.map(score => k.v128(exp2x4(k, f32x4.sub(score, m), relaxed, constants)));
    for (const [v, sum] of sums.entries()) k.set(sum, f32x4.add(sum, weights[v]));
    for (let v = sums.length - 1; v >= 0; v--) k.do(v128.store(at, weights[v], 16 * v));
  };
  k.forAddresses(from, pairs, 32, at => add(at, sums));
  k.if(i32.and(count, 4), () => add(pairs, sums.slice(0, 1)));
  return k.f32(reduceAdd(k, f32x4.add(sums[0], sums[1])));
}

/** Merges `count` states, `stride` bytes apart, into the one at `state`. All have n sums. */
export function mergeStates(k: Kernel, state: I32, others: I32, count: I32, stride: number, n: number): void {
  const [target, first] = [k.i32(state), k.i32(others)];
  const end = k.i32(index(first, stride, count));
  const m = k.v128(v128.load32Splat(target));
  k.forAddresses(first, end, stride, other => k.set(m, f32x4.max(m, v128.load32Splat(other))));
  const factor = k.v128(exp2x4(k, f32x4.sub(v128.load32Splat(target), m)));
  // The header is scaled and added like the sums, which is right for l; m is overwritten at the end.
  k.for(0, stateBytes(n), 16, i => {
    const at = k.i32(i32.add(target, i));
    k.do(v128.store(at, f32x4.mul(v128.load(at), factor)));
  });
  k.forAddresses(first, end, stride, other => {
    k.set(factor, exp2x4(k, f32x4.sub(v128.load32Splat(other), m)));
    k.for(0, stateBytes(n), 16, i => {
      const at = k.i32(i32.add(target, i));
      k.do(v128.store(at, f32x4.add(v128.load(at), f32x4.mul(v128.load(i32.add(other, i)), factor))));
    });
  });
  k.do(v128.store32Lane(target, m, 0));
}
