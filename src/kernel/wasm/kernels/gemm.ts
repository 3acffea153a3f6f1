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
import { f32x4, type I32, i16x8, i32, i32x4, index, lanes32, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { addDotInt8, chunkRange, multiplyAdd } from '../ops.ts';
import { blockBytes, type PackedFormat, tileVectors } from '../pack-weights.ts';
import {
  blockScales,
  CONSTANT_BYTES,
  type Constants,
  GEMV_SUMS,
  type GemmArithmetic,
  gemmKernelName,
  gemmSignature,
  initialSum,
  int8Codes,
  int16Codes,
  loadConstants,
  narrowVectors,
  storeOutputs,
  sumIndex,
} from './gemv.ts';
import { ACTIVATION_TILE, TILE_ROWS } from './quantize-activations.ts';

/** Half of a small L1 cache. */
const MAX_PANEL_BYTES = 24 * 1024;
/** Up to this many rows, reading weights takes longer than the products. */
const FEW_ROWS = 24;
/** Max rows of activations per panel. */
const STRIP_ROWS = 256;
/** Max vectors of four weight rows per panel. */
const MAX_VECTORS = 4;
/** Scratch bytes per thread. */
export const GEMM_SCRATCH =
  CONSTANT_BYTES + Math.max(GEMV_SUMS, 16 * MAX_VECTORS + MAX_PANEL_BYTES + 16 * MAX_VECTORS * STRIP_ROWS);

/** What a panel and the products of a tile are divided into. */
interface Shape {
  /** Vectors of four weight rows per panel. */
  vectors: number;
  /** Rows of activations whose sums are kept in registers together. */
  rows: number;
  /** Vectors of codes per group. */
  steps: number;
  /** Vectors of codes whose products are added before they are widened to 32 bits; 0: they are added in 32 bits. */
  narrowSteps: number;
  groups: number;
  /** Bytes of a panel's block: scales of each group, minima if there are any, then codes. */
  codesOffset: number;
  blockBytes: number;
}

function gemmShape(format: PackedFormat, { activations, dotAdd, wide }: GemmArithmetic): Shape {
  const groups = 32 / format.group;
  const steps = (activations === 'int16' ? 16 : 8) / groups;
  const narrowSteps = activations === 'int16' || dotAdd ? 0 : Math.min(steps, narrowVectors(format));
  const widens = narrowSteps > 0 && narrowSteps < steps;
  const vectors = wide && !widens ? 4 : 2;
  const codesOffset = 16 * vectors * groups * (format.mins ? 2 : 1);
  const blockBytes = codesOffset + 16 * vectors * steps * groups;
  return { vectors, rows: widens && !wide ? 2 : TILE_ROWS, steps, narrowSteps, groups, codesOffset, blockBytes };
}

/** `scratch` has GEMM_SCRATCH bytes per thread. */
export function gemm(format: PackedFormat, arithmetic: GemmArithmetic): Kernel {
  const k = new Kernel(gemmSignature(gemmKernelName(format, 'gemm')));
  const { x, w, rows, outputs, cols, scratch, chunk, chunks, thread } = k.params;
  const shape = gemmShape(format, arithmetic);
  const panelRows = 4 * shape.vectors;
  /** f32 sums of a tile: [activation row][weight row]. */
  const tileSumBytes = 16 * shape.vectors * TILE_ROWS;
  const blocks = k.i32(i32.shrU(cols, 5));
  const ownVectors = tileVectors(format, arithmetic.wide);
  const rowTileRows = 4 * ownVectors;
  const rowTileBlock = ownVectors * blockBytes(format);
  const rowTileBytes = k.i32(i32.mul(blocks, rowTileBlock));
  const tileBlock = ACTIVATION_TILE[arithmetic.activations].size;
  const tileBytes = k.i32(i32.mul(blocks, tileBlock));
  const { from, to } = chunkRange(k, outputs, panelRows, chunk, chunks);
  const own = k.i32(index(scratch, GEMM_SCRATCH, thread));
  const constants = loadConstants(k, format, arithmetic, own);
  const ones = k.i32(i32.add(own, CONSTANT_BYTES));
  for (let v = 0; v < shape.vectors; v++) k.do(v128.store(ones, i16x8.const(1), 16 * v));
  const panel = k.i32(i32.add(ones, 16 * MAX_VECTORS));
  const sums = k.i32(i32.add(panel, MAX_PANEL_BYTES));
  const [weights, firstTile, target, tile, sum, count] = Array.from({ length: 6 }, () => k.i32());

  k.for(from, to, panelRows, o => {
    // In a panel with fewer rows the last tile is used again.
    const lastTile = k.i32(i32.divU(i32.sub(i32.sub(outputs, o), 1), rowTileRows));
    const offsets = Array.from({ length: shape.vectors / ownVectors }, (_, i) =>
      k.i32(i32.mul(rowTileBytes, i32.min(lastTile, i))),
    );
    k.for(0, rows, STRIP_ROWS, first => {
      const end = k.i32(i32.add(first, STRIP_ROWS));
      k.set(end, i32.min(end, rows));
      const forTiles = (body: (row: I32) => void) => {
        k.set(sum, sums);
        k.for(first, end, TILE_ROWS, row => {
          body(row);
          k.increment(sum, tileSumBytes);
        });
      };
      forTiles(() => {
        for (let i = 0; i < tileSumBytes; i += 16) k.do(v128.store(sum, v128.zero, i));
      });
      k.set(weights, index(w, rowTileBytes, i32.divU(o, rowTileRows)));
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
              k.increment(target, shape.blockBytes);
            });
          };
          forBlocks(() => {
            const blocks = offsets.map(offset => k.i32(i32.add(weights, offset)));
            fillPanel(k, format, arithmetic, blocks, target, constants);
            k.increment(weights, rowTileBlock);
          });
          forTiles(row => {
            const add = (tileRows: number) => {
              k.set(tile, index(firstTile, tileBytes, i32.shrU(i32.sub(row, first), 2)));
              forBlocks(() => {
                addBlock(k, format, arithmetic, shape, { tile, panel: target, sums: sum, ones }, tileRows);
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
        () => addPanels(Math.floor(MAX_PANEL_BYTES / shape.blockBytes)),
        () => addPanels(1),
      );
      k.set(sum, sums);
      k.for(first, end, 1, row => {
        for (let v = 0; v < shape.vectors; v++) {
          const [value, at] = [k.v128(v128.load(sum, 16 * v)), i32.add(o, 4 * v)];
          k.if(i32.gtS(outputs, at), () => storeOutputs(k, value, row, at));
        }
        k.increment(sum, 16 * shape.vectors);
      });
    });
  });
  return k;
}

/** Unpacks one block of every tile into the panel. */
function fillPanel(
  k: Kernel,
  format: PackedFormat,
  arithmetic: GemmArithmetic,
  blocks: I32[],
  panel: I32,
  constants: Constants[],
): void {
  const unpack = arithmetic.activations === 'int16' ? int16Codes : int8Codes;
  const vectors = blocks.length * constants.length;
  blocks.forEach((block, i) => {
    const lines = constants.map((_, v) => [
      ...blockScales(format, block, [v, constants]).map(scale => k.v128(scale)),
      ...unpack(k, format, arithmetic, block, [v, constants]),
    ]);
    // The higher address first: V8 joins the two.
    for (let n = 0; n < lines[0].length; n++)
      for (const [v, line] of [...lines.entries()].reverse())
        k.do(v128.store(panel, line[n], 16 * (vectors * n + constants.length * i + v)));
  });
}

/** Addresses of what a block's products are made of, and of vectors of ones. */
interface BlockAddresses {
  tile: I32;
  panel: I32;
  sums: I32;
  ones: I32;
}

/** sums += one block of a panel x the first `tileRows` rows of a tile of activations. */
function addBlock(
  k: Kernel,
  format: PackedFormat,
  arithmetic: GemmArithmetic,
  { vectors, rows, steps, narrowSteps, groups, codesOffset }: Shape,
  { tile, panel, sums, ones }: BlockAddresses,
  tileRows: number,
): void {
  const { scales: scalesOffset, sums: sumsOffset } = ACTIVATION_TILE[arithmetic.activations];
  const madd = multiplyAdd(arithmetic.fused);
  const widensInLoop = narrowSteps > 0 && narrowSteps < steps;
  const stepVectors = widensInLoop ? narrowSteps : 1;
  const widen = (sum: V128, v: number) => i32x4.dot(sum, v128.load(ones, 16 * v));
  /** One of four values for all lanes. V8 joins loads to wider ones, and shuffles take less time than loads elsewhere. */
  const splatValues = (offset: number) => {
    if (arithmetic.wide) return (r: number) => k.v128(v128.load32Splat(tile, offset + 4 * r));
    const values = k.v128(v128.load(tile, offset));
    return (r: number) => k.v128(v128.shuffle(values, values, lanes32(r, r, r, r)));
  };
  const perVector = <T>(make: (v: number) => T) => Array.from({ length: vectors }, (_, v) => make(v));
  for (let first = 0; first < tileRows; first += rows) {
    const tileRow = Array.from({ length: Math.min(rows, tileRows - first) }, (_, r) => first + r);
    const integers = tileRow.map(() => perVector(() => k.v128()));
    const [weights, activations] = [k.i32(i32.add(panel, codesOffset)), k.i32(tile)];
    for (let g = 0; g < groups; g++) {
      const step = (isFirst: boolean) => {
        const codes = Array.from({ length: stepVectors }, (_, i) =>
          perVector(v => k.v128(v128.load(weights, 16 * (vectors * i + v)))),
        );
        const splats = tileRow.map(r => codes.map((_, i) => k.v128(v128.load32Splat(activations, 16 * i + 4 * r))));
        integers.forEach((row, r) => {
          const initial = isFirst ? initialSum(format, arithmetic, tile, g, tileRow[r]) : undefined;
          const begin = initial && k.v128(initial);
          for (const [v, sum] of row.entries()) {
            const before = isFirst ? begin : sum;
            if (!widensInLoop) k.set(sum, addProducts(arithmetic, before, splats[r][0], codes[0][v]));
            else {
              const products = splats[r].map((x, i) => i16x8.relaxedDot(x, codes[i][v])).reduce(i16x8.add);
              k.set(sum, before ? i32x4.add(before, widen(products, v)) : widen(products, v));
            }
          }
        });
        k.increment(weights, 16 * vectors * stepVectors);
        k.increment(activations, 16 * stepVectors);
      };
      step(true);
      k.for(1, steps / stepVectors, 1, () => step(false));
      const scaleOf = (v: number) => v128.load(panel, 16 * (vectors * g + v));
      const minOf = (v: number) => v128.load(panel, 16 * (vectors * (groups + g) + v));
      const scaleFor = splatValues(scalesOffset);
      const totalFor = splatValues(sumsOffset + 16 * sumIndex(format, g));
      integers.forEach((row, i) => {
        const r = tileRow[i];
        const [scale, total] = [scaleFor(r), totalFor(r)];
        // Stores come last: the loads of a row can then be joined to wider ones.
        const results = row.map((integer, v) => {
          const dot = narrowSteps > 0 && !widensInLoop ? widen(integer, v) : integer;
          const before = v128.load(sums, 16 * (vectors * r + v));
          const sum = madd(f32x4.mul(scaleOf(v), scale), f32x4.fromI32(dot), before);
          return k.v128(format.mins ? madd(minOf(v), total, sum) : sum);
        });
        for (const [v, sum] of [...results.entries()].reverse()) k.do(v128.store(sums, sum, 16 * (vectors * r + v)));
      });
    }
  }
}

/** Adds products to a sum, or begins one. */
function addProducts({ activations, dotAdd }: GemmArithmetic, sum: V128 | undefined, x: V128, codes: V128): V128 {
  if (activations !== 'int16') return addDotInt8({ relaxed: true, dotAdd })(sum, x, codes);
  const products = i32x4.dot(codes, x);
  return sum ? i32x4.add(sum, products) : products;
}
