/** Matrix products: which kernel takes how many rows, and the activations that they share. */
import type { Projection, Tensor } from '../device.ts';
import type { AdapterInfo } from './adapter.ts';
import type { Gpu, Kernel } from './gpu.ts';
import { groupsOfFours, quantize } from './kernels/activations.ts';
import { canNormFew, type IntoTail, matmulGated, matmulJoined } from './kernels/joined.ts';
import { type Few, type Matmul, matmulFew, nameOf, takesInt8 } from './kernels/matmul.ts';
import { type MatrixTile, matmulMatrices, matrixBytes, toHalves } from './kernels/matrices.ts';
import { matmulTile, outsOf, rowsOf, type Tile, tileBytes } from './kernels/tiles.ts';
import { bufferOf, changed, type GpuTensor, type Int8 } from './tensor.ts';
import { BLOCK, BUNDLE, type GpuFormat, type GpuWeights } from './weights.ts';

export interface ProductOptions {
  precise: boolean;
  /** Rows that an invocation takes at once. */
  unroll: number;
  /** Whether rows of prompts go by subgroup matrices. */
  matrices: boolean;
}

/** A kernel, and the weight rows and rows that a workgroup of it has. */
interface Chosen {
  kernel: Kernel;
  outs: number;
  rows: number;
}

/** Up to this many rows, each invocation has all of them. */
const FEW = 8;
/** Up to this many rows a matrix is read once for each few of them; above, in tiles. */
const SOME = 16;
/** Large tiles that keep all processors busy. */
const ENOUGH = 200;
/** Of subgroup matrices, for few rows too: smaller ones take as long. */
const MATRIX_TILE: MatrixTile = { outs: 128, rows: 64, subOuts: 64, subRows: 32 };
/** Blocks of weights on their way for one row; half of them for more rows, or for two matrices at once. */
const AHEAD = 4;

/** Of queries, keys and values on their way into a tail. */
const TAIL_BUFFERS = 14;
/** Of a gate with its products. */
const GATE_BUFFERS = 10;

/** A norm that nobody has run yet, of the one row that a product reads. */
export interface Norm {
  x: Tensor;
  weight: Tensor;
  eps: number;
}

/** Where the keys and values of one row go: from a word of a buffer on, tokens of a head after each other. */
export interface Tail {
  shape: IntoTail;
  buffer: GPUBuffer;
  word: number;
  tokens: number;
}

interface Joined {
  norm?: Norm;
  /** With the angles by which queries and keys are turned. */
  tail?: Tail & { angles: Tensor };
}

/** What is known about a list of projections. */
interface Known {
  /** Whether one dispatch can make all of them, for a few rows: integers of one format, and buffers enough. */
  joins: boolean;
  format: GpuFormat;
  /** Codes and scales of each. */
  weights: GPUBuffer[];
  rows: number[];
  bundles: number;
  /** By the norm, the tail and the rows. */
  kernels: Map<number, Kernel>;
}

export class Products {
  private readonly lists = new WeakMap<readonly Projection[], Known>();

  constructor(
    private readonly gpu: Gpu,
    private readonly info: AdapterInfo,
    private readonly options: ProductOptions,
  ) {}

  project(x: Tensor, rows: number, projections: readonly Projection[], norm?: Norm): void {
    if (this.canJoin(rows, projections)) this.projectJoined(x as GpuTensor, rows, projections, { norm });
    else if (rows > SOME && this.knownOf(projections).joins) this.projectTiles(x as GpuTensor, rows, projections);
    else {
      this.gpu.mayBegin();
      for (const projection of projections) this.projectOne(x, rows, projection);
    }
  }

