/**
 * The running softmax. A state is {m, l, 0, 0, o[n]} in f32, m in powers of two: queries come multiplied by log2 e, so
 * that weights are exp2 of a difference, a few operations for four tokens.
 */
import { type F32, f32, f32x4, type I32, i32, i32x4, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { max4, sum4 } from '../ops.ts';

/** A score that counts for nothing. */
export const NOWHERE = -1e30;
export const STATE_HEAD = 16;
export const stateBytes = (n: number) => STATE_HEAD + 4 * n;

/** 2^x of four values that are 0 or less; 2^-100 is as good as zero, and keeps subnormals away. */
export function exp2x4(k: Kernel, value: V128): V128 {
  const magic = f32x4.const(12582912);
  const x = k.v128(f32x4.max(value, f32x4.const(-100)));
  const shifted = k.v128(f32x4.add(x, magic));
  const rest = k.v128(f32x4.sub(x, f32x4.sub(shifted, magic)));
  let p = f32x4.const(0.0013333558);
  for (const c of [0.0096181291, 0.0555041087, 0.240226507, Math.LN2, 1]) {
    p = f32x4.add(f32x4.mul(p, rest), f32x4.const(c));
  }
  // The low bits of the shifted value are the whole part: they go straight into the exponent.
  return i32x4.add(p, i32x4.shl(shifted, 23));
}

export const exp2x1 = (k: Kernel, x: F32): F32 => f32x4.lane(exp2x4(k, f32x4.splat(x)), 0);

export function clearState(k: Kernel, state: I32, n: number): void {
  const at = k.i32(state);
  k.do(f32.store(at, f32.const(NOWHERE)), f32.store(at, f32.const(0), 4));
  k.for(STATE_HEAD, stateBytes(n), 16, i => k.do(v128.store(i32.add(at, i), v128.zero)));
}

/**
 * Takes `count` scores (a multiple of 4) of one head into its state's m and l, turns them into weights in place, and
 * gives the factor that what was summed before must be multiplied by.
 */
export function softmax(k: Kernel, scores: I32, count: I32, state: I32): F32 {
  const bytes = k.i32(i32.mul(count, 4));
  const from = k.i32(scores);
  const at = k.i32(state);
  const old = k.f32(f32.load(at));
  const largest = k.v128(f32x4.splat(old));
  k.for(0, bytes, 16, i => k.set(largest, f32x4.max(largest, v128.load(i32.add(from, i)))));
  const m = k.f32(max4(k, largest));
  const correction = k.f32(exp2x1(k, f32.sub(old, m)));
  const [top, sum, score, weight] = [k.v128(f32x4.splat(m)), k.v128(v128.zero), k.v128(), k.v128()];
  k.for(0, bytes, 16, i => {
    k.set(score, v128.load(i32.add(from, i)));
    k.set(weight, v128.and(exp2x4(k, f32x4.sub(score, top)), f32x4.gt(score, f32x4.const(NOWHERE / 2))));
    k.set(sum, f32x4.add(sum, weight));
    k.do(v128.store(i32.add(from, i), weight));
  });
  k.do(f32.store(at, m));
  k.do(f32.store(at, f32.add(f32.mul(f32.load(at, 4), correction), sum4(k, sum)), 4));
  return correction;
}

/** Folds the state at `other` into the one at `state`, both with n sums. */
export function mergeStates(k: Kernel, state: I32, other: I32, n: number): void {
  const [a, b] = [k.i32(state), k.i32(other)];
  const m = k.f32(f32.max(f32.load(a), f32.load(b)));
  const [x, y] = [a, b].map(at => k.f32(exp2x1(k, f32.sub(f32.load(at), m))));
  k.do(f32.store(a, f32.add(f32.mul(f32.load(a, 4), x), f32.mul(f32.load(b, 4), y)), 4));
  k.do(f32.store(a, m));
  const [vx, vy] = [k.v128(f32x4.splat(x)), k.v128(f32x4.splat(y))];
  k.for(STATE_HEAD, stateBytes(n), 16, i => {
    const sum = f32x4.add(f32x4.mul(v128.load(i32.add(a, i)), vx), f32x4.mul(v128.load(i32.add(b, i)), vy));
    k.do(v128.store(i32.add(a, i), sum));
  });
}
