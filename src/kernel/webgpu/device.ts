/**
 * The webgpu device: every operation is a dispatch into one command encoder, submitted when somebody reads. Weights stay
 * quantized, pages are read packed, and their bytes are the same as on every other device.
 */
import { type DeviceError, ShapeError } from '../../errors.ts';
import type { Block, Choice, Chosen, Device, KvRun, KvView, Projection, Tensor, Weights } from '../device.ts';
import type { IntegerType } from '../weights/split.ts';
import type { WeightType } from '../weights/types.ts';
import { type AdapterInfo, type LowerLimits, openAdapter } from './adapter.ts';
import { Attention } from './attention.ts';
import { createCodecs } from './codecs.ts';
import { Gpu } from './gpu.ts';
import { groupsOfFours, swiglu } from './kernels/activations.ts';
import { embed, groupsOf, rope } from './kernels/basic.ts';
import { CHOICE, choose, NONE, SURVEY, SURVEYS, survey } from './kernels/choose.ts';
import { norm } from './kernels/norm.ts';
import { type GpuBlock, Pool } from './pool.ts';
import { type Norm, Products } from './products.ts';
import { Sealing } from './sealing.ts';
import { blockOf, bufferOf, changed, type GpuTensor, renewed } from './tensor.ts';
import { BLOCK, type GpuWeights, loadWeights, randomWeights } from './weights.ts';

export interface WebGpuOptions {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
  /** Float activations, and pages read as floats. */
  precise?: boolean;
  /** Lower limits than the adapter's. */
  limits?: LowerLimits;
  /** Whether to use WGSL's own int8 dots: where it has them. It does not show in results. */
  packedDots?: boolean;
  /**
   * Rows that an invocation of a matrix product takes at once, and half the queries that share what attention unpacks: 4,
   * and 1 where kernels are compiled for the CPU, slowly. It does not show in results.
   */
  unroll?: number;
  /** Pages that a workgroup of attention takes: 4. It shows in the last bits of results, so a cache keeps to one. */
  split?: number;
  /** Whether lanes may work together in subgroups: where the adapter has them. */
  subgroups?: boolean;
  /**
   * Whether rows of prompts are multiplied by subgroup matrices, and pages of f16 and fp8: where the adapter has them. It
   * shows in results.
   */
  matrices?: boolean;
}

/**
 * An operation that the next one may be able to join: a row is normed by the products that read it, queries and keys are
 * turned at once, and on the way into the cache where all rows go there, by the products that make them if it is one row;
 * two products are gated.
 */
type Waiting =
  | ({ kind: 'norm'; out: Tensor } & Norm)
  | { kind: 'turn'; tensors: readonly Tensor[]; rows: number; headDim: number; angles: Tensor; of?: WaitingProducts }
  | WaitingProducts;

interface WaitingProducts {
  kind: 'products';
  x: Tensor;
  rows: number;
  projections: readonly Projection[];
  norm?: Norm;
}

/** Chosen tokens that are still there under their names. */
const REMEMBERED = 4096;

export async function createWebGpuDevice(options: WebGpuOptions): Promise<WebGpuDevice> {
  if (options.headDim % 2 !== 0)
    throw new ShapeError(
      `The webgpu device needs heads of an even number of dims, not ${options.headDim}. Use device: 'js'.`,
    );
  const { device, info } = await openAdapter(options.limits);
  return new WebGpuDevice(new Gpu(device, options.packedDots ?? info.packedDots), info, options);
}

export class WebGpuDevice implements Device {
  readonly name = 'webgpu';
  readonly threads = 1;
  private readonly binding: number;
  private readonly pools = new Map<string, Pool>();
  private readonly products: Products;
  private readonly attention: Attention;
  private readonly sealing: Sealing;
  private waiting?: Waiting;
  /** The tokens that were chosen last, and where the next ones go: around, so that a name is good for a while. */
  private readonly chosen: GPUBuffer;
  private choices = 0;

