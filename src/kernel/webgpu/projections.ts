/** Matrix products with weights: selects a kernel by the number of rows, and keeps quantized activations. */

import type { Activation, Projection, Tensor } from '../device.ts';
import type { Gpu } from './gpu.ts';
import type { Kernel } from './kernel.ts';
import { quantize, vec4Workgroups } from './kernels/activations.ts';
import { canFuseNorm, fusedGemv, gatedGemv, type TailShape } from './kernels/fused-gemv.ts';
import { gemmInt8, smallerTiles, type Tile, tileOuts, tileRows } from './kernels/gemm-int8.ts';
import { type GemvOptions, gemv, type MatmulVariant, usesInt8, variantName } from './kernels/gemv.ts';
import { firstFit, fits } from './limits.ts';
import { MatrixProjections, MIN_DECODED_ROWS } from './matrix-projections.ts';
import { bufferForWriting, bufferOf, type GpuTensor, type Int8Activations } from './tensor.ts';
import { BLOCK, type GpuFormat, type GpuWeights, ROW_TILE } from './weights.ts';

export interface ProjectionsOptions {
  precise: boolean;
  /** Rows per invocation. */
  unroll: number;
  /** Whether the adapter has subgroup matrices, for prompt rows. */
  matrices: boolean;
  /** A decoded row has the same bits alone and in any batch; otherwise decoded rows may use subgroup matrices too. */
  batchInvariant: boolean;
  /** Heads of the tails that keys and values are appended to. */
  tail: TailShape;
}

/** A kernel, and the output columns and rows that one workgroup computes. */
interface SelectedKernel {
  kernel: Kernel;
  outs: number;
  rows: number;
}

/** Up to this many rows, projections that share their input are fused. */
const MAX_FUSED_ROWS = 8;
/** Up to this many rows use GEMV; more use GEMM. */
const MAX_GEMV_ROWS = 16;
/** Up to this many rows share a tile. */
const MAX_ONE_TILE_ROWS = 64;
/** For more rows, large tiles are used from this many on: fewer would leave processors idle. */
const MIN_LARGE_TILES = 200;
/** Weight blocks loaded before the first is used, for one row; half for more rows or two matrices, to save registers. */
const PREFETCHED_BLOCKS = 4;

/** A norm that has not run yet, of the one row that a projection reads. */
export interface PendingNorm {
  x: Tensor;
  weight: Tensor;
  eps: number;
}

/** Where the keys and values of one row are stored: `word` is the offset of head 0, `tokens` the capacity per head. */
export interface TailPosition {
  buffer: GPUBuffer;
  word: number;
  tokens: number;
}

interface FusedOps {
  norm?: PendingNorm;
  /** `angles`: cosines and sines that rotate queries and keys. */
  tail?: TailPosition & { angles: Tensor };
}

/** What fused projections do with their results: write them, append them to a tail as well, or multiply gate and up. */
type Epilogue = 'out' | 'tail' | Activation;
const EPILOGUES: readonly Epilogue[] = ['out', 'tail', 'silu', 'gelu', 'clamped'];

/** A kernel for several projections, and the rows per workgroup. */
interface FusedGemv {
  kernel: Kernel;
  rows: number;
}

/** Projections that share their input. */
interface ProjectionGroup {
  /** Whether one dispatch can compute all: integer weights of one format. The kernel may still exceed the adapter's limits. */
  canFuse: boolean;
  format: GpuFormat;
  /** Codes and scales of each matrix. */
  weights: GPUBuffer[];
  rows: number[];
  /** Blocks per weight row. */
  blocks: number;
  rowTiles: number;
  /** By norm, epilogue and rows; undefined where no variant fits the adapter. */
  fusedKernels: Map<number, FusedGemv | undefined>;
}

/** The largest power of two up to x; at least 1. */
const powerOfTwo = (x: number) => 2 ** Math.max(0, Math.floor(Math.log2(x)));

export class Projections {
  private readonly groups = new WeakMap<readonly Projection[], ProjectionGroup>();
  /** For single matrices, by rows and bias. */
  private readonly selectedKernels = new WeakMap<GpuWeights, Map<number, SelectedKernel>>();
  private readonly matrices: MatrixProjections;

  constructor(
    private readonly gpu: Gpu,
    private readonly options: ProjectionsOptions,
  ) {
    this.matrices = new MatrixProjections(gpu);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[], norm?: PendingNorm): void {
    if (this.canFuse(rows, projections)) this.projectFused(x as GpuTensor, rows, projections, { norm });
    else if (!this.projectGrouped(x as GpuTensor, rows, projections)) {
      this.gpu.submitIfWorthwhile();
      for (const projection of projections) this.projectOne(x, rows, projection);
    }
  }

