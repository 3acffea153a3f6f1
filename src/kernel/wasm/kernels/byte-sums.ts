/** Sums of bytes from lookup tables, 16 tokens per vector, and the scores that they become. */
import { f32x4, type I32, i16x8, i32x4, type Local, lanes16, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { multiplyAdd } from '../ops.ts';

/** Even and odd bytes are summed separately: `raw` adds 16-bit lanes with both, `odd` the high bytes alone. */
interface ByteSums {
  raw: Local<'v128'>;
  odd: Local<'v128'>;
}

export const byteSums = (k: Kernel): ByteSums => ({ raw: k.v128(), odd: k.v128() });

export function clearByteSums(k: Kernel, { raw, odd }: ByteSums): void {
  k.set(raw, v128.zero);
  k.set(odd, v128.zero);
}

export function addBytes(k: Kernel, { raw, odd }: ByteSums, bytes: Local<'v128'>): void {
  k.set(raw, i16x8.add(raw, bytes));
  k.set(odd, i16x8.add(odd, i16x8.shrU(bytes, 8)));
}

/** Interleave the even and odd sums of 16 tokens. */
const INTERLEAVE = [lanes16(0, 8, 1, 9, 2, 10, 3, 11), lanes16(4, 12, 5, 13, 6, 14, 7, 15)];

/** Calls `store` for each four tokens with sum x scale + constant, which are two f32 at `scales` + `offset`. */
export function scoreByteSums(
  k: Kernel,
  relaxed: boolean,
  { raw, odd }: ByteSums,
  scales: I32,
  offset: number,
  store: (score: V128, n: number) => void,
): void {
  k.set(raw, i16x8.sub(raw, i16x8.shl(odd, 8)));
  const [scale, constant] = [0, 4].map(part => k.v128(v128.load32Splat(scales, offset + part)));
  INTERLEAVE.forEach((lanes, half) => {
    const eight = k.v128(v128.shuffle(raw, odd, lanes));
    [i32x4.extendLowU(eight), i32x4.extendHighU(eight)].forEach((four, quarter) => {
      store(multiplyAdd(relaxed)(f32x4.fromI32(four), scale, constant), 2 * half + quarter);
    });
  });
}