  constructor(
    readonly gpu: Gpu,
    readonly info: AdapterInfo,
    { headDim, heads, kvHeads, pageTokens, precise = false, ...rest }: WebGpuOptions,
  ) {
    const known = rest.subgroups !== false && info.subgroups >= 4 && info.subgroupMin === info.subgroups;
    const matrices = rest.matrices ?? info.matrices;
    const subgroups = known ? info.subgroups : 0;
    const narrow = matrices && info.narrowMatrices;
    const shape = { headDim, kvHeads, pageTokens, group: heads / kvHeads, subgroups, matrices: narrow, f16: info.f16 };
    const unroll = rest.unroll ?? (info.software ? 1 : 4);
    this.binding = Math.min(info.limits.binding, info.limits.buffer);
    const codecOf = createCodecs(gpu, shape, precise);
    this.products = new Products(gpu, { precise, unroll, matrices, tail: { headDim, kvHeads } });
    this.attention = new Attention(gpu, shape, codecOf, {
      heads,
      unroll,
      split: rest.split ?? 4,
      limits: gpu.limits,
      binding: this.binding,
    });
    this.sealing = new Sealing(gpu, shape, codecOf);
    this.chosen = gpu.buffer(4 * REMEMBERED, 'chosen tokens');
  }

  get bytes(): number {
    return this.gpu.bytes;
  }

  get lost(): Promise<DeviceError> {
    return this.gpu.lost;
  }

  async warmUp(plan: () => void | Promise<void>): Promise<void> {
    const kernels = await this.gpu.plan(async () => {
      await plan();
      this.settle();
    });
    await this.gpu.compile(kernels);
  }

  tensor(rows: number, cols: number): GpuTensor {
    return { rows, cols, buffer: this.gpu.buffer(4 * rows * cols, `tensor ${rows} x ${cols}`) };
  }

  write(tensor: Tensor, row: number, data: Float32Array): void {
    this.settle();
    this.gpu.upload(changed(tensor), 4 * row * tensor.cols, new Uint8Array(Float32Array.from(data).buffer));
  }