  private projectOne(x: Tensor, rows: number, { weights, out, bias, accumulate }: Projection): void {
    const { pieces, format } = weights as GpuWeights;
    const matmul: MatmulVariant = { format, precise: this.options.precise, bias: bias !== undefined };
    const input = usesInt8(matmul) ? this.int8Input(x as GpuTensor, rows) : [bufferOf(x)];
    const selected = this.kernelFor(weights as GpuWeights, matmul, rows);
    for (const { codes, scales, firstRow, rows: outs } of pieces) {
      const buffers = [...input, codes];
      if (format.integer) buffers.push(scales);
      if (bias) buffers.push(bufferOf(bias));
      buffers.push(bufferForWriting(out));
      const params = [outs, rows, x.cols / BLOCK, firstRow, weights.rows, accumulate ? 1 : 0];
      this.gpu.run(selected.kernel, params, buffers, [
        Math.ceil(outs / selected.outs),
        Math.ceil(rows / selected.rows),
      ]);
    }
  }

  /** Grouped GEMM: the tiles of all matrices fill the GPU better than those of each alone. False if not possible. */
  private projectGrouped(x: GpuTensor, rows: number, projections: readonly Projection[]): boolean {
    const { canFuse, format, weights, rows: outs } = this.groupOf(projections);
    if (rows <= MAX_GEMV_ROWS || !canFuse) return false;
    const m = { format, precise: false, bias: false };
    const all = outs.reduce((a, b) => a + b);
    const tile = this.tileCandidates(all, rows).find(one =>
      fits(this.tileKernel(m, one, outs.length), this.gpu.limits),
    );
    if (!tile) return false;
    this.gpu.submitIfWorthwhile();
    const tiles = outs.reduce((sum, n) => sum + Math.ceil(n / tileOuts(tile)), 0);
    const buffers = [...this.int8Input(x, rows), ...weights, ...projections.map(({ out }) => bufferForWriting(out))];
    const groups = [tiles, Math.ceil(rows / tileRows(tile))];
    this.gpu.run(this.tileKernel(m, tile, outs.length), [rows, x.cols / BLOCK, ...outs], buffers, groups);
    return true;
  }

  /** How many rows, the last of `rows`, use subgroup matrices; `prompts` of them are prompt rows. */
  matrixRows(rows: number, prompts: number, projections: readonly Projection[]): number {
    const { matrices, precise, batchInvariant } = this.options;
    const wanted = !batchInvariant && (prompts > 0 || rows >= MIN_DECODED_ROWS) ? rows : prompts;
    return wanted > 0 && matrices && !precise && this.matrices.supports(projections) ? wanted : 0;
  }

  /** Projects the rows from `first` on by subgroup matrices. */
  projectByMatrices(x: GpuTensor, first: number, rows: number, projections: readonly Projection[]): void {
    const { canFuse, weights } = this.groupOf(projections);
    this.matrices.project(x, first, rows, projections, canFuse ? weights : undefined, this.options.batchInvariant);
  }

  private groupOf(projections: readonly Projection[]): ProjectionGroup {
    const cached = this.groups.get(projections);
    if (cached) return cached;
    const matrices = projections.map(({ weights }) => weights as GpuWeights);
    const [{ format }] = matrices;
    const canFuse =
      projections.length > 1 &&
      usesInt8({ format, precise: this.options.precise, bias: false }) &&
      projections.every(({ bias, accumulate }) => !bias && !accumulate) &&
      matrices.every(({ pieces, format: own }) => pieces.length === 1 && own.name === format.name);
    const group = {
      canFuse,
      format,
      weights: matrices.flatMap(({ pieces: [{ codes, scales }] }) => [codes, scales]),
      rows: matrices.map(({ rows }) => rows),
      blocks: matrices[0].cols / BLOCK,
      rowTiles: matrices.reduce((sum, { rows }) => sum + Math.ceil(rows / ROW_TILE), 0),
      fusedKernels: new Map(),
    };
    this.groups.set(projections, group);
    return group;
  }

  private canFuse(rows: number, projections: readonly Projection[]): boolean {
    return this.fusedKernel(rows, projections, 'out') !== undefined;
  }

  /** Whether the projections can apply a pending norm to their input row. */
  canFuseNorm(rows: number, projections: readonly Projection[]): boolean {
    return this.fusedKernel(rows, projections, 'out', true) !== undefined;
  }

