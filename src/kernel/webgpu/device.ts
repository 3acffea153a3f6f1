/**
 * The webgpu device: every operation is a dispatch into one command encoder, submitted when somebody reads. Weights stay
 * quantized, pages are read packed, and their bytes are the same as on every other device.
 */
import { ShapeError, UnsupportedError } from '../../errors.ts';
import type {
  Block,
  Choice,
  Device,
  KvLayer,
  KvRun,
  KvView,
  PageCodec,
  Projection,
  Tensor,
  Weights,
} from '../device.ts';
import type { IntegerType } from '../weights/split.ts';
import type { WeightType } from '../weights/types.ts';
import { type AdapterInfo, openAdapter } from './adapter.ts';
import { createCodecs, type GpuCodec } from './codecs.ts';
import { type Binding, Gpu, type Placed } from './gpu.ts';
import type { AttendShape } from './kernels/attend.ts';
import { embed, groupsOf, norm, rope, swiglu } from './kernels/basic.ts';
import { CHOICE, choose, NONE } from './kernels/choose.ts';
import { append, type Domain, finish, prepare } from './kernels/domain.ts';
import { FEW_OUT, type Matmul, matmulFew, matmulTile, quantize, takesInt8 } from './kernels/matmul.ts';
import { code, pack, rotate, scalarsOf } from './kernels/seal.ts';
import { attendHalves, attendPages, HALF_TOKENS } from './kernels/sources.ts';
import { toF16 } from './kernels/text.ts';
import { type GpuBlock, Pool } from './pool.ts';
import { attendTable, type Batch, type Items, type Table } from './table.ts';
import { BLOCK, type GpuWeights, loadWeights, randomWeights } from './weights.ts';

export interface WebGpuOptions {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
  /** Float activations, and pages read as floats. */
  precise?: boolean;
  /** Largest binding, if less than the adapter has. */
  binding?: number;
  /**
   * Rows that an invocation of a matrix product takes at once, and half the queries that share what attention unpacks: 4,
   * and 1 where kernels are compiled for the CPU, slowly. It does not show in results.
   */
  unroll?: number;
}

type GpuTensor = Tensor & { buffer: GPUBuffer };
const bufferOf = (tensor: Tensor) => (tensor as GpuTensor).buffer;
const blockOf = (block: Block) => block as GpuBlock;

/** Bytes that the partial states of attention may take. */
const STATES = 64 << 20;
/** Up to this many rows a matrix is read once for each few of them; above, in tiles. */
const FEW_ROWS = 16;

export async function createWebGpuDevice(options: WebGpuOptions): Promise<WebGpuDevice> {
  if (options.headDim % 2 !== 0)
    throw new ShapeError(
      `The webgpu device needs heads of an even number of dims, not ${options.headDim}. Use device: 'js'.`,
    );
  const { device, info } = await openAdapter();
  return new WebGpuDevice(new Gpu(device), info, options);
}

export class WebGpuDevice implements Device {
  readonly name = 'webgpu';
  readonly threads = 1;
  private readonly shape: AttendShape;
  private readonly heads: number;
  private readonly precise: boolean;
  private readonly binding: number;
  private readonly unroll: number;
  private readonly codecOf: ReturnType<typeof createCodecs>;
  private readonly pools = new Map<string, Pool>();
  private readonly rooms = new Map<string, GPUBuffer>();
  private readonly tables = new WeakMap<readonly KvRun[], { table: Table; placed?: Placed }>();

  constructor(
    readonly gpu: Gpu,
    readonly info: AdapterInfo,
    { headDim, heads, kvHeads, pageTokens, precise = false, binding = info.limits.binding, unroll }: WebGpuOptions,
  ) {
    this.shape = { headDim, kvHeads, pageTokens, group: heads / kvHeads };
    this.heads = heads;
    this.precise = precise;
    this.binding = Math.min(binding, info.limits.binding, info.limits.buffer);
    this.unroll = unroll ?? (info.software ? 1 : 4);
    this.codecOf = createCodecs(gpu, this.shape, precise);
  }

