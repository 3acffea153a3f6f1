/**
 * The running softmax. A state is {m, l, 0, 0, o[n]} in f32, m in powers of two: queries come multiplied by log2 e, so
 * that weights are exp2 of a difference, a few operations for four tokens.
 */
import { type F32, f32, f32x4, type I32, i32, i32x4, lanes32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { max4, multiplyAdd, sum4 } from '../ops.ts';

/** A score that counts for nothing. */
export const NOWHERE = -1e30;
export const STATE_HEAD = 16;
export const stateBytes = (n: number) => STATE_HEAD + 4 * n;

/** 2^x from -1/2 to 1/2, the highest power first: good to 1e-7. */
const [FIRST, ...TERMS] = [0.0013276487, 0.0096755466, 0.0555071328, 0.2402211963, 0.693146967, 1.0000000717];

/** 2^x of four values that are 0 or less; 2^-100 is as good as zero, and keeps subnormals away. */
export function exp2x4(k: Kernel, value: V128, relaxed = false): V128 {
  const magic = f32x4.const(12582912);
  const x = k.v128(f32x4.max(value, f32x4.const(-100)));
  const shifted = k.v128(f32x4.add(x, magic));
  const rest = k.v128(f32x4.sub(x, f32x4.sub(shifted, magic)));
  const p = TERMS.reduce((p: V128, c) => multiplyAdd(relaxed)(p, rest, f32x4.const(c)), f32x4.const(FIRST));
  // The low bits of the shifted value are the whole part: they go straight into the exponent.
  return i32x4.add(p, i32x4.shl(shifted, 23));
}

const exp2x1 = (k: Kernel, x: F32): F32 => f32x4.lane(exp2x4(k, f32x4.splat(x)), 0);

export function clearState(k: Kernel, state: I32, n: number): void {
  const at = k.i32(state);
  k.do(f32.store(at, f32.const(NOWHERE)), f32.store(at, f32.const(0), 4));
  k.for(STATE_HEAD, stateBytes(n), 16, i => k.do(v128.store(i32.add(at, i), v128.zero)));
}

/**
 * Takes `count` scores (a multiple of 4) of one head into its state's m and l, turns them into weights in place, and
 * gives the factor that what was summed before must be multiplied by.
 */
export function softmax(k: Kernel, scores: I32, count: I32, state: I32, relaxed: boolean): F32 {
  const at = k.i32(state);
  const old = k.f32(f32.load(at));
  const m = k.f32(largestOf(k, scores, i32.mul(count, 4), old));
  const correction = k.f32(exp2x1(k, f32.sub(old, m)));
  const sum = weigh(k, scores, count, m, relaxed);
  k.do(f32.store(at, m));
  k.do(f32.store(at, f32.add(f32.mul(f32.load(at, 4), correction), sum), 4));
  return correction;
}

/**
 * Takes a page into a state's m and l: `sum` is four parts of the sum of its weights, in steps of 2^top each. Gives what the
 * old sums are to be multiplied by, and what a step is worth, in all lanes.
 */
export function takePage(k: Kernel, state: I32, top: V128, sum: V128): { correction: V128; step: V128 } {
  const at = k.i32(state);
  const old = k.v128(v128.load32Splat(at));
  const m = k.v128(f32x4.max(old, top));
  const worth = k.v128(exp2x4(k, f32x4.sub(v128.shuffle(old, top, lanes32(0, 4, 0, 4)), m)));
  const [correction, step] = [0, 1].map(lane => k.v128(v128.shuffle(worth, worth, lanes32(lane, lane, lane, lane))));
  k.do(v128.store32Lane(at, m, 0));
  const l = f32.add(f32.mul(f32.load(at, 4), f32x4.lane(worth, 0)), f32.mul(sum4(k, sum), f32x4.lane(worth, 1)));
  k.do(f32.store(at, l, 4));
  return { correction, step };
}

/** The largest of `bytes` / 4 scores, a multiple of 4 of them, or `least`. */
function largestOf(k: Kernel, scores: I32, bytes: I32, least: F32): F32 {
  const largest = k.v128(f32x4.splat(f32.max(least, f32.const(NOWHERE / 2))));
  const from = k.i32(scores);
  k.for(0, bytes, 16, i => k.set(largest, f32x4.max(largest, v128.load(i32.add(from, i)))));
  return max4(k, largest);
}

/** Scores to 2^(score - top) in place; gives their sum. A score that counts for nothing is far below any top. */
function weigh(k: Kernel, scores: I32, count: I32, top: F32, relaxed: boolean): F32 {
  const from = k.i32(scores);
  const [most, sum, weight] = [k.v128(f32x4.splat(top)), k.v128(v128.zero), k.v128()];
  k.for(0, i32.mul(count, 4), 16, i => {
    k.set(weight, exp2x4(k, f32x4.sub(v128.load(i32.add(from, i)), most), relaxed));
    k.set(sum, f32x4.add(sum, weight));
    k.do(v128.store(i32.add(from, i), weight));
  });
  return k.f32(sum4(k, sum));
}

/** Folds `count` states that lie `stride` apart into the one at `state`, all with n sums. */
export function mergeStates(k: Kernel, state: I32, others: I32, count: I32, stride: number, n: number): void {
  const [own, first] = [k.i32(state), k.i32(others)];
  const end = k.i32(i32.add(first, i32.mul(count, stride)));
  const m = k.v128(v128.load32Splat(own));
  k.forAddresses(first, end, stride, other => k.set(m, f32x4.max(m, v128.load32Splat(other))));
  const worth = k.v128(exp2x4(k, f32x4.sub(v128.load32Splat(own), m)));
  // l is summed like what follows it; m is written over in the end.
  k.for(0, stateBytes(n), 16, i => {
    const at = k.i32(i32.add(own, i));
    k.do(v128.store(at, f32x4.mul(v128.load(at), worth)));
  });
  k.forAddresses(first, end, stride, other => {
    k.set(worth, exp2x4(k, f32x4.sub(v128.load32Splat(other), m)));
    k.for(0, stateBytes(n), 16, i => {
      const at = k.i32(i32.add(own, i));
      k.do(v128.store(at, f32x4.add(v128.load(at), f32x4.mul(v128.load(i32.add(other, i)), worth))));
    });
  });
  k.do(v128.store32Lane(own, m, 0));
}