  private projectOne(x: Tensor, rows: number, { weights, out, bias, add }: Projection): void {
    const { pieces, format } = weights as GpuWeights;
    const matmul: Matmul = { format, precise: this.options.precise, bias: bias !== undefined };
    const input = takesInt8(matmul) ? this.int8Of(x as GpuTensor, rows) : [bufferOf(x)];
    const chosen = this.choose(matmul, weights.rows, rows);
    for (const { codes, scales, firstRow, rows: outs } of pieces) {
      const buffers = [...input, codes];
      if (format.integer) buffers.push(scales);
      if (bias) buffers.push(bufferOf(bias));
      buffers.push(changed(out));
      const params = [outs, rows, x.cols / BLOCK, firstRow, weights.rows, add ? 1 : 0];
      this.gpu.run(chosen.kernel, params, buffers, [Math.ceil(outs / chosen.outs), Math.ceil(rows / chosen.rows)]);
    }
  }

  /** Many rows by several matrices: so their tiles go round better than those of each alone. */
  private projectTiles(x: GpuTensor, rows: number, projections: readonly Projection[]): void {
    this.gpu.mayBegin();
    const { format, weights, rows: outs } = this.knownOf(projections);
    const m = { format, precise: false, bias: false };
    const tile = this.tileOf(
      m,
      outs.reduce((a, b) => a + b),
      rows,
    );
    const kernel = this.known(`tile ${Object.values(tile)}`, outs.length, m, () => matmulTile(m, tile, outs.length));
    const tiles = outs.reduce((sum, n) => sum + Math.ceil(n / outsOf(tile)), 0);
    const buffers = [...this.int8Of(x, rows), ...weights, ...projections.map(({ out }) => changed(out))];
    this.gpu.run(kernel, [rows, x.cols / BLOCK, ...outs], buffers, [tiles, Math.ceil(rows / rowsOf(tile))]);
  }

  /** Whether rows of prompts have a way of their own through these matrices. */
  takesPrompts(projections: readonly Projection[]): boolean {
    const { matrices, precise } = this.options;
    const enough = matrixBytes(MATRIX_TILE) <= this.info.limits.workgroupMemory;
    return matrices && !precise && enough && projections.every(({ weights }) => (weights as GpuWeights).format.integer);
  }

  /** The last `prompts` of the rows. */
  projectPrompts(x: GpuTensor, rows: number, prompts: number, projections: readonly Projection[]): void {
    this.gpu.mayBegin();
    const first = rows - prompts;
    const halves = this.halvesOf(x, first, rows);
    const blocks = x.cols / BLOCK;
    const run = (m: Matmul, params: number[], buffers: GPUBuffer[], outs: readonly number[]) => {
      const tiles = outs.reduce((sum, n) => sum + Math.ceil(n / MATRIX_TILE.outs), 0);
      const kernel = this.known('matrices', outs.length, m, () => matmulMatrices(m, MATRIX_TILE, outs.length));
      const groups = [tiles, Math.ceil(prompts / MATRIX_TILE.rows)];
      this.gpu.run(kernel, [...params, first], [halves, ...buffers], groups);
    };
    const { joins, format, weights, rows: outs } = this.knownOf(projections);
    if (joins) {
      const buffers = [...weights, ...projections.map(({ out }) => changed(out))];
      run({ format, precise: false, bias: false }, [rows, blocks, ...outs], buffers, outs);
      return;
    }
    for (const { weights, out, bias, add } of projections) {
      const { pieces, format } = weights as GpuWeights;
      for (const { codes, scales, firstRow, rows: outs } of pieces) {
        const buffers = [codes, scales, ...(bias ? [bufferOf(bias)] : []), changed(out)];
        const params = [outs, rows, blocks, firstRow, weights.rows, add ? 1 : 0];
        run({ format, precise: false, bias: bias !== undefined }, params, buffers, [outs]);
      }
    }
  }