  /** Whether the projections of queries, keys and values can also append to the tail. */
  canFuseAppend(rows: number, projections: readonly Projection[], norm: boolean): boolean {
    return rows === 1 && projections.length === 3 && this.fusedKernel(1, projections, 'tail', norm) !== undefined;
  }

  /** Whether gate and up projection and their product can share a dispatch: int8 results come in whole row tiles. */
  canFuseGate(rows: number, projections: readonly Projection[], norm: boolean): boolean {
    const whole = projections.length === 2 && projections[0].weights.rows % ROW_TILE === 0;
    return whole && this.fusedKernel(rows, projections, 'silu', norm) !== undefined;
  }

  projectFused(x: GpuTensor, rows: number, projections: readonly Projection[], { norm, tail }: FusedOps): void {
    this.gpu.submitIfWorthwhile();
    const group = this.groupOf(projections);
    const buffers = this.fusedInput(x, rows, norm);
    buffers.push(...group.weights);
    for (const { out } of projections) buffers.push(bufferForWriting(out));
    const params = [rows, x.cols / BLOCK];
    if (norm) params.push(norm.eps);
    params.push(...group.rows);
    if (tail) {
      buffers.push(bufferOf(tail.angles), tail.buffer);
      params.push(tail.angles.cols / 2, tail.word, tail.tokens);
    }
    const fused = this.fusedKernel(rows, projections, tail ? 'tail' : 'out', norm !== undefined)!;
    this.gpu.run(fused.kernel, params, buffers, [group.rowTiles, Math.ceil(rows / fused.rows)]);
  }

  /** activation(gate) * up, written to the first projection's output. */
  projectGated(
    x: GpuTensor,
    rows: number,
    projections: readonly Projection[],
    activation: Activation,
    norm?: PendingNorm,
  ): void {
    this.gpu.submitIfWorthwhile();
    const group = this.groupOf(projections);
    const out = projections[0].out as GpuTensor;
    const int8 = this.int8Buffers(out);
    const buffers = this.fusedInput(x, rows, norm);
    buffers.push(...group.weights, bufferForWriting(out), int8.codes, int8.stats);
    const params = [rows, x.cols / BLOCK];
    if (norm) params.push(norm.eps);
    params.push(out.cols);
    const fused = this.fusedKernel(rows, projections, activation, norm !== undefined)!;
    this.gpu.run(fused.kernel, params, buffers, [out.cols / ROW_TILE, Math.ceil(rows / fused.rows)]);
    int8.validRows = rows;
  }

  private fusedKernel(
    rows: number,
    projections: readonly Projection[],
    epilogue: Epilogue,
    norm = false,
  ): FusedGemv | undefined {
    const group = this.groupOf(projections);
    if (rows > MAX_FUSED_ROWS || !group.canFuse) return undefined;
    const key = (rows * EPILOGUES.length + EPILOGUES.indexOf(epilogue)) * 2 + (norm ? 1 : 0);
    if (!group.fusedKernels.has(key)) group.fusedKernels.set(key, this.createFusedKernel(group, rows, epilogue, norm));
    return group.fusedKernels.get(key);
  }

  /** All rows in one workgroup, or half of them, and so on: the first that fits. Results do not depend on it. */
  private createFusedKernel(
    { format, rows: outs, blocks }: ProjectionGroup,
    rows: number,
    epilogue: Epilogue,
    norm: boolean,
  ): FusedGemv | undefined {
    const m = { format, precise: false, bias: false };
    const count = outs.length;
    const isGate = epilogue !== 'out' && epilogue !== 'tail';
    for (let n = this.gemvOptions(rows).rows; n >= 1; n /= 2) {
      const options = this.gemvOptions(n, isGate ? 2 : 1, norm ? blocks : undefined);
      if (norm && !canFuseNorm(options)) continue;
      const kernel = this.cachedKernel(`fused ${epilogue} of ${count} ${options.normBlocks}`, options.rows, m, () =>
        isGate
          ? gatedGemv(m, options, epilogue)
          : fusedGemv(m, options, count, epilogue === 'tail' ? this.options.tail : undefined),
      );
      if (fits(kernel, this.gpu.limits)) return { kernel, rows: options.rows };
    }
    return undefined;
  }

  private cachedKernel(kind: string, size: number, m: MatmulVariant, make: () => Kernel): Kernel {
    return this.gpu.kernel(`${kind} ${size} ${variantName(m)}`, make);
  }

