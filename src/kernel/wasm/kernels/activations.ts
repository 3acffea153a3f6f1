/**
 * Activations as the matmul kernels want them: integers in blocks of 32 columns, in tiles of one row or four. For each
 * block a tile of T rows holds
 *
 *   bytes    8 x T x 4 int8: columns 4 i to 4 i + 3 of every row
 *   scales   T x f32
 *   sums     3 x T x f32: scale x sum of columns 0-15, of 16-31, of all
 *   words    16 x T x 2 int16, the same numbers again: columns 0 2, 1 3, 4 6, 5 7, ... of every row
 *
 * so that with four rows a vector holds the same columns of all. Rows that fill up the last tile are left as they are.
 */
import { f32, f32x4, i8x16, i16x8, i32, i32x4, lanes16, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { max4, share, sum4 } from '../ops.ts';

export const TILES = [1, 4] as const;
export type TileRows = (typeof TILES)[number];
export const tileOf = (rows: number): TileRows => (rows === 1 ? 1 : 4);
export const tileBlockBytes = (tile: TileRows) => 112 * tile;
/** Where the parts of a block lie. */
export const tileOffsets = (tile: TileRows) => ({ scales: 32 * tile, sums: 36 * tile, words: 48 * tile });
export const activationBytes = (rows: number, cols: number) =>
  Math.ceil(rows / tileOf(rows)) * (cols / 32) * tileBlockBytes(tileOf(rows));

/**
 * quantizeT(x, out, rows, cols): rows of f32 to integers in blocks of 32. The largest becomes 127; in precise mode it
 * becomes 32767, only the int16 are right, and rounding is no longer seen in the text.
 */
export function quantize(tile: TileRows, precise: boolean): Kernel {
  const largestCode = precise ? 32767 : 127;
  const k = new Kernel(`quantize${tile}`, Array(7).fill('i32'));
  const [x, out, rows, cols, chunk, chunks] = k.params.map((_, i) => k.i32Param(i));
  const { from, to } = share(k, rows, 1, chunk, chunks);
  const at = tileOffsets(tile);
  const v = Array.from({ length: 8 }, () => k.v128());
  // Adding 1.5 x 2^23 rounds to a whole number and leaves it in the low bits.
  const magic = 12582912;
  const tileBytes = k.i32(i32.mul(i32.shrU(cols, 5), tileBlockBytes(tile)));
  k.for(from, to, 1, row => {
    const source = k.i32(i32.add(x, i32.mul(i32.mul(row, cols), 4)));
    const lane = tile === 1 ? 0 : i32.mul(i32.and(row, tile - 1), 4);
    const block = k.i32(i32.add(i32.add(out, i32.mul(i32.divU(row, tile), tileBytes)), lane));
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
      const words = halves.map(w => k.v128(v128.shuffle(w, w, lanes16(0, 2, 1, 3, 4, 6, 5, 7))));
      const bytes = [0, 2].map(n => k.v128(i8x16.narrowS(halves[n], halves[n + 1])));
      const spread = (offset: number) => (vector: (typeof words)[number], n: number) => {
        for (let i = 0; i < 4; i++) k.do(v128.store32Lane(block, vector, i, offset + 4 * tile * (4 * n + i)));
      };
      bytes.forEach(spread(0));
      words.forEach(spread(at.words));
      const scale = k.f32(f32.mul(max, f32.const(1 / largestCode)));
      k.do(f32.store(block, scale, at.scales));
      const sums = [0, 4].map(first => {
        const [a, b, c, d] = v.slice(first, first + 4);
        const sum = f32x4.fromI32(i32x4.add(i32x4.add(a, b), i32x4.add(c, d)));
        return k.f32(f32.mul(scale, sum4(k, sum)));
      });
      [...sums, f32.add(sums[0], sums[1])].forEach((sum, n) => {
        k.do(f32.store(block, sum, at.sums + 4 * tile * n));
      });
      k.increment(source, 128);
      k.increment(block, tileBlockBytes(tile));
    });
  });
  return k;
}