  get bytes(): number {
    return this.gpu.bytes;
  }

  /** Room that grows as needed and is reused from step to step. */
  private room(name: string, bytes: number): GPUBuffer {
    const has = this.rooms.get(name);
    if (has && has.size >= bytes) return has;
    if (has) this.gpu.destroy(has);
    const buffer = this.gpu.buffer(bytes, name);
    this.rooms.set(name, buffer);
    return buffer;
  }

  tensor(rows: number, cols: number): GpuTensor {
    return { rows, cols, buffer: this.gpu.buffer(4 * rows * cols, `tensor ${rows} x ${cols}`) };
  }

  write(tensor: Tensor, row: number, data: Float32Array): void {
    this.gpu.upload(bufferOf(tensor), 4 * row * tensor.cols, new Uint8Array(Float32Array.from(data).buffer));
  }

  copy(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void {
    const bytes = 4 * from.cols;
    this.gpu.copy(bufferOf(from), fromRow * bytes, bufferOf(to), toRow * bytes, rows * bytes);
  }

  async read(tensor: Tensor, row: number): Promise<Float32Array<ArrayBuffer>> {
    const bytes = 4 * tensor.cols;
    return new Float32Array(await this.gpu.read(bufferOf(tensor), row * bytes, bytes));
  }

  async choose(logits: Tensor, choices: readonly Choice[]): Promise<(number | undefined)[]> {
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
    const chosen = this.room('chosen tokens', 4 * Math.max(64, choices.length));
    this.gpu.run(choose, [word, logits.cols], [this.gpu.arena, bufferOf(logits), chosen], [choices.length]);
    const ids = new Uint32Array(await this.gpu.read(chosen, 0, 4 * choices.length));
    return Array.from(ids, id => (id === NONE ? undefined : id));
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

  free(handle: Block | Tensor): void {
    if ('bytes' in handle) blockOf(handle).pool.free(blockOf(handle));
    else this.gpu.destroy(bufferOf(handle));
  }

  readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>> {
    return blockOf(block).pool.read(blockOf(block));
  }

  writeBlock(block: Block, data: Uint8Array): void {
    blockOf(block).pool.write(blockOf(block), data);
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void {
    const { cols, format, pieces } = table as GpuWeights;
    this.gpu.makeRoom(4 * ids.length);
    const { word } = this.gpu.place(ids);
    for (const { codes, scales, firstRow, rows } of pieces) {
      const buffers = [this.gpu.arena, codes, ...(format.integer ? [scales] : []), bufferOf(out)];
      this.gpu.run(embed(format), [cols, firstRow, rows, word], buffers, [groupsOf(cols), ids.length]);
    }
  }

  norm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void {
    const parts = (rows * x.cols) / weight.cols;
    const inPlace = x === out;
    const buffers = [weight, x, ...(inPlace ? [] : [out])].map(bufferOf);
    const groups = [Math.min(parts, 65535), Math.ceil(parts / 65535)];
    this.gpu.run(norm(inPlace), [weight.cols, eps, parts], buffers, groups);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    const blocks = (rows * x.cols) / BLOCK;
    const kinds = projections.map(({ weights, bias }): Matmul => {
      return { format: (weights as GpuWeights).format, precise: this.precise, bias: bias !== undefined };
    });
    let int8: GPUBuffer[] = [];
    if (kinds.some(takesInt8)) {
      int8 = [this.room('int8 activations', 32 * blocks), this.room('scales of activations', 8 * blocks)];
      const groups = Math.ceil(blocks / 64);
      this.gpu.run(quantize, [blocks], [bufferOf(x), ...int8], [Math.min(groups, 65535), Math.ceil(groups / 65535)]);
    }
    projections.forEach(({ weights, out, bias, add }, i) => {
      const { pieces, format } = weights as GpuWeights;
      const input = takesInt8(kinds[i]) ? int8 : [bufferOf(x)];
      for (const { codes, scales, firstRow, rows: outs } of pieces) {
        const buffers = [
          ...input,
          codes,
          ...(format.integer ? [scales] : []),
          ...(bias ? [bufferOf(bias)] : []),
          bufferOf(out),
        ];
        const params = [outs, rows, x.cols / BLOCK, firstRow, weights.rows, add ? 1 : 0];
        if (rows > FEW_ROWS) {
          const tile = 16 * this.unroll;
          const groups = [Math.ceil(outs / tile), Math.ceil(rows / tile)];
          this.gpu.run(matmulTile(kinds[i], this.unroll), params, buffers, groups);
        } else {
          const few = Math.min(rows, this.unroll);
          this.gpu.run(matmulFew(kinds[i], few), params, buffers, [Math.ceil(outs / FEW_OUT), Math.ceil(rows / few)]);
        }
      }
    });
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    const pairs = angles.cols / 2;
    const groups = [groupsOf((x.cols / headDim) * pairs), rows];
    this.gpu.run(rope, [rows, x.cols, headDim, pairs], [bufferOf(angles), bufferOf(x)], groups);
  }

  swiglu(gate: Tensor, up: Tensor, rows: number): void {
    this.gpu.run(swiglu, [gate.cols], [bufferOf(up), bufferOf(gate)], [groupsOf(gate.cols), rows]);
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    const { headDim, kvHeads } = this.shape;
    for (const some of alike(runs)) {
      const { shape, tail, sinkBlock } = some[0].view;
      const words = some.flatMap(({ view, row, count, position }) => [
        row,
        count,
        position,
        blockOf(view.tail).slot,
        blockOf(view.sinkBlock).slot,
      ]);
      this.gpu.makeRoom(4 * words.length);
      const { word } = this.gpu.place(words);
      const most = Math.max(...some.map(({ count }) => count));
      const store = (block: Block, tokens: number, sinks: boolean) => {
        const { pool } = blockOf(block);
        const buffers = [this.gpu.arena, bufferOf(k), bufferOf(v), pool.buffers[layer]];
        const params = [word, pool.strides[layer], tokens, sinks ? 4 : 3];
        const groups = [Math.ceil((kvHeads * headDim) / 128), most, some.length];
        this.gpu.run(append(headDim, kvHeads, sinks, toF16), params, buffers, groups);
      };
      store(tail, shape.tailTokens, false);
      if (some.some(({ position }) => position < shape.sinks)) store(sinkBlock, shape.sinks, true);
    }
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], scale: number): void {
    for (const some of alike(runs)) {
      const { keys, values } = some[0].view.shape.layers[layer];
      const [key, value] = [this.codecOf(keys.fragment), this.codecOf(values.fragment)];
      const tile = this.tileOf(key, value);
      const { table } = this.tableOf(some, tile);
      for (const batch of table.batches) {
        const { word } = this.tableOf(some, tile);
        this.attendBatch(layer, q, out, some[0].view, { key, value }, batch, word, tile, scale);
      }
    }
  }

  /** Rows that share a workgroup: as many as make its queries worth the unpacking, and as its memory holds. */
  private tileOf(key: GpuCodec, value: GpuCodec): number {
    const { group, pageTokens } = this.shape;
    const bytes = 4 * (key.keys.loaded + 1.5 * Math.max(pageTokens, HALF_TOKENS) + 40);
    const fixed = 4 * (key.keys.fixed + value.values.fixed);
    const most = Math.floor((this.info.limits.workgroupMemory - fixed) / bytes);
    if (most < group)
      throw new UnsupportedError(
        `${group} query heads a KV head of ${value.fragment.codedDim} coded dims exceed the GPU's workgroup memory. Use another codec, or device: 'wasm'.`,
      );
    return Math.max(1, Math.floor(Math.min(2 * this.unroll, most) / group));
  }

  private tableOf(runs: readonly KvRun[], tile: number): { table: Table; word: number } {
    let known = this.tables.get(runs);
    if (!known) {
      const stateBytes = 4 * this.heads * (2 * this.shape.headDim + 2);
      known = { table: attendTable(runs, tile, Math.floor(Math.min(STATES, this.binding) / stateBytes)) };
      this.tables.set(runs, known);
    }
    this.gpu.makeRoom(known.table.words.byteLength);
    if (known.placed?.generation !== this.gpu.generation) known.placed = this.gpu.place(known.table.words);
    return { table: known.table, word: known.placed.word };
  }

  private domainOf(codec: GpuCodec): Domain {
    const { headDim, kvHeads } = this.shape;
    const { codedDim, matrix, mean } = codec.fragment;
    const flags = { matrix: matrix !== undefined, perHead: codec.perHead, mean: mean !== undefined };
    return { headDim, codedDim, heads: this.heads, kvHeads, ...flags };
  }

  private attendBatch(
    layer: number,
    q: Tensor,
    out: Tensor,
    view: KvView,
    { key, value }: { key: GpuCodec; value: GpuCodec },
    batch: Batch,
    word: number,
    tile: number,
    scale: number,
  ): void {
    const { shape } = view;
    const { kvHeads, headDim } = this.shape;
    const { keyOffset, valueOffset } = shape.layers[layer];
    const stateBytes = (dim: number) => 4 * this.heads * (dim + 2);
    const states = this.room('states of pages', batch.pageStates * stateBytes(value.fragment.codedDim));
    const halfStates = this.room('states of halves', batch.halfStates * stateBytes(headDim));
    const each = (items: Items, run: (rows: number, first: number, groups: number[]) => void) => {
      if (items.one.count > 0) run(1, items.one.word, [items.one.count, kvHeads]);
      if (items.many.count > 0) run(tile, items.many.word, [items.many.count, kvHeads]);
    };
    if (batch.pageStates > 0) {
      const tables = [key.tables, value.tables].filter(buffer => buffer !== undefined);
      const more = [...tables, ...(key.fragment.turn ? [this.turnsOf(key, view)] : [])];
      const queries = key.fragment.turn ? bufferOf(q) : this.prepare(q, key, batch, word, scale);
      const { pool } = blockOf(view.leaves[0]);
      each(batch.pages, (rows, first, groups) => {
        const keys = { fragment: key.fragment, part: key.keys, tables: key.tables !== undefined };
        const values = { fragment: value.fragment, part: value.values, tables: value.tables !== undefined };
        const kernel = attendPages(keys, values, this.shape, rows);
        const params = [word, first, pool.strides[layer], valueOffset - keyOffset, scale];
        this.gpu.run(
          kernel,
          params,
          [this.gpu.arena, queries, pool.buffers[layer], pool.buffers[layer], ...more, states],
          groups,
        );
      });
    }
    const [tails, sinks] = [blockOf(view.tail).pool, blockOf(view.sinkBlock).pool];
    each(batch.halves, (rows, first, groups) => {
      const rooms = [tails.strides[layer], shape.tailTokens, sinks.strides[layer], Math.max(1, shape.sinks)];
      const buffers = [this.gpu.arena, bufferOf(q), tails.buffers[layer], sinks.buffers[layer], halfStates];
      this.gpu.run(attendHalves(this.shape, rows), [word, first, ...rooms, scale], buffers, groups);
    });
    const tables = [value.matrix, value.mean].filter(buffer => buffer !== undefined);
    const buffers = [this.gpu.arena, states, halfStates, ...tables, bufferOf(out)];
    const groups = [this.heads, batch.finish.count];
    this.gpu.run(finish(this.domainOf(value)), [word, batch.finish.word], buffers, groups);
  }

  /** Queries in the domain of the keys. */
  private prepare(q: Tensor, key: GpuCodec, batch: Batch, word: number, scale: number): GPUBuffer {
    const queries = this.room('queries', 4 * q.rows * this.heads * key.keys.words);
    const tables = [key.transposed, key.mean].filter(buffer => buffer !== undefined);
    const buffers = [this.gpu.arena, bufferOf(q), ...tables, queries];
    const groups = [this.heads, batch.finish.count];
    this.gpu.run(prepare(this.domainOf(key), key.int8), [word, batch.finish.word, scale], buffers, groups);
    return queries;
  }

  /** Cosine and sine of every pair where each page begins, made in f64: for twice the pages that are asked for. */
  private turnsOf({ fragment, name }: GpuCodec, { shape, leaves, firstLeaf }: KvView): GPUBuffer {
    const turn = fragment.turn!;
    const pages = firstLeaf + leaves.length;
    const has = this.rooms.get(name);
    if (has && has.size >= 8 * pages * turn.length) return has;
    const table = Array.from({ length: 2 * pages }, (_, page) =>
      [...turn].map(angle => turnOf(angle * page * shape.pageTokens)),
    );
    const data = Float32Array.from(table.flat(2));
    const buffer = this.room(name, data.byteLength);
    this.gpu.upload(buffer, 0, new Uint8Array(data.buffer));
    return buffer;
  }

  seal(view: KvView, layer: number, page: number, leaf: Block): void {
    const { keys, values, keyOffset, valueOffset }: KvLayer = view.shape.layers[layer];
    this.sealSide(view, layer, page, leaf, keys, 0, 0);
    this.sealSide(view, layer, page, leaf, values, 1, valueOffset - keyOffset);
  }

  private sealSide(
    view: KvView,
    layer: number,
    page: number,
    leaf: Block,
    codec: PageCodec,
    side: number,
    offset: number,
  ): void {
    const { kvHeads, headDim, pageTokens } = this.shape;
    const known = this.codecOf(codec.fragment);
    const { fragment, name } = known;
    const values = kvHeads * pageTokens * headDim;
    const y = this.room('vectors to seal', 4 * values);
    const codes = this.room('codes', 8 * values);
    const scalars = this.room('scalars', 4 * kvHeads * scalarsOf(fragment, this.shape));
    const start = page * pageTokens;
    const turns = Float32Array.from([...(fragment.turn ?? [])].flatMap(angle => turnOf(angle * start)));
    this.gpu.makeRoom(turns.byteLength);
    const turn = turns.length > 0 ? this.gpu.place(turns).word : 0;
    const tail = blockOf(view.tail);
    const tables = [known.encode, known.mean].filter(buffer => buffer !== undefined);
    const rotateParams = [tail.slot, tail.pool.strides[layer], side, view.shape.tailTokens, start, turn];
    const rotateBuffers: Binding[] = [this.gpu.arena, tail.pool.buffers[layer], ...tables, y];
    this.gpu.run(rotate(fragment, this.shape), rotateParams, rotateBuffers, [pageTokens, kvHeads]);
    const more = [known.residual, known.tables].filter(buffer => buffer !== undefined);
    for (const { kernel, groups } of code(name, fragment, this.shape)) {
      this.gpu.run(kernel, [0], [y, codes, scalars, ...more], groups);
    }
    const { pool, slot } = blockOf(leaf);
    const at = slot * pool.strides[layer] + offset;
    const words = Math.ceil(codec.pageBytes / 4);
    const packed = pack(name, fragment, codec.pageBytes, this.shape);
    const places = packed.buffers.length > 3 ? [known.tables!] : [];
    this.gpu.run(packed, [at], [codes, scalars, ...places, pool.buffers[layer]], [Math.ceil(words / 64)]);
  }

  async dispose(): Promise<void> {
    this.gpu.device.destroy();
  }
}

const turnOf = (angle: number) => [Math.cos(angle), Math.sin(angle)];

/** Runs of sequences with the same codecs and windows go together. */
function alike(runs: readonly KvRun[]): readonly (readonly KvRun[])[] {
  const same = ({ view: a }: KvRun, { view: b }: KvRun) =>
    a.shape.layers === b.shape.layers && a.shape.tailTokens === b.shape.tailTokens && a.shape.sinks === b.shape.sinks;
  if (runs.every(run => same(run, runs[0]))) return [runs];
  const kinds: KvRun[][] = [];
  for (const run of runs) {
    const kind = kinds.find(([first]) => same(first, run));
    if (kind) kind.push(run);
    else kinds.push([run]);
  }
  return kinds;
}
