/**
 * Matrix products by subgroup matrices: of prompt rows, and without `batchInvariant` of decoded rows too. A prompt row's
 * bits do not depend on its batch; split sums, which a few rows are faster with, depend on the number of rows.
 */
import type { Projection } from '../device.ts';
import type { Gpu } from './gpu.ts';
import type { Kernel } from './kernel.ts';
import { vec4Workgroups } from './kernels/activations.ts';
import { addPartials, convertToF16, gemmSubgroupMatrix, type MatrixTile } from './kernels/gemm-subgroup-matrix.ts';
import { type MatmulVariant, variantName } from './kernels/gemv.ts';
import { fits } from './limits.ts';
import { bufferForWriting, bufferOf, type GpuTensor } from './tensor.ts';
import { BLOCK, type GpuWeights } from './weights.ts';

/** Also for a few rows: a smaller tile takes as long. */
const PROMPT_TILE: MatrixTile = {
  outs: 128,
  rows: 64,
  subgroupOuts: 64,
  subgroupRows: 32,
  blocks: 1,
  split: false,
};
/** Decoded rows use matrices from this many on: for fewer, more dispatches cost more than products gain. */
export const MIN_DECODED_ROWS = 17;
/** The fastest for up to so many rows, as measured: blocks at a time, and how many workgroups sums are split for. */
const DECODE_TILES = [
  { rows: 16, blocks: 1, workgroups: 512 },
  { rows: 32, blocks: 2, workgroups: 448 },
  { rows: 48, blocks: 1, workgroups: 384 },
  { rows: 64, blocks: 1, workgroups: 384 },
];
/** With so many decoded rows, matrices of so many weight rows are faster one after the other than in one dispatch. */
const APART = { rows: 33, outs: 8192 };
/** A part of a split sum has at least so many blocks. */
const MIN_SPLIT_BLOCKS = 8;

/** Matrices that share a dispatch, or one of them, or a piece of one. */
interface Product {
  m: MatmulVariant;
  /** Weight rows of each matrix. */
  outs: readonly number[];
  blocks: number;
  /** The parameters of kernels/gemv.ts or kernels/grouped-gemm.ts. */
  params: readonly number[];
  weights: readonly GPUBuffer[];
  /** What `store` binds: bias and outputs. */
  results: readonly GPUBuffer[];
}

/** The rows of a product. */
interface Rows {
  buffer: GPUBuffer;
  first: number;
  count: number;
}

export class MatrixProjections {
  constructor(private readonly gpu: Gpu) {}

  /** Whether the kernels for these projections fit the adapter. */
  supports(projections: readonly Projection[]): boolean {
    return projections.every(({ weights, bias }) => {
      const { format } = weights as GpuWeights;
      const m = { format, precise: false, bias: bias !== undefined };
      return format.integer !== undefined && fits(this.kernel(m, PROMPT_TILE, 1), this.gpu.limits);
    });
  }

  /**
   * Projects the rows from `first` on. `grouped`: the weights, if one dispatch can compute all. `invariant`: a row's bits
   * must not depend on the number of rows.
   */
  project(
    x: GpuTensor,
    first: number,
    rows: number,
    projections: readonly Projection[],
    grouped: readonly GPUBuffer[] | undefined,
    invariant: boolean,
  ): void {
    this.gpu.submitIfWorthwhile();
    const input = { buffer: this.f16Input(x, first, rows), first, count: rows - first };
    const blocks = x.cols / BLOCK;
    const apart =
      !invariant && rows - first >= APART.rows && projections.every(({ weights }) => weights.rows >= APART.outs);
    if (grouped && !apart) {
      const { format } = projections[0].weights as GpuWeights;
      const outs = projections.map(({ weights }) => weights.rows);
      const results = projections.map(({ out }) => bufferForWriting(out));
      const m = { format, precise: false, bias: false };
      const product = { m, outs, blocks, params: [rows, blocks, ...outs], weights: grouped, results };
      if (this.run(product, input, invariant)) return;
    }
    for (const { weights, out, bias, accumulate } of projections) {
      const { pieces, format } = weights as GpuWeights;
      const m = { format, precise: false, bias: bias !== undefined };
      for (const { codes, scales, firstRow, rows: outs } of pieces) {
        const results = [...(bias ? [bufferOf(bias)] : []), bufferForWriting(out)];
        const params = [outs, rows, blocks, firstRow, weights.rows, accumulate ? 1 : 0];
        this.run({ m, outs: [outs], blocks, params, weights: [codes, scales], results }, input, invariant);
      }
    }
  }

