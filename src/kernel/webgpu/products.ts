/** Matrix products: which kernel takes how many rows, and the activations that they share. */
import type { Projection, Tensor } from '../device.ts';
import type { Gpu, Kernel } from './gpu.ts';
import { groupsOfFours, quantize } from './kernels/activations.ts';
import { canNormFew, type IntoTail, matmulGated, matmulJoined } from './kernels/joined.ts';
import { type Few, type Matmul, matmulFew, nameOf, takesInt8 } from './kernels/matmul.ts';
import { type MatrixTile, matmulMatrices, toHalves } from './kernels/matrices.ts';
import { matmulTile, outsOf, rowsOf, smallerTiles, type Tile } from './kernels/tiles.ts';
import { firstFit, fits } from './limits.ts';
import { bufferOf, changed, type GpuTensor, type Int8 } from './tensor.ts';
import { BLOCK, BUNDLE, type GpuFormat, type GpuWeights } from './weights.ts';

export interface ProductOptions {
  precise: boolean;
  /** Rows that an invocation takes at once. */
  unroll: number;
  /** Whether rows of prompts go by subgroup matrices. */
  matrices: boolean;
  /** Heads of the tails that queries, keys and values of one row go into. */
  tail: IntoTail;
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

/** A norm that nobody has run yet, of the one row that a product reads. */
export interface Norm {
  x: Tensor;
  weight: Tensor;
  eps: number;
}

/** Where the keys and values of one row go: from a word of a buffer on, tokens of a head after each other. */
export interface Tail {
  buffer: GPUBuffer;
  word: number;
  tokens: number;
}

interface Joined {
  norm?: Norm;
  /** With the angles by which queries and keys are turned. */
  tail?: Tail & { angles: Tensor };
}

/** What becomes of joined products: they are written, they go on into a tail, or a gate is made of them. */
const FATES = ['out', 'tail', 'gate'] as const;
type Fate = (typeof FATES)[number];

/** A kernel that makes several products at once, and the rows that a workgroup of it takes. */
interface Joint {
  kernel: Kernel;
  rows: number;
}

/** What is known about a list of projections. */
interface Known {
  /** Whether one dispatch can make all of them, if a kernel for it fits the adapter: integers of one format. */
  joins: boolean;
  format: GpuFormat;
  /** Codes and scales of each. */
  weights: GPUBuffer[];
  rows: number[];
  /** Blocks of a row of theirs. */
  blocks: number;
  bundles: number;
  /** By the norm, the fate and the rows; none where no variant fits. */
  joints: Map<number, Joint | undefined>;
}

export class Products {
  private readonly lists = new WeakMap<readonly Projection[], Known>();
  /** Of a matrix by itself, by rows and bias. */
  private readonly choices = new WeakMap<GpuWeights, Map<number, Chosen>>();

  constructor(
    private readonly gpu: Gpu,
    private readonly options: ProductOptions,
  ) {}

  project(x: Tensor, rows: number, projections: readonly Projection[], norm?: Norm): void {
    if (this.canJoin(rows, projections)) this.projectJoined(x as GpuTensor, rows, projections, { norm });
    else if (!this.projectTiles(x as GpuTensor, rows, projections)) {
      this.gpu.mayBegin();
      for (const projection of projections) this.projectOne(x, rows, projection);
    }
  }

  private projectOne(x: Tensor, rows: number, { weights, out, bias, add }: Projection): void {
    const { pieces, format } = weights as GpuWeights;
    const matmul: Matmul = { format, precise: this.options.precise, bias: bias !== undefined };
    const input = takesInt8(matmul) ? this.int8Of(x as GpuTensor, rows) : [bufferOf(x)];
    const chosen = this.chosenFor(weights as GpuWeights, matmul, rows);
    for (const { codes, scales, firstRow, rows: outs } of pieces) {
      const buffers = [...input, codes];
      if (format.integer) buffers.push(scales);
      if (bias) buffers.push(bufferOf(bias));
      buffers.push(changed(out));
      const params = [outs, rows, x.cols / BLOCK, firstRow, weights.rows, add ? 1 : 0];
      this.gpu.run(chosen.kernel, params, buffers, [Math.ceil(outs / chosen.outs), Math.ceil(rows / chosen.rows)]);
    }
  }

