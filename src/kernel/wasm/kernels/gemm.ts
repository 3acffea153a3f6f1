/**
 * GEMM: several rows of quantized activations times packed weights. Blocks of eight rows of weights are unpacked into a
 * panel, and all tiles of activations are multiplied by it: each lane holds one row of weights, and activations are
 * broadcast to all lanes as they are loaded. Two vectors of weights x four rows of activations are eight integer sums,
 * which stay in registers for one block; f32 sums are kept in memory between panels. The inner loop is unrolled as far as
 * registers allow, because V8 moves loads ahead of everything but stores.
 *
 * For many rows a panel has as many blocks as fit into the L1 cache, so that each tile is read in one go. For few rows it
 * has one: its products are computed while the next block arrives from memory.
 *
 * Blocks are added in the same order and with the same operations as in gemv.ts, so results are bit-identical.
 */
import { f32x4, type I32, i16x8, i32, i32x4, index, type Local, lanes32, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { addDotInt8, chunkRange, multiplyAdd } from '../ops.ts';
import { blockBytes, type PackedFormat } from '../pack-weights.ts';
import {
  blockScales,
  codeConstant,
  type GemmArithmetic,
  gemmKernelName,
  gemmSignature,
  initialSum,
  int8Codes,
  int16Codes,
  storeOutputs,
  sumIndex,
} from './gemv.ts';
import { ACTIVATION_TILE, TILE_ROWS } from './quantize-activations.ts';

/** Vectors of four weight rows per panel. */
const PANEL_VECTORS = 2;
const PANEL_ROWS = 4 * PANEL_VECTORS;
/** Half of a small L1 cache. */
const MAX_PANEL_BYTES = 24 * 1024;
/** Up to this many rows, reading weights takes longer than the products. */
const FEW_ROWS = 24;
/** Max rows of activations per panel. */
const STRIP_ROWS = 256;
/** f32 sums of a tile: [activation row][weight row]. */
const TILE_SUM_BYTES = TILE_ROWS * PANEL_VECTORS * 16;
const STRIP_SUM_BYTES = (STRIP_ROWS / TILE_ROWS) * TILE_SUM_BYTES;
/** Scratch bytes per thread. */
export const GEMM_SCRATCH = MAX_PANEL_BYTES + STRIP_SUM_BYTES;

/**
 * Layout of a panel's block: scales of each group, minima if there are any, then codes, four int8 columns or two int16
 * columns per vector.
 */
function panelLayout({ group, mins }: PackedFormat, { activations }: GemmArithmetic) {
  const groups = 32 / group;
  const codes = 16 * PANEL_VECTORS * groups * (mins ? 2 : 1);
  const steps = activations === 'int16' ? 16 : 8;
  return { groups, codes, steps, bytes: codes + 16 * PANEL_VECTORS * steps };
}

/** `scratch` has GEMM_SCRATCH bytes per thread. */
export function gemm(format: PackedFormat, arithmetic: GemmArithmetic): Kernel {
  const k = new Kernel(gemmSignature(gemmKernelName(format, 'gemm')));
  const { x, w, rows, outputs, cols, scratch, chunk, chunks, thread } = k.params;
  const layout = panelLayout(format, arithmetic);
  const blocks = k.i32(i32.shrU(cols, 5));
  const rowTileBytes = k.i32(i32.mul(blocks, blockBytes(format)));
  const tileBlock = ACTIVATION_TILE[arithmetic.activations].size;
  const tileBytes = k.i32(i32.mul(blocks, tileBlock));
  const { from, to } = chunkRange(k, outputs, PANEL_ROWS, chunk, chunks);
  const panel = k.i32(index(scratch, GEMM_SCRATCH, thread));
  const sums = k.i32(i32.add(panel, MAX_PANEL_BYTES));
  const [weights, firstTile, target, tile, sum, count] = Array.from({ length: 6 }, () => k.i32());

  k.for(from, to, PANEL_ROWS, o => {
    // If the last panel has only one vector, it is used twice.
    const second = k.i32(i32.select(i32.gtS(i32.sub(outputs, o), 4), rowTileBytes, 0));
    k.for(0, rows, STRIP_ROWS, first => {
      const end = k.i32(i32.add(first, STRIP_ROWS));
      k.set(end, i32.min(end, rows));
      const forTiles = (body: (row: I32) => void) => {
        k.set(sum, sums);
        k.for(first, end, TILE_ROWS, row => {
          body(row);
          k.increment(sum, TILE_SUM_BYTES);
        });
      };
      forTiles(() => {
        for (let i = 0; i < TILE_SUM_BYTES; i += 16) k.do(v128.store(sum, v128.zero, i));
      });
      k.set(weights, index(w, rowTileBytes, i32.shrU(o, 2)));
      k.set(firstTile, index(x, tileBytes, i32.shrU(first, 2)));
      const addPanels = (panelBlocks: number) =>
        k.for(0, blocks, panelBlocks, start => {
          k.set(count, i32.sub(blocks, start));
          k.set(count, i32.min(count, panelBlocks));
          const forBlocks = (body: () => void) => {
            k.set(target, panel);
            if (panelBlocks === 1) return body();
            k.for(0, count, 1, () => {
              body();
              k.increment(target, layout.bytes);
            });
          };
          forBlocks(() => {
            fillPanel(k, format, arithmetic, [weights, k.i32(i32.add(weights, second))], target);
            k.increment(weights, blockBytes(format));
          });
          forTiles(row => {
            const add = (tileRows: number) => {
              k.set(tile, index(firstTile, tileBytes, i32.shrU(i32.sub(row, first), 2)));
              forBlocks(() => {
                addBlock(k, format, arithmetic, tile, tileRows, target, sum);
                k.increment(tile, tileBlock);
              });
            };
            k.if(
              i32.gtS(i32.sub(end, row), TILE_ROWS / 2),
              () => add(TILE_ROWS),
              () => add(TILE_ROWS / 2),
            );
          });
          k.increment(firstTile, panelBlocks * tileBlock);
        });
      k.if(
        i32.gtS(rows, FEW_ROWS),
        () => addPanels(Math.floor(MAX_PANEL_BYTES / layout.bytes)),
        () => addPanels(1),
      );
      k.set(sum, sums);
      k.for(first, end, 1, row => {
        for (let v = 0; v < PANEL_VECTORS; v++) {
          const [value, at] = [k.v128(v128.load(sum, 16 * v)), i32.add(o, 4 * v)];
          k.if(i32.gtS(outputs, at), () => storeOutputs(k, value, row, at));
        }
        k.increment(sum, 16 * PANEL_VECTORS);
      });
    });
  });
  return k;
}

/** Unpacks one block of every vector into the panel. */
function fillPanel(k: Kernel, format: PackedFormat, arithmetic: GemmArithmetic, blocks: I32[], panel: I32): void {
  blocks.forEach((block, v) => {
    const scales = blockScales(k, format, block).map(vector => k.v128(vector));
    const codes = (arithmetic.activations === 'int16' ? int16Codes : int8Codes)(k, format, block, codeConstant(format));
    for (const [n, vector] of [...scales, ...codes].entries())
      k.do(v128.store(panel, vector, 16 * (PANEL_VECTORS * n + v)));
  });
}

/** sums += one block of eight weight rows x the first `rows` rows of a tile of activations. */
function addBlock(
  k: Kernel,
  format: PackedFormat,
  arithmetic: GemmArithmetic,
  tile: I32,
  rows: number,
  panel: I32,
  sums: I32,
): void {
  const narrow = arithmetic.activations === 'int8' && !arithmetic.dotAdd;
  const { scales: scalesOffset, sums: sumsOffset } = ACTIVATION_TILE[arithmetic.activations];
  const madd = multiplyAdd(arithmetic.fused);
  const { groups, codes, steps } = panelLayout(format, arithmetic);
  const integers = Array.from({ length: rows }, () => Array.from({ length: PANEL_VECTORS }, () => k.v128()));
  const [weights, activations] = [k.i32(i32.add(panel, codes)), k.i32(tile)];
  const splatLane = (vector: Local<'v128'>, r: number) => k.v128(v128.shuffle(vector, vector, lanes32(r, r, r, r)));
  for (let g = 0; g < groups; g++) {
    const initial = arithmetic.dotAdd ? initialSum(format, tile, g) : undefined;
    const initialSums = initial && k.v128(initial);
    const step = (isFirst: boolean) => {
      const vectors = Array.from({ length: PANEL_VECTORS }, (_, v) => k.v128(v128.load(weights, 16 * v)));
      const splats = integers.map((_, r) => k.v128(v128.load32Splat(activations, 4 * r)));
      integers.forEach((row, r) => {
        const first = isFirst && initialSums ? splatLane(initialSums, r) : undefined;
        for (const [v, sum] of row.entries())
          k.set(sum, addProducts(arithmetic, isFirst ? first : sum, splats[r], vectors[v]));
      });
      k.increment(weights, 16 * PANEL_VECTORS);
      k.increment(activations, 16);
    };
    step(true);
    k.for(1, steps / groups, 1, () => step(false));
    const scaleOf = (v: number) => v128.load(panel, 16 * (PANEL_VECTORS * g + v));
    const minOf = (v: number) => v128.load(panel, 16 * (PANEL_VECTORS * (groups + g) + v));
    const scales = k.v128(v128.load(tile, scalesOffset));
    const totals = k.v128(v128.load(tile, sumsOffset + 16 * sumIndex(format, g)));
    integers.forEach((row, r) => {
      const [scale, total] = [splatLane(scales, r), splatLane(totals, r)];
      row.forEach((integer, v) => {
        const at = 16 * (PANEL_VECTORS * r + v);
        const dot = narrow ? i32x4.dot(integer, i16x8.const(1)) : integer;
        let sum = madd(f32x4.mul(scaleOf(v), scale), f32x4.fromI32(dot), v128.load(sums, at));
        if (format.mins) sum = madd(minOf(v), total, sum);
        k.do(v128.store(sums, sum, at));
      });
    });
  }
}

/**
 * Adds products to a sum, or begins one. With int8 activations codes are below 16, so that the sum of eight pairs of
 * products fits into int16 where there is no instruction to add them in 32 bits.
 */
function addProducts({ activations, dotAdd }: GemmArithmetic, sum: V128 | undefined, x: V128, codes: V128): V128 {
  if (activations !== 'int16') return addDotInt8({ relaxed: true, dotAdd })(sum, x, codes);
  const products = i32x4.dot(codes, x);
  return sum ? i32x4.add(sum, products) : products;
}
