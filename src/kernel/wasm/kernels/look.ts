/** How much one query looks at each of many keys: the kernel by which calibration weighs its samples. */
import { f32, f32x4, i32, v128 } from '../emit.ts';
import { Kernel, moduleBytes } from '../module.ts';
import { clearState, NOWHERE, softmax, stateBytes } from './softmax.ts';

/** Keys that lie together: [block][dim][key]. */
export const KEY_BLOCK = 16;

/** Bytes of the softmax's state; nothing is summed in it. */
export const LOOK_STATE = stateBytes(0);

/**
 * look(query, keys, count, scores, sums, state): sums[n] += p[n]^2 for the first `count` keys, p being the softmax (base
 * 2) of their dots with the query. scores and sums have room for whole blocks.
 */
export function lookModule(dims: number, memory: { maxPages: number; shared: boolean }): Uint8Array<ArrayBuffer> {
  const k = new Kernel('look', Array(6).fill('i32'));
  const [query, keys, count, scores, sums, state] = k.params.map((_, i) => k.i32Param(i));
  const padded = k.i32(i32.and(i32.add(count, KEY_BLOCK - 1), -KEY_BLOCK));
  const dots = [0, 1, 2, 3].map(() => k.v128());
  const key = k.i32(keys);
  k.for(0, padded, KEY_BLOCK, first => {
    for (const dot of dots) k.set(dot, v128.zero);
    const x = k.v128();
    k.for(0, 4 * dims, 4, d => {
      k.set(x, v128.load32Splat(i32.add(query, d)));
      dots.forEach((dot, i) => {
        k.set(dot, f32x4.add(dot, f32x4.mul(x, v128.load(key, 16 * i))));
      });
      k.increment(key, 4 * KEY_BLOCK);
    });
    const to = k.i32(i32.add(scores, i32.mul(first, 4)));
    dots.forEach((dot, i) => {
      k.do(v128.store(to, dot, 16 * i));
    });
  });
  k.for(count, padded, 1, n => k.do(f32.store(i32.add(scores, i32.mul(n, 4)), f32.const(NOWHERE))));
  clearState(k, state, 0);
  softmax(k, scores, padded, state, false);
  const share = k.v128(f32x4.splat(f32.div(f32.const(1), f32.load(state, 4))));
  const p = k.v128();
  k.for(0, i32.mul(padded, 4), 16, i => {
    const sum = k.i32(i32.add(sums, i));
    // Squares of less would be subnormal, which is slow.
    k.set(p, f32x4.max(f32x4.mul(share, v128.load(i32.add(scores, i))), f32x4.const(2 ** -60)));
    k.do(v128.store(sum, f32x4.add(v128.load(sum), f32x4.mul(p, p))));
  });
  return moduleBytes([k], memory);
}
