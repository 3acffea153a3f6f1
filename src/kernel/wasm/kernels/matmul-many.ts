/**
 * Matrix products of many rows. Eight rows of weights are unpacked once into a panel that the nearest cache holds, and
 * all tiles of activations go over it: a lane is a row of weights, the activations of a row are spread over the lanes
 * as they are loaded. Two vectors of weights times four rows of activations are eight sums of integers, which stay in
 * registers for a block; the sums of floats lie in memory between blocks. A turn of the inner loop is as long as
 * registers allow: V8 moves its loads ahead of everything that is not a store.
 *
 * Each sum runs over the blocks in order, in the operations of kernels/matmul.ts: a row gives the same bits alone.
 */
import { f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, lanes32, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { multiplyAdd, share } from '../ops.ts';
import { blockBytes, type PackedFormat } from '../pack-weights.ts';
import { TILE, TILE_ROWS } from './activations.ts';
import { type Arithmetic, byteCodes, matmulName, scalesOf, storeOutputs, wordCodes } from './matmul.ts';

/** Vectors of four rows of weights side by side in a panel. */
const VECTORS = 2;
const PANEL_ROWS = 4 * VECTORS;
/** Most bytes of a panel: half of a small first-level cache. */
const PANEL = 24 * 1024;
/** Rows of activations that go over a panel. */
const STRIP = 256;
/** A tile's sums: for each of its rows, those of the panel's. */
const TILE_SUMS = TILE_ROWS * VECTORS * 16;
const SUMS = (STRIP / TILE_ROWS) * TILE_SUMS;
/** Scratch a thread needs. */
export const MATMUL_SCRATCH = PANEL + SUMS;

/**
 * A block of a panel: the vectors' scales, group by group, then their minima, if there are any; then their codes, four
 * columns of bytes or two of words at a time.
 */
function panelLayout({ group, mins }: PackedFormat, { width }: Arithmetic) {
  const groups = 32 / group;
  const codes = 16 * VECTORS * groups * (mins ? 2 : 1);
  const steps = width === 'bytes' ? 8 : 16;
  return { groups, codes, steps, bytes: codes + 16 * VECTORS * steps };
}

/** The arguments of kernels/matmul.ts, then scratch for every thread. */
export function matmulMany(format: PackedFormat, arithmetic: Arithmetic): Kernel {
  const k = new Kernel(matmulName(format, 'many'), Array(12).fill('i32'));
  const [x, w, out, bias, add, rows, outputs, cols, scratch, chunk, chunks, thread] = k.params.map((_, i) =>
    k.i32Param(i),
  );
  const layout = panelLayout(format, arithmetic);
  const most = Math.floor(PANEL / layout.bytes);
  const blocks = k.i32(i32.shrU(cols, 5));
  const fourRows = k.i32(i32.mul(blocks, blockBytes(format)));
  const tileBlock = TILE[arithmetic.width].size;
  const tileBytes = k.i32(i32.mul(blocks, tileBlock));
  const { from, to } = share(k, outputs, PANEL_ROWS, chunk, chunks);
  const panel = k.i32(i32.add(scratch, i32.mul(thread, MATMUL_SCRATCH)));
  const sums = k.i32(i32.add(panel, PANEL));
  const [source, target, tile, sum, count] = [k.i32(), k.i32(), k.i32(), k.i32(), k.i32()];

  k.for(from, to, PANEL_ROWS, o => {
    // Where the last panel lacks a vector, its first stands in for it.
    const second = k.i32(i32.select(i32.gtS(i32.sub(outputs, o), 4), fourRows, 0));
    k.for(0, rows, STRIP, first => {
      const end = k.i32(i32.add(first, STRIP));
      k.set(end, i32.select(i32.ltS(end, rows), end, rows));
      k.for(0, SUMS, 16, i => k.do(v128.store(i32.add(sums, i), v128.zero)));
      k.set(source, i32.add(w, i32.mul(i32.shrU(o, 2), fourRows)));
      k.for(0, blocks, most, start => {
        k.set(count, i32.sub(blocks, start));
        k.set(count, i32.select(i32.ltS(count, most), count, most));
        k.set(target, panel);
        k.for(0, count, 1, () => {
          fillPanel(k, format, arithmetic, [source, k.i32(i32.add(source, second))], target);
          k.increment(source, blockBytes(format));
          k.increment(target, layout.bytes);
        });
        k.set(sum, sums);
        k.for(first, end, TILE_ROWS, row => {
          k.set(tile, i32.add(x, i32.mul(i32.shrU(row, 2), tileBytes)));
          k.increment(tile, i32.mul(start, tileBlock));
          k.set(target, panel);
          k.for(0, count, 1, () => {
            addBlock(k, format, arithmetic, tile, target, sum);
            k.increment(tile, tileBlock);
            k.increment(target, layout.bytes);
          });
          k.increment(sum, TILE_SUMS);
        });
      });
      k.set(sum, sums);
      k.for(first, end, 1, row => {
        for (let v = 0; v < VECTORS; v++) {
          const [value, at] = [k.v128(v128.load(sum, 16 * v)), i32.add(o, 4 * v)];
          k.if(i32.gtS(outputs, at), () => storeOutputs(k, value, out, row, outputs, at, bias, add));
        }
        k.increment(sum, 16 * VECTORS);
      });
    });
  });
  return k;
}

/** A block of every vector into the panel. */
function fillPanel(k: Kernel, format: PackedFormat, arithmetic: Arithmetic, blocks: I32[], panel: I32): void {
  blocks.forEach((block, v) => {
    const scales = scalesOf(k, format, block).map(vector => k.v128(vector));
    const codes = (arithmetic.width === 'bytes' ? byteCodes : wordCodes)(k, format, block, i8x16.const(15));
    [...scales, ...codes].forEach((vector, n) => {
      k.do(v128.store(panel, vector, 16 * (VECTORS * n + v)));
    });
  });
}

/** The sums of eight rows of weights with one tile += one block. */
function addBlock(k: Kernel, format: PackedFormat, arithmetic: Arithmetic, tile: I32, panel: I32, sums: I32): void {
  const bytes = arithmetic.width === 'bytes';
  const { scales: scalesAt, sums: sumsAt } = TILE[arithmetic.width];
  const madd = multiplyAdd(arithmetic.fused);
  const { groups, codes, steps } = panelLayout(format, arithmetic);
  const integers = Array.from({ length: TILE_ROWS }, () => Array.from({ length: VECTORS }, () => k.v128()));
  const [weights, activations] = [k.i32(i32.add(panel, codes)), k.i32(tile)];
  for (let g = 0; g < groups; g++) {
    // Codes are below 16 where products are of bytes: eight pairs of them stay within int16.
    const [multiply, plus] = bytes
      ? [(x: V128, codes: V128) => i16x8.relaxedDot(x, codes), i16x8.add]
      : [(x: V128, codes: V128) => i32x4.dot(codes, x), i32x4.add];
    const step = (take: (sum: Local<'v128'>, product: V128) => V128) => {
      const vectors = Array.from({ length: VECTORS }, (_, v) => k.v128(v128.load(weights, 16 * v)));
      const spread = integers.map((_, r) => k.v128(v128.load32Splat(activations, 4 * r)));
      integers.forEach((row, r) => {
        row.forEach((sum, v) => {
          k.set(sum, take(sum, multiply(spread[r], vectors[v])));
        });
      });
      k.increment(weights, 16 * VECTORS);
      k.increment(activations, 16);
    };
    step((_, product) => product);
    k.for(1, steps / groups, 1, () => step(plus));
    const scaleOf = (v: number) => v128.load(panel, 16 * (VECTORS * g + v));
    const minOf = (v: number) => v128.load(panel, 16 * (VECTORS * (groups + g) + v));
    const scales = k.v128(v128.load(tile, scalesAt));
    // The sums of a block's halves, and of all of it.
    const totals = k.v128(v128.load(tile, sumsAt + 16 * (format.group === 16 ? g : 2)));
    const spread = (vector: Local<'v128'>, r: number) => k.v128(v128.shuffle(vector, vector, lanes32(r, r, r, r)));
    integers.forEach((row, r) => {
      const [scale, total] = [spread(scales, r), spread(totals, r)];
      row.forEach((integer, v) => {
        const at = 16 * (VECTORS * r + v);
        const dot = bytes ? i32x4.dot(integer, i16x8.const(1)) : integer;
        let sum = madd(f32x4.mul(scaleOf(v), scale), f32x4.fromI32(dot), v128.load(sums, at));
        if (format.mins) sum = madd(minOf(v), total, sum);
        k.do(v128.store(sums, sum, at));
      });
    });
  }
}
