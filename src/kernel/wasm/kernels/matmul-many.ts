/**
 * Matrix products of many rows. Four rows of weights are unpacked once into a panel that the nearest cache holds, each
 * code spread over the four rows of an activation tile, and all tiles go over it: a lane is a row of activations, every
 * load a plain one. The sums of a tile lie in memory between blocks. That costs little, and V8, which moves loads ahead
 * of everything that is not a store, then cannot load the operands of all sums at once and spill them.
 *
 * Each sum runs over the blocks in order, in the operations of kernels/matmul.ts: a row gives the same bits alone.
 */
import { f32x4, type I32, i8x16, i32, type Local, lanes32, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { multiplyAdd, share } from '../ops.ts';
import { blockBytes, type PackedFormat } from '../pack-weights.ts';
import { TILE } from './activations.ts';
import {
  type Arithmetic,
  byteCodes,
  dotBytes,
  dotWords,
  matmulName,
  scalesOf,
  storeOutputs,
  wordCodes,
} from './matmul.ts';

/** Most bytes of a panel: half of a small first-level cache. */
const PANEL = 24 * 1024;
/** Rows of activations that go over a panel. */
const STRIP = 256;
const SUMS = (STRIP / TILE.rows) * 4 * 16;
/** Scratch a thread needs. */
export const MATMUL_SCRATCH = PANEL + SUMS;

const panelRowBytes = ({ group, mins }: PackedFormat, { bytes }: Arithmetic) =>
  (32 / group) * (mins ? 2 : 1) * 16 + (bytes ? 128 : 256);

/** The arguments of kernels/matmul.ts, then scratch for every thread. */
export function matmulMany(format: PackedFormat, arithmetic: Arithmetic): Kernel {
  const k = new Kernel(matmulName(format, 'many'), Array(12).fill('i32'));
  const [x, w, out, bias, add, rows, outputs, cols, scratch, chunk, chunks, thread] = k.params.map((_, i) =>
    k.i32Param(i),
  );
  const stride = panelRowBytes(format, arithmetic);
  const most = Math.floor(PANEL / (4 * stride));
  const blocks = k.i32(i32.shrU(cols, 5));
  const groupBytes = k.i32(i32.mul(blocks, blockBytes(format)));
  const tileBytes = k.i32(i32.mul(blocks, TILE.bytes));
  const { from, to } = share(k, outputs, 4, chunk, chunks);
  const panel = k.i32(i32.add(scratch, i32.mul(thread, MATMUL_SCRATCH)));
  const sums = k.i32(i32.add(panel, PANEL));
  const [source, target, tile, sum, count] = [k.i32(), k.i32(), k.i32(), k.i32(), k.i32()];

  k.for(from, to, 4, o => {
    k.for(0, rows, STRIP, first => {
      const end = k.i32(i32.add(first, STRIP));
      k.set(end, i32.select(i32.ltS(end, rows), end, rows));
      k.for(0, SUMS, 16, i => k.do(v128.store(i32.add(sums, i), v128.zero)));
      k.set(source, i32.add(w, i32.mul(i32.shrU(o, 2), groupBytes)));
      k.for(0, blocks, most, start => {
        k.set(count, i32.sub(blocks, start));
        k.set(count, i32.select(i32.ltS(count, most), count, most));
        k.set(target, panel);
        k.for(0, count, 1, () => {
          fillPanel(k, format, arithmetic, source, target);
          k.increment(source, blockBytes(format));
          k.increment(target, 4 * stride);
        });
        k.set(sum, sums);
        k.for(first, end, TILE.rows, row => {
          k.set(tile, i32.add(x, i32.mul(i32.shrU(row, 2), tileBytes)));
          k.increment(tile, i32.mul(start, TILE.bytes));
          k.set(target, panel);
          k.for(0, count, 1, () => {
            addBlock(k, format, arithmetic, tile, target, sum);
            k.increment(tile, TILE.bytes);
            k.increment(target, 4 * stride);
          });
          k.increment(sum, 4 * 16);
        });
      });
      k.set(sum, sums);
      k.for(first, end, TILE.rows, row => {
        transpose4(
          k,
          [0, 1, 2, 3].map(r => k.v128(v128.load(sum, 16 * r))),
        ).forEach((value, t) => {
          const at = i32.add(row, t);
          k.if(i32.ltS(at, rows), () => storeOutputs(k, value, out, at, outputs, o, bias, add));
        });
        k.increment(sum, 4 * 16);
      });
    });
  });
  return k;
}

/** A block of four rows into the panel; for each row: scales, minima, codes, every vector one value over and over. */
function fillPanel(k: Kernel, format: PackedFormat, arithmetic: Arithmetic, block: I32, panel: I32): void {
  const stride = panelRowBytes(format, arithmetic);
  const scales = scalesOf(k, format, block).map(v => k.v128(v));
  const codes = (arithmetic.bytes ? byteCodes : wordCodes)(k, format, block, i8x16.const(15)).map(v => k.v128(v));
  [...scales, ...codes].forEach((vector, n) => {
    for (let r = 0; r < 4; r++) {
      k.do(v128.store(panel, v128.shuffle(vector, vector, lanes32(r, r, r, r)), r * stride + 16 * n));
    }
  });
}

/** The sums of four rows of weights with one tile += one block. */
function addBlock(k: Kernel, format: PackedFormat, arithmetic: Arithmetic, tile: I32, panel: I32, sums: I32): void {
  const { bytes } = arithmetic;
  const groups = 32 / format.group;
  const stride = panelRowBytes(format, arithmetic);
  const codesAt = 16 * groups * (format.mins ? 2 : 1);
  const n = (bytes ? 8 : 16) / groups;
  const activations = Array.from({ length: groups }, (_, g) =>
    Array.from({ length: n }, (_, i) => k.v128(v128.load(tile, (bytes ? 0 : TILE.words) + 16 * (g * n + i)))),
  );
  const scale = k.v128(v128.load(tile, TILE.scales));
  for (let r = 0; r < 4; r++) {
    const row = r * stride;
    let sum: V128 = v128.load(sums, 16 * r);
    activations.forEach((vectors, g) => {
      const dot = (bytes ? dotBytes : dotWords)(
        vectors.map((vector, i) => [vector, v128.load(panel, row + codesAt + 16 * (g * n + i))] as const),
      );
      const scaled = f32x4.mul(v128.load(panel, row + 16 * g), scale);
      sum = multiplyAdd(arithmetic.fused)(scaled, f32x4.fromI32(dot), sum);
      if (format.mins) {
        // The sums of a block's halves, and of all of it.
        const total = v128.load(tile, TILE.sums + 16 * (format.group === 16 ? g : 2));
        sum = multiplyAdd(arithmetic.fused)(v128.load(panel, row + 16 * (groups + g)), total, sum);
      }
    });
    k.do(v128.store(sums, sum, 16 * r));
  }
}

/** Lane j of vector i to lane i of vector j. */
function transpose4(k: Kernel, [a, b, c, d]: readonly Local<'v128'>[]): Local<'v128'>[] {
  const [ab, cd, ef, gh] = [
    [a, b, [0, 4, 1, 5]],
    [c, d, [0, 4, 1, 5]],
    [a, b, [2, 6, 3, 7]],
    [c, d, [2, 6, 3, 7]],
  ].map(([x, y, lanes]) => k.v128(v128.shuffle(x as V128, y as V128, lanes32(...(lanes as number[])))));
  return [
    v128.shuffle(ab, cd, lanes32(0, 1, 4, 5)),
    v128.shuffle(ab, cd, lanes32(2, 3, 6, 7)),
    v128.shuffle(ef, gh, lanes32(0, 1, 4, 5)),
    v128.shuffle(ef, gh, lanes32(2, 3, 6, 7)),
  ].map(vector => k.v128(vector));
}