  /** Many rows by several matrices: so their tiles go round better than those of each alone. False if they cannot. */
  private projectTiles(x: GpuTensor, rows: number, projections: readonly Projection[]): boolean {
    const { joins, format, weights, rows: outs } = this.knownOf(projections);
    if (rows <= SOME || !joins) return false;
    const m = { format, precise: false, bias: false };
    const all = outs.reduce((a, b) => a + b);
    const tile = this.tiles(all, rows).find(one => fits(this.tileKernel(m, one, outs.length), this.gpu.limits));
    if (!tile) return false;
    this.gpu.mayBegin();
    const tiles = outs.reduce((sum, n) => sum + Math.ceil(n / outsOf(tile)), 0);
    const buffers = [...this.int8Of(x, rows), ...weights, ...projections.map(({ out }) => changed(out))];
    const groups = [tiles, Math.ceil(rows / rowsOf(tile))];
    this.gpu.run(this.tileKernel(m, tile, outs.length), [rows, x.cols / BLOCK, ...outs], buffers, groups);
    return true;
  }

  /** Whether rows of prompts have a way of their own through these matrices. */
  takesPrompts(projections: readonly Projection[]): boolean {
    const { matrices, precise } = this.options;
    if (!matrices || precise) return false;
    return projections.every(({ weights, bias }) => {
      const { format } = weights as GpuWeights;
      const m = { format, precise, bias: bias !== undefined };
      return format.integer !== undefined && fits(this.matrixKernel(m, 1), this.gpu.limits);
    });
  }

  private matrixKernel(m: Matmul, count: number): Kernel {
    return this.known('matrices', count, m, () => matmulMatrices(m, MATRIX_TILE, count));
  }