  /** Rows in one tile if they are few; large tiles for many; split-K where there are too few tiles. */
  private tileCandidates(outs: number, rows: number): Tile[] {
    const { unroll } = this.options;
    if (rows > MAX_ONE_TILE_ROWS) {
      const large = { outsPerLane: unroll, rowsPerLane: unroll, lanesX: 16, lanesY: 16, splitGroups: 1 };
      const enough = Math.ceil(outs / tileOuts(large)) * Math.ceil(rows / tileRows(large)) >= MIN_LARGE_TILES;
      const small = { outsPerLane: unroll, rowsPerLane: 2 * unroll, lanesX: 8, lanesY: 8, splitGroups: 4 };
      return smallerTiles(enough ? large : small);
    }
    const few = rows <= 32;
    const [lanesX, lanesY] = few ? [16, 4] : [8, 16];
    const tile = {
      outsPerLane: few ? Math.ceil(unroll / 2) : unroll,
      rowsPerLane: Math.min(few ? 2 * unroll : unroll, Math.ceil(rows / lanesY)),
      lanesX,
      lanesY,
      splitGroups: 1,
    };
    const tiles = Math.ceil(outs / tileOuts(tile));
    const splitGroups = Math.min(512 / lanesX / lanesY, powerOfTwo((few ? 1024 : 512) / tiles));
    return smallerTiles({ ...tile, splitGroups });
  }

  private tileKernel(m: MatmulVariant, tile: Tile, count = 1): Kernel {
    return this.cachedKernel(`tile ${Object.values(tile)}`, count, m, () => gemmInt8(m, tile, count));
  }

  /** `matrices`: read at once. `normBlocks`: blocks of a row that the kernel normalizes first. */
  gemvOptions(rows: number, matrices = 1, normBlocks?: number): GemvOptions {
    const { unroll } = this.options;
    const tileRows = Math.min(2 ** Math.ceil(Math.log2(rows)), 2 * unroll);
    const prefetchBlocks = unroll === 1 ? 1 : tileRows * matrices === 1 ? PREFETCHED_BLOCKS : PREFETCHED_BLOCKS / 2;
    return { rows: tileRows, invocations: this.gpu.limits.invocations, prefetchBlocks, normBlocks };
  }

  private kernelFor(weights: GpuWeights, m: MatmulVariant, rows: number): SelectedKernel {
    const byRows = this.selectedKernels.get(weights) ?? new Map<number, SelectedKernel>();
    this.selectedKernels.set(weights, byRows);
    const key = 2 * rows + (m.bias ? 1 : 0);
    const selected = byRows.get(key) ?? this.selectKernel(m, weights.rows, rows);
    byRows.set(key, selected);
    return selected;
  }

  private selectKernel(m: MatmulVariant, outs: number, rows: number): SelectedKernel {
    if (rows > MAX_GEMV_ROWS) {
      const tile = firstFit(
        this.tileCandidates(outs, rows),
        candidate => [this.tileKernel(m, candidate)],
        this.gpu.limits,
      );
      return { kernel: this.tileKernel(m, tile), outs: tileOuts(tile), rows: tileRows(tile) };
    }
    const maxRows = this.gemvOptions(rows).rows;
    const variants = [maxRows, maxRows / 2, maxRows / 4, maxRows / 8]
      .filter(Number.isInteger)
      .map(n => this.gemvOptions(n));
    const kernelOf = (options: GemvOptions) => this.cachedKernel('gemv', options.rows, m, () => gemv(m, options));
    const options = firstFit(variants, variant => [kernelOf(variant)], this.gpu.limits);
    return { kernel: kernelOf(options), outs: ROW_TILE, rows: options.rows };
  }

  /** The rows as int8; or the row that the kernel normalizes, and where it writes the result. */
  private fusedInput(x: GpuTensor, rows: number, norm?: PendingNorm): GPUBuffer[] {
    return norm ? [bufferOf(norm.x), bufferOf(norm.weight), bufferForWriting(x)] : this.int8Input(x, rows);
  }

  /** The rows as int8, quantized now unless the kernel that wrote them did. */
  int8Input(x: GpuTensor, rows: number): GPUBuffer[] {
    const int8 = this.int8Buffers(x);
    const { codes, stats, validRows } = int8;
    if (validRows < rows) {
      this.gpu.run(quantize, [(rows * x.cols) / 4], [x.buffer, codes, stats], vec4Workgroups(rows * x.cols));
      int8.validRows = rows;
    }
    return [codes, stats];
  }

  private int8Buffers(x: GpuTensor): Int8Activations {
    const values = x.rows * x.cols;
    const forget = () => {
      x.int8 = undefined;
    };
    x.int8 ??= {
      codes: this.gpu.createBuffer(values, 'int8 activations', forget),
      stats: this.gpu.createBuffer((8 * values) / BLOCK, 'scales of activations', forget),
      validRows: 0,
    };
    return x.int8;
  }
}