  copy(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void {
    this.settle();
    const bytes = 4 * from.cols;
    this.gpu.copy(bufferOf(from), fromRow * bytes, changed(to), toRow * bytes, rows * bytes);
  }

  async read(tensor: Tensor, row: number): Promise<Float32Array<ArrayBuffer>> {
    this.settle();
    const bytes = 4 * tensor.cols;
    return new Float32Array(await this.gpu.read(bufferOf(tensor), row * bytes, bytes));
  }

  choose(logits: Tensor, choices: readonly Choice[]): Chosen {
    this.settle();
    // Just below 1, so that a draw ends within the weights whatever their sum was rounded to.
    const words = Float32Array.from(
      choices.flatMap(({ temperature, topP, minP, random }) => [
        0,
        temperature,
        0,
        topP,
        minP,
        Math.min(random, 0.999999),
      ]),
    );
    const whole = new Uint32Array(words.buffer);
    choices.forEach(({ row, topK }, i) => {
      whole[CHOICE * i] = row;
      whole[CHOICE * i + 2] = topK;
    });
    this.gpu.makeRoom(words.byteLength);
    const { word } = this.gpu.place(words);
    if (this.choices + choices.length > REMEMBERED) this.choices = 0;
    const first = this.choices;
    this.choices += choices.length;
    const found = this.gpu.room('surveys of logits', 4 * SURVEY * SURVEYS * Math.max(64, choices.length));
    const kernel = this.gpu.kernel('choose', () => choose(Math.min(1024, this.gpu.limits.invocations)));
    const inputs = [this.gpu.arena, bufferOf(logits)];
    this.gpu.run(survey, [word, logits.cols], [...inputs, found], [SURVEYS, choices.length]);
    this.gpu.run(kernel, [word, logits.cols, first], [...inputs, found, this.chosen], [choices.length]);
    const read = this.gpu.read(this.chosen, 4 * first, 4 * choices.length);
    return {
      ids: read.then(bytes => Array.from(new Uint32Array(bytes), id => (id === NONE ? undefined : id))),
      names: choices.map((_, i) => -1 - first - i),
    };
  }

  loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<Weights> {
    return loadWeights(this.gpu, this.binding, type, rows, cols, fill);
  }

  /** Random codes: for timing alone. */
  randomWeights(type: IntegerType, rows: number, cols: number): Weights {
    return randomWeights(this.gpu, this.binding, type, rows, cols);
  }

  block(bytes: number, cuts: readonly number[] = [0]): Block {
    const key = `${bytes}:${cuts}`;
    const pool = this.pools.get(key) ?? new Pool(this.gpu, bytes, cuts, this.binding);
    this.pools.set(key, pool);
    return pool.take();
  }

  ready(views: readonly KvView[]): Promise<void> | undefined {
    for (const pool of this.pools.values()) if (pool.isShort) return this.growFor(views);
    return undefined;
  }

  /** Pools that grow for others are not waited for; one that has grown for others may have to grow again. */
  private async growFor(views: readonly KvView[]): Promise<void> {
    const blocks = views.flatMap(({ tail, sinkBlock, leaves }) => [tail, sinkBlock, ...leaves]) as GpuBlock[];
    for (const block of blocks) while (!block.pool.has(block)) await block.pool.grow();
  }

  free(handle: Block | Tensor): void {
    // After a failure nothing can be recorded, and nobody will read what waits.
    if (this.gpu.failed) this.waiting = undefined;
    this.settle();
    if ('bytes' in handle) (handle as GpuBlock).pool.free(handle as GpuBlock);
    else {
      const { buffer, int8, halves } = handle as GpuTensor;
      const more = [...(int8 ? [int8.codes, int8.stats] : []), ...(halves ? [halves.buffer] : [])];
      for (const one of [buffer, ...more]) this.gpu.destroy(one);
    }
  }

  readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>> {
    return blockOf(block).pool.read(blockOf(block));
  }

  writeBlock(block: Block, data: Uint8Array): void {
    blockOf(block).pool.write(blockOf(block), data);
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void {
    this.settle();
    const { cols, format, pieces } = table as GpuWeights;
    this.gpu.makeRoom(4 * ids.length);
    const { word } = this.gpu.place(ids);
    const kernel = this.gpu.kernel(`embed ${format.name}`, () => embed(format));
    for (const { codes, scales, firstRow, rows } of pieces) {
      const buffers = [this.gpu.arena, this.chosen, codes, ...(format.integer ? [scales] : []), changed(out)];
      this.gpu.run(kernel, [cols / BLOCK, firstRow, rows, word], buffers, [groupsOf(cols), ids.length]);
    }
  }

  norm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void {
    this.settle();
    if (rows === 1 && x !== out && x.cols === weight.cols) this.waiting = { kind: 'norm', x, weight, eps, out };
    else this.runNorm(x, rows, weight, eps, out);
  }

  private runNorm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void {
    const parts = (rows * x.cols) / weight.cols;
    const inPlace = x === out;
    const floats = [weight, x, ...(inPlace ? [] : [out])].map(bufferOf);
    changed(out);
    const int8 = inPlace || parts > rows ? [] : renewed(out);
    const fours = weight.cols % 4 === 0;
    const kernel = this.gpu.kernel(`norm ${inPlace} ${fours} ${int8.length}`, () =>
      norm(inPlace, fours, int8.length > 0),
    );
    const groups = [Math.min(parts, 65535), Math.ceil(parts / 65535)];
    this.gpu.run(kernel, [weight.cols, eps, parts], [...floats, ...int8], groups);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[], prompts = 0): void {
    if (prompts > 0 && this.products.takesPrompts(projections)) {
      this.settle();
      this.products.projectPrompts(x as GpuTensor, rows, prompts, projections);
      if (rows > prompts) this.project(x, rows - prompts, projections);
      return;
    }
    const { waiting } = this;
    const norm =
      waiting?.kind === 'norm' && waiting.out === x && this.products.canNorm(rows, projections) ? waiting : undefined;
    if (norm) this.waiting = undefined;
    this.settle();
    const normed = norm !== undefined;
    const waits = this.products.canGate(rows, projections, normed) || this.products.canStore(rows, projections, normed);
    if (waits) this.waiting = { kind: 'products', x, rows, projections, norm };
    else this.products.project(x, rows, projections, norm);
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    const { waiting } = this;
    const same =
      waiting?.kind === 'turn' && waiting.rows === rows && waiting.headDim === headDim && waiting.angles === angles;
    if (same && waiting.tensors.length === 1 && waiting.tensors[0] !== x) {
      this.waiting = { ...waiting, tensors: [...waiting.tensors, x] };
    } else {
      const of = waiting?.kind === 'products' && waiting.projections.length === 3 ? waiting : undefined;
      if (!of) this.settle();
      this.waiting = { kind: 'turn', tensors: [x], rows, headDim, angles, of };
    }
  }

  private turn(tensors: readonly Tensor[], rows: number, headDim: number, angles: Tensor): void {
    const pairs = angles.cols / 2;
    const cols = tensors.map(x => x.cols);
    const kernel = this.gpu.kernel(`rope ${tensors.length}`, () => rope(tensors.length === 2 ? 2 : 1));
    const groups = [groupsOf((cols.reduce((a, b) => a + b) / headDim) * pairs), rows];
    const buffers = [bufferOf(angles), ...tensors.map(changed)];
    this.gpu.run(kernel, [headDim, pairs, cols[0], cols[1] ?? 0], buffers, groups);
  }

  swiglu(gate: Tensor, up: Tensor, rows: number): void {
    const { waiting } = this;
    if (waiting?.kind === 'products' && waiting.rows === rows && waiting.projections.length === 2) {
      const [first, second] = waiting.projections;
      if (first.out === gate && second.out === up) {
        this.waiting = undefined;
        this.products.gate(waiting.x as GpuTensor, rows, waiting.projections, waiting.norm);
        return;
      }
    }
    this.settle();
    const floats = [bufferOf(up), changed(gate)];
    const int8 = renewed(gate);
    const kernel = this.gpu.kernel(`swiglu ${int8.length}`, () => swiglu(int8.length > 0));
    const values = rows * gate.cols;
    this.gpu.run(kernel, [values / 4], [...floats, ...int8], groupsOfFours(values));
  }

  /** Runs what waits for an operation that it could go together with. */
  private settle(): void {
    const { waiting } = this;
    this.waiting = undefined;
    if (waiting?.kind === 'norm') this.runNorm(waiting.x, 1, waiting.weight, waiting.eps, waiting.out);
    const products = waiting?.kind === 'turn' ? waiting.of : waiting?.kind === 'products' ? waiting : undefined;
    if (products) this.products.project(products.x, products.rows, products.projections, products.norm);
    if (waiting?.kind === 'turn') this.turn(waiting.tensors, waiting.rows, waiting.headDim, waiting.angles);
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    const { waiting } = this;
    const rows = runs.reduce((sum, { count }) => sum + count, 0);
    if (waiting?.kind === 'turn' && waiting.tensors[1] === k && waiting.rows === rows) {
      this.waiting = undefined;
      const { tensors, angles, of } = waiting;
      const tail =
        of && [...tensors, v].every((x, i) => of.projections[i].out === x) && this.attention.tailOf(layer, runs);
      if (tail)
        this.products.projectJoined(of.x as GpuTensor, 1, of.projections, { norm: of.norm, tail: { ...tail, angles } });
      else {
        if (of) this.products.project(of.x, of.rows, of.projections, of.norm);
        this.attention.append(layer, k, v, runs, { q: tensors[0], angles });
      }
    } else {
      this.settle();
      this.attention.append(layer, k, v, runs);
    }
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], scale: number): void {
    this.settle();
    this.attention.attend(layer, q, out, runs, scale);
  }

  seal(view: KvView, layer: number, page: number, leaf: Block): void {
    this.sealing.seal(view, layer, page, leaf);
  }

  async dispose(): Promise<void> {
    this.gpu.dispose();
  }
}
