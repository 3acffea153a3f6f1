/**
 * Activations as the matmul kernels want them: integers in blocks of 32 columns, in tiles of four rows. A tile holds,
 * for each block
 *
 *   codes    bytes: 8 x 4 x 4 int8: columns 4 i to 4 i + 3 of every row
 *            words: 16 x 4 x 2 int16: columns 0 2, 1 3, 4 6, 5 7, ... of every row
 *   scales   4 x f32
 *   sums     3 x 4 x f32: scale x sum of columns 0-15, of 16-31, of all
 *
 * Rows that fill up the last tile are left as they are, but a row that comes alone is all four rows of its tile.
 */
import { f32, f32x4, i8x16, i16x8, i32, i32x4, type Local, lanes16, lanes32, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { max4, share, sum4 } from '../ops.ts';

/** Codes of one byte or of two. */
export type Width = 'bytes' | 'words';

export const TILE_ROWS = 4;
/** Where the parts of a block lie behind its codes, and its size. */
export const TILE = {
  bytes: { scales: 128, sums: 144, size: 192 },
  words: { scales: 256, sums: 272, size: 320 },
} as const;
export const activationBytes = (width: Width, rows: number, cols: number) =>
  Math.ceil(rows / TILE_ROWS) * (cols / 32) * TILE[width].size;

export const quantizeName = (width: Width, rows: 'one' | 'many') => `quantize ${width} ${rows}`;

/**
 * quantize(x, out, rows, cols): rows of f32 to integers in blocks of 32. The largest becomes 127; in precise mode it
 * becomes 32767, there are words alone, and rounding is no longer seen in the text.
 */
export function quantize(width: Width, count: 'one' | 'many', precise: boolean): Kernel {
  const largestCode = precise ? 32767 : 127;
  const alone = count === 'one';
  const tile = TILE[width];
  const k = new Kernel(quantizeName(width, count), Array(7).fill('i32'));
  const [x, out, rows, cols, chunk, chunks] = k.params.map((_, i) => k.i32Param(i));
  const { from, to } = share(k, rows, 1, chunk, chunks);
  const v = Array.from({ length: 8 }, () => k.v128());
  // Adding 1.5 x 2^23 rounds to a whole number and leaves it in the low bits.
  const magic = 12582912;
  const tileBytes = k.i32(i32.mul(i32.shrU(cols, 5), tile.size));
  k.for(from, to, 1, row => {
    const source = k.i32(i32.add(x, i32.mul(i32.mul(row, cols), 4)));
    const lane = i32.mul(i32.and(row, TILE_ROWS - 1), 4);
    const block = k.i32(i32.add(i32.add(out, i32.mul(i32.divU(row, TILE_ROWS), tileBytes)), lane));
    const put = (vector: Local<'v128'>, lane: number, offset: number) => {
      if (alone) k.do(v128.store(block, v128.shuffle(vector, vector, lanes32(lane, lane, lane, lane)), offset));
      else k.do(v128.store32Lane(block, vector, lane, offset));
    };
    k.for(0, cols, 32, () => {
      const largest = k.v128(v128.zero);
      v.forEach((local, n) => {
        k.set(local, v128.load(source, 16 * n));
        k.set(largest, f32x4.max(largest, f32x4.abs(local)));
      });
      const max = k.f32(max4(k, largest));
      const inverse = k.v128(
        f32x4.splat(f32.select(f32.gt(max, f32.const(0)), f32.div(f32.const(largestCode), max), f32.const(0))),
      );
      for (const local of v) {
        const shifted = f32x4.add(f32x4.mul(local, inverse), f32x4.const(magic));
        k.set(local, i32x4.sub(shifted, i32x4.const(0x4b400000)));
      }
      const halves = [0, 2, 4, 6].map(n => k.v128(i16x8.narrowS(v[n], v[n + 1])));
      const codes =
        width === 'bytes'
          ? [0, 2].map(n => k.v128(i8x16.narrowS(halves[n], halves[n + 1])))
          : halves.map(w => k.v128(v128.shuffle(w, w, lanes16(0, 2, 1, 3, 4, 6, 5, 7))));
      codes.forEach((vector, n) => {
        for (let i = 0; i < 4; i++) put(vector, i, 16 * (4 * n + i));
      });
      const scale = k.f32(f32.mul(max, f32.const(1 / largestCode)));
      put(k.v128(f32x4.splat(scale)), 0, tile.scales);
      const sums = [0, 4].map(first => {
        const [a, b, c, d] = v.slice(first, first + 4);
        const sum = f32x4.fromI32(i32x4.add(i32x4.add(a, b), i32x4.add(c, d)));
        return k.f32(f32.mul(scale, sum4(k, sum)));
      });
      [...sums, f32.add(sums[0], sums[1])].forEach((sum, n) => {
        put(k.v128(f32x4.splat(sum)), 0, tile.sums + 16 * n);
      });
      k.increment(source, 128);
      k.increment(block, tile.size);
    });
  });
  return k;
}