  private knownOf(projections: readonly Projection[]): Known {
    const known = this.lists.get(projections);
    if (known) return known;
    const matrices = projections.map(({ weights }) => weights as GpuWeights);
    const [{ format }] = matrices;
    const joins =
      projections.length > 1 &&
      takesInt8({ format, precise: this.options.precise, bias: false }) &&
      3 + 3 * projections.length <= this.info.limits.storageBuffers &&
      projections.every(({ bias, add }) => !bias && !add) &&
      matrices.every(({ pieces, format: own }) => pieces.length === 1 && own.name === format.name);
    const made = {
      joins,
      format,
      weights: matrices.flatMap(({ pieces: [{ codes, scales }] }) => [codes, scales]),
      rows: matrices.map(({ rows }) => rows),
      bundles: matrices.reduce((sum, { rows }) => sum + Math.ceil(rows / BUNDLE), 0),
      kernels: new Map(),
    };
    this.lists.set(projections, made);
    return made;
  }

  private canJoin(rows: number, projections: readonly Projection[]): boolean {
    return rows <= FEW && this.knownOf(projections).joins;
  }

  /** Whether products of this row can norm it on the way: joined ones of one row, which fits into a workgroup's memory. */
  canNorm(x: Tensor, rows: number, projections: readonly Projection[]): boolean {
    return (
      this.canJoin(rows, projections) && canNormFew(this.few(rows), x.cols / BLOCK, this.info.limits.workgroupMemory)
    );
  }

  /** Whether queries, keys and values can go on into a tail in their dispatch. */
  canStore(rows: number, projections: readonly Projection[]): boolean {
    const enough = this.info.limits.storageBuffers >= TAIL_BUFFERS;
    return rows === 1 && projections.length === 3 && enough && this.canJoin(1, projections);
  }

  projectJoined(x: GpuTensor, rows: number, projections: readonly Projection[], { norm, tail }: Joined): void {
    this.gpu.mayBegin();
    const known = this.knownOf(projections);
    const buffers = this.inputOf(x, rows, norm);
    buffers.push(...known.weights);
    for (const { out } of projections) buffers.push(changed(out));
    const params = [rows, x.cols / BLOCK];
    if (norm) params.push(norm.eps);
    params.push(...known.rows);
    if (tail) {
      buffers.push(bufferOf(tail.angles), tail.buffer);
      params.push(tail.angles.cols / 2, tail.word, tail.tokens);
    }
    const few = this.few(rows, 1, x, norm);
    const count = projections.length;
    const kernel = this.kernelOf(known, few, tail ? 1 : 0, m => matmulJoined(m, few, count, tail?.shape));
    this.gpu.run(kernel, params, buffers, [known.bundles, Math.ceil(rows / few.rows)]);
  }

  /** Whether two projections and the gate after them can go in one dispatch: the gate's int8 comes in whole bundles. */
  canGate(rows: number, projections: readonly Projection[]): boolean {
    const [{ weights }] = projections;
    const enough = this.info.limits.storageBuffers >= GATE_BUFFERS;
    return projections.length === 2 && enough && weights.rows % BUNDLE === 0 && this.canJoin(rows, projections);
  }

  /** The gate goes into the first projection's out. */
  gate(x: GpuTensor, rows: number, projections: readonly Projection[], norm?: Norm): void {
    this.gpu.mayBegin();
    const known = this.knownOf(projections);
    const out = projections[0].out as GpuTensor;
    const int8 = this.roomForInt8(out);
    const buffers = this.inputOf(x, rows, norm);
    buffers.push(...known.weights, changed(out), int8.codes, int8.stats);
    const params = [rows, x.cols / BLOCK];
    if (norm) params.push(norm.eps);
    params.push(out.cols);
    const few = this.few(rows, 2, x, norm);
    const kernel = this.kernelOf(known, few, 2, m => matmulGated(m, few));
    this.gpu.run(kernel, params, buffers, [out.cols / BUNDLE, Math.ceil(rows / few.rows)]);
    int8.fresh = rows;
  }

  /** A kernel of a list, by what becomes of the products. */
  private kernelOf({ kernels, format, rows }: Known, few: Few, fate: 0 | 1 | 2, make: (m: Matmul) => Kernel): Kernel {
    const key = 4 * (2 * few.rows + (few.norm ? 1 : 0)) + fate;
    const m = { format, precise: false, bias: false };
    const kernel =
      kernels.get(key) ?? this.known(`joined ${fate} of ${rows.length} ${few.norm}`, few.rows, m, () => make(m));
    kernels.set(key, kernel);
    return kernel;
  }