  /** The last `prompts` of the rows. */
  projectPrompts(x: GpuTensor, rows: number, prompts: number, projections: readonly Projection[]): void {
    this.gpu.mayBegin();
    const first = rows - prompts;
    const halves = this.halvesOf(x, first, rows);
    const blocks = x.cols / BLOCK;
    const run = (kernel: Kernel, params: number[], buffers: GPUBuffer[], outs: readonly number[]) => {
      const tiles = outs.reduce((sum, n) => sum + Math.ceil(n / MATRIX_TILE.outs), 0);
      const groups = [tiles, Math.ceil(prompts / MATRIX_TILE.rows)];
      this.gpu.run(kernel, [...params, first], [halves, ...buffers], groups);
    };
    const { joins, format, weights, rows: outs } = this.knownOf(projections);
    const joined = joins && this.matrixKernel({ format, precise: false, bias: false }, outs.length);
    if (joined && fits(joined, this.gpu.limits)) {
      run(joined, [rows, blocks, ...outs], [...weights, ...projections.map(({ out }) => changed(out))], outs);
      return;
    }
    for (const { weights, out, bias, add } of projections) {
      const { pieces, format } = weights as GpuWeights;
      const kernel = this.matrixKernel({ format, precise: false, bias: bias !== undefined }, 1);
      for (const { codes, scales, firstRow, rows: outs } of pieces) {
        const buffers = [codes, scales, ...(bias ? [bufferOf(bias)] : []), changed(out)];
        run(kernel, [outs, rows, blocks, firstRow, weights.rows, add ? 1 : 0], buffers, [outs]);
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
      projections.every(({ bias, add }) => !bias && !add) &&
      matrices.every(({ pieces, format: own }) => pieces.length === 1 && own.name === format.name);
    const made = {
      joins,
      format,
      weights: matrices.flatMap(({ pieces: [{ codes, scales }] }) => [codes, scales]),
      rows: matrices.map(({ rows }) => rows),
      blocks: matrices[0].cols / BLOCK,
      bundles: matrices.reduce((sum, { rows }) => sum + Math.ceil(rows / BUNDLE), 0),
      joints: new Map(),
    };
    this.lists.set(projections, made);
    return made;
  }

  private canJoin(rows: number, projections: readonly Projection[]): boolean {
    return this.jointOf(rows, projections, 'out') !== undefined;
  }

  /** Whether products of this row can norm it on the way. */
  canNorm(rows: number, projections: readonly Projection[]): boolean {
    return this.jointOf(rows, projections, 'out', true) !== undefined;
  }

  /** Whether queries, keys and values can go on into a tail in their dispatch. */
  canStore(rows: number, projections: readonly Projection[], norm: boolean): boolean {
    return rows === 1 && projections.length === 3 && this.jointOf(1, projections, 'tail', norm) !== undefined;
  }

  /** Whether two projections and the gate after them can go in one dispatch: the gate's int8 comes in whole bundles. */
  canGate(rows: number, projections: readonly Projection[], norm: boolean): boolean {
    const whole = projections.length === 2 && projections[0].weights.rows % BUNDLE === 0;
    return whole && this.jointOf(rows, projections, 'gate', norm) !== undefined;
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
    const joint = this.jointOf(rows, projections, tail ? 'tail' : 'out', norm !== undefined)!;
    this.gpu.run(joint.kernel, params, buffers, [known.bundles, Math.ceil(rows / joint.rows)]);
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
    const joint = this.jointOf(rows, projections, 'gate', norm !== undefined)!;
    this.gpu.run(joint.kernel, params, buffers, [out.cols / BUNDLE, Math.ceil(rows / joint.rows)]);
    int8.fresh = rows;
  }

  /** The kernel that joins a list's products of a few rows, if there is one. */
  private jointOf(rows: number, projections: readonly Projection[], fate: Fate, norm = false): Joint | undefined {
    const known = this.knownOf(projections);
    if (rows > FEW || !known.joins) return undefined;
    const key = (rows * FATES.length + FATES.indexOf(fate)) * 2 + (norm ? 1 : 0);
    if (!known.joints.has(key)) known.joints.set(key, this.makeJoint(known, rows, fate, norm));
    return known.joints.get(key);
  }

  /** All rows in one workgroup, or half as many, and so on, whatever fits first. It does not show in results. */
  private makeJoint({ format, rows: outs, blocks }: Known, rows: number, fate: Fate, norm: boolean): Joint | undefined {
    const m = { format, precise: false, bias: false };
    const count = outs.length;
    for (let n = this.few(rows).rows; n >= 1; n /= 2) {
      const few = this.few(n, fate === 'gate' ? 2 : 1, norm ? blocks : undefined);
      if (norm && !canNormFew(few)) continue;
      const kernel = this.known(`joined ${fate} of ${count} ${few.norm}`, few.rows, m, () =>
        fate === 'gate'
          ? matmulGated(m, few)
          : matmulJoined(m, few, count, fate === 'tail' ? this.options.tail : undefined),
      );
      if (fits(kernel, this.gpu.limits)) return { kernel, rows: few.rows };
    }
    return undefined;
  }

  private known(kind: string, at: number, m: Matmul, make: () => Kernel): Kernel {
    return this.gpu.kernel(`${kind} ${at} ${nameOf(m)}`, make);
  }

  /** Large tiles, each for one team; where there are too few of them to go round, small ones for several teams. */
  private tiles(outs: number, rows: number): Tile[] {
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
    return smallerTiles(enough ? large : small);
  }

  private tileKernel(m: Matmul, tile: Tile, count = 1): Kernel {
    return this.known(`tile ${Object.values(tile)}`, count, m, () => matmulTile(m, tile, count));
  }

  /** `matrices` that are read at once; `norm`: blocks of a row that is normed on the way. */
  private few(rows: number, matrices = 1, norm?: number): Few {
    const { unroll } = this.options;
    const few = Math.min(2 ** Math.ceil(Math.log2(rows)), 2 * unroll);
    const ahead = unroll === 1 ? 1 : few * matrices === 1 ? AHEAD : AHEAD / 2;
    return { rows: few, invocations: this.gpu.limits.invocations, ahead, norm };
  }

  private chosenFor(weights: GpuWeights, m: Matmul, rows: number): Chosen {
    const byRows = this.choices.get(weights) ?? new Map<number, Chosen>();
    this.choices.set(weights, byRows);
    const key = 2 * rows + (m.bias ? 1 : 0);
    const chosen = byRows.get(key) ?? this.choose(m, weights.rows, rows);
    byRows.set(key, chosen);
    return chosen;
  }

  private choose(m: Matmul, outs: number, rows: number): Chosen {
    if (rows > SOME) {
      const tile = firstFit(this.tiles(outs, rows), one => [this.tileKernel(m, one)], this.gpu.limits);
      return { kernel: this.tileKernel(m, tile), outs: outsOf(tile), rows: rowsOf(tile) };
    }
    const most = this.few(rows).rows;
    const variants = [most, most / 2, most / 4, most / 8].filter(Number.isInteger).map(n => this.few(n));
    const kernelOf = (few: Few) => this.known('few', few.rows, m, () => matmulFew(m, few));
    const few = firstFit(variants, one => [kernelOf(one)], this.gpu.limits);
    return { kernel: kernelOf(few), outs: BUNDLE, rows: few.rows };
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
    const forget = () => {
      x.halves = undefined;
    };
    x.halves ??= { buffer: this.gpu.buffer(2 * x.rows * x.cols, 'halves', forget), first: 0, end: 0 };
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
    const forget = () => {
      x.int8 = undefined;
    };
    x.int8 ??= {
      codes: this.gpu.buffer(values, 'int8 activations', forget),
      stats: this.gpu.buffer((8 * values) / BLOCK, 'scales of activations', forget),
      fresh: 0,
    };
    return x.int8;
  }
}