  /** False if the kernel does not fit. */
  private run(product: Product, { buffer, first, count }: Rows, invariant: boolean): boolean {
    const { m, outs, blocks, params, weights, results } = product;
    const { tile, splits } = invariant ? { tile: PROMPT_TILE, splits: 1 } : this.splitTile(product, count);
    const kernel = this.kernel(m, tile, outs.length);
    if (!fits(kernel, this.gpu.limits)) return false;
    const tiles = tilesOf(outs, tile);
    const rowTiles = Math.ceil(count / tile.rows);
    if (!tile.split) {
      this.gpu.run(kernel, [...params, first], [buffer, ...weights, ...results], [tiles, rowTiles]);
      return true;
    }
    const splitBlocks = tile.blocks * Math.ceil(blocks / splits / tile.blocks);
    const [columns, partialRows] = [tiles * tile.outs, rowTiles * tile.rows];
    const partial = this.gpu.scratch('partial sums', 4 * splits * partialRows * columns);
    const groups = [tiles, rowTiles, splits];
    this.gpu.run(kernel, [...params, first, splitBlocks, columns, partialRows], [buffer, ...weights, partial], groups);
    const add = this.gpu.kernel(`add partial sums ${tile.outs} ${m.bias} ${outs.length}`, () =>
      addPartials(m, tile.outs, outs.length),
    );
    this.gpu.run(add, [...params, first, splits, columns, partialRows], [partial, ...results], [tiles, count]);
    return true;
  }

  /** Every subgroup takes all rows of the tile; sums are split if there are few tiles. */
  private splitTile({ m, outs, blocks }: Product, rows: number): { tile: MatrixTile; splits: number } {
    const size = DECODE_TILES.find(one => rows <= one.rows) ?? DECODE_TILES[DECODE_TILES.length - 1];
    const tile = {
      outs: 128,
      rows: size.rows,
      subgroupOuts: 32,
      subgroupRows: size.rows,
      blocks: size.blocks,
      split: false,
    };
    if (!fits(this.kernel(m, tile, outs.length), this.gpu.limits)) return { tile: PROMPT_TILE, splits: 1 };
    const workgroups = tilesOf(outs, tile) * Math.ceil(rows / tile.rows);
    const splits = Math.min(size.workgroups / workgroups, blocks / MIN_SPLIT_BLOCKS);
    if (splits < 2) return { tile, splits: 1 };
    return { tile: { ...tile, split: true }, splits: 2 ** Math.floor(Math.log2(splits)) };
  }

  private kernel(m: MatmulVariant, tile: MatrixTile, matrices: number): Kernel {
    const name = `subgroup matrices ${Object.values(tile).join(' ')} ${matrices} ${variantName(m)}`;
    return this.gpu.kernel(name, () => gemmSubgroupMatrix(m, tile, matrices));
  }

  /** Rows from `first` on as f16, converted now unless they are already. */
  private f16Input(x: GpuTensor, first: number, rows: number): GPUBuffer {
    const forget = () => {
      x.f16 = undefined;
    };
    x.f16 ??= { buffer: this.gpu.createBuffer(2 * x.rows * x.cols, 'f16 activations', forget), first: 0, end: 0 };
    const { f16 } = x;
    if (first < f16.first || rows > f16.end) {
      const values = (rows - first) * x.cols;
      this.gpu.run(convertToF16, [(first * x.cols) / 4, values / 4], [x.buffer, f16.buffer], vec4Workgroups(values));
      Object.assign(f16, { first, end: rows });
    }
    return f16.buffer;
  }
}

const tilesOf = (outs: readonly number[], tile: MatrixTile) =>
  outs.reduce((sum, n) => sum + Math.ceil(n / tile.outs), 0);
