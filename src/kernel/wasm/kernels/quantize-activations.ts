/**
 * Quantizes activations for GEMV and GEMM: integers in blocks of 32 columns and tiles of four rows. A tile holds for
 * each block
 *
 *   codes    int8: 8 x 4 x 4 int8, columns 4 i to 4 i + 3 of every row
 *            int16: 16 x 4 x 2 int16, columns 0 2, 1 3, 4 6, 5 7, ... of every row
 *   scales   4 x f32
 *   sums     3 x 4 x f32: scale x sum of columns 0-15, of columns 16-31, of all columns
 *            `offset8`, which is int8 for weights whose codes have an offset: minus the sums of the codes, as i32
 *
 * Missing rows of the last tile are not written. For GEMV the one row is copied to all four rows of its tile.
 */
import { f32, f32x4, i8x16, i16x8, i32, i32x4, index, type Local, lanes16, lanes32, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { chunkRange, MAX_INT16, reduceAdd, reduceMax, roundToI32 } from '../ops.ts';
import { chunked } from '../task.ts';

export type ActivationType = 'int8' | 'offset8' | 'int16';

export const TILE_ROWS = 4;
/** Byte offsets in a block, behind its codes, and its size. */
export const ACTIVATION_TILE = {
  int8: { scales: 128, sums: 144, size: 192 },
  offset8: { scales: 128, sums: 144, size: 192 },
  int16: { scales: 256, sums: 272, size: 320 },
} as const;
export const activationBytes = (type: ActivationType, rows: number, cols: number) =>
  Math.ceil(rows / TILE_ROWS) * (cols / 32) * ACTIVATION_TILE[type].size;

export const quantizeSignature = (type: ActivationType, kernel: 'gemv' | 'gemm') =>
  chunked(`quantize ${type} ${kernel}`, 'x', 'out', 'rows', 'cols');

/**
 * The largest magnitude of a block becomes 127, or 32767 in precise mode, which uses
 * int16 only and does not visibly change the generated text.
 */
export function quantizeActivations(type: ActivationType, kernel: 'gemv' | 'gemm', precise: boolean): Kernel {
  const maxCode = precise ? MAX_INT16 : 127;
  const oneRow = kernel === 'gemv';
  const tile = ACTIVATION_TILE[type];
  const k = new Kernel(quantizeSignature(type, kernel));
  const { x, out, rows, cols, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, rows, 1, chunk, chunks);
  const v = Array.from({ length: 8 }, () => k.v128());
  const tileBytes = k.i32(i32.mul(i32.shrU(cols, 5), tile.size));
  k.for(from, to, 1, row => {
    const source = k.i32(index(x, 4, i32.mul(row, cols)));
    const lane = i32.mul(i32.and(row, TILE_ROWS - 1), 4);
    const block = k.i32(i32.add(index(out, tileBytes, i32.divU(row, TILE_ROWS)), lane));
    const store = (vector: Local<'v128'>, lane: number, offset: number) => {
      if (oneRow) k.do(v128.store(block, v128.shuffle(vector, vector, lanes32(lane, lane, lane, lane)), offset));
      else k.do(v128.store32Lane(block, vector, lane, offset));
    };
    k.for(0, cols, 32, () => {
      const magnitude = k.v128(v128.zero);
      v.forEach((local, n) => {
        k.set(local, v128.load(source, 16 * n));
        k.set(magnitude, f32x4.max(magnitude, f32x4.abs(local)));
      });
      const max = k.f32(reduceMax(k, magnitude));
      const inverse = k.v128(
        f32x4.splat(f32.select(f32.gt(max, f32.const(0)), f32.div(f32.const(maxCode), max), f32.const(0))),
      );
      for (const local of v) k.set(local, roundToI32(f32x4.mul(local, inverse)));
      const int16 = [0, 2, 4, 6].map(n => k.v128(i16x8.narrowS(v[n], v[n + 1])));
      const codes =
        type === 'int16'
          ? int16.map(w => k.v128(v128.shuffle(w, w, lanes16(0, 2, 1, 3, 4, 6, 5, 7))))
          : [0, 2].map(n => k.v128(i8x16.narrowS(int16[n], int16[n + 1])));
      for (const [n, vector] of codes.entries()) for (let i = 0; i < 4; i++) store(vector, i, 16 * (4 * n + i));
      const scale = k.f32(f32.mul(max, f32.const(1 / maxCode)));
      store(k.v128(f32x4.splat(scale)), 0, tile.scales);
      const integers = [0, 4].map(first => {
        const [a, b, c, d] = v.slice(first, first + 4);
        return k.f32(reduceAdd(k, f32x4.fromI32(i32x4.add(i32x4.add(a, b), i32x4.add(c, d)))));
      });
      const sums = type === 'offset8' ? integers : integers.map(sum => k.f32(f32.mul(scale, sum)));
      [...sums, f32.add(sums[0], sums[1])].forEach((sum, n) => {
        const splat = type === 'offset8' ? i32x4.splat(i32.fromF32(f32.neg(sum))) : f32x4.splat(sum);
        store(k.v128(splat), 0, tile.sums + 16 * n);
      });
      k.increment(source, 128);
      k.increment(block, tile.size);
    });
  });
  return k;
}