  private known(kind: string, at: number, m: Matmul, make: () => Kernel): Kernel {
    return this.gpu.kernel(`${kind} ${at} ${nameOf(m)}`, make);
  }

  /** Large tiles, each for one team; where there are too few of them to go round, small ones for several teams. */
  private tileOf(m: Matmul, outs: number, rows: number): Tile {
    const { unroll } = this.options;
    const large = { outs: unroll, rows: unroll, wide: 16, high: 16, teams: 1 };
    const enough = Math.ceil(outs / outsOf(large)) * Math.ceil(rows / rowsOf(large)) >= ENOUGH;
    const small = {
      outs: unroll,
      rows: Math.min(2 * unroll, Math.ceil(rows / 8)),
      wide: 8,
      high: 8,
      teams: 4,
    };
    let tile = enough ? large : small;
    while (tileBytes(m, tile) > this.info.limits.workgroupMemory)
      tile = tile.teams > 1 ? { ...tile, teams: tile.teams / 2 } : { ...tile, rows: Math.floor(tile.rows / 2) };
    return tile;
  }

  private few(rows: number, matrices = 1, x?: Tensor, norm?: Norm): Few {
    const { unroll } = this.options;
    const few = Math.min(2 ** Math.ceil(Math.log2(rows)), 2 * unroll);
    const ahead = unroll === 1 ? 1 : few * matrices === 1 ? AHEAD : AHEAD / 2;
    return { rows: few, invocations: this.info.limits.invocations, ahead, norm: norm && x!.cols / BLOCK };
  }

  private choose(m: Matmul, outs: number, rows: number): Chosen {
    if (rows > SOME) {
      const tile = this.tileOf(m, outs, rows);
      const kernel = this.known(`tile ${Object.values(tile)}`, 1, m, () => matmulTile(m, tile));
      return { kernel, outs: outsOf(tile), rows: rowsOf(tile) };
    }
    const few = this.few(rows);
    return { kernel: this.known('few', few.rows, m, () => matmulFew(m, few)), outs: BUNDLE, rows: few.rows };
  }

  /** The rows as int8, or the row that is normed into them. */
  private inputOf(x: GpuTensor, rows: number, norm?: Norm): GPUBuffer[] {
    return norm ? [bufferOf(norm.x), bufferOf(norm.weight), changed(x)] : this.int8Of(x, rows);
  }

  /** The rows as int8, made now unless what wrote them made them too. */
  private int8Of(x: GpuTensor, rows: number): GPUBuffer[] {
    const int8 = this.roomForInt8(x);
    const { codes, stats, fresh } = int8;
    if (fresh < rows) {
      this.gpu.run(quantize, [(rows * x.cols) / 4], [x.buffer, codes, stats], groupsOfFours(rows * x.cols));
      int8.fresh = rows;
    }
    return [codes, stats];
  }

  /** Rows from `first` on as halves, made now unless they are there. */
  private halvesOf(x: GpuTensor, first: number, rows: number): GPUBuffer {
    x.halves ??= { buffer: this.gpu.buffer(2 * x.rows * x.cols, 'halves'), first: 0, end: 0 };
    const { halves } = x;
    if (first < halves.first || rows > halves.end) {
      const values = (rows - first) * x.cols;
      this.gpu.run(toHalves, [(first * x.cols) / 4, values / 4], [x.buffer, halves.buffer], groupsOfFours(values));
      Object.assign(halves, { first, end: rows });
    }
    return halves.buffer;
  }

  private roomForInt8(x: GpuTensor): Int8 {
    const values = x.rows * x.cols;
    x.int8 ??= {
      codes: this.gpu.buffer(values, 'int8 activations'),
      stats: this.gpu.buffer((8 * values) / BLOCK, 'scales of activations'),
      fresh: 0,
    };
    return x.int8;
  }
}
