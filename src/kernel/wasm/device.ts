/**
 * The wasm device: SIMD kernels emitted for the model at hand, threads over shared memory. Weights are quantized
 * integers times int8 activations, cache pages are read packed; norms, softmax and sums are floats.
 */
import { ShapeError, UnsupportedError } from '../../errors.ts';
import { eventLoop } from '../../event-loop.ts';
import type { Block, Device, KvLayer, KvRun, KvView, Projection, Tensor, Weights } from '../device.ts';
import { firstCodedRow, skippedTokens, visibleSinks } from '../visibility.ts';
import type { WeightType } from '../weights/types.ts';
import { at, Banks, type Placed } from './banks.ts';
import { type Codecs, createCodecs } from './codecs.ts';
import { type AttendShape, SPLIT } from './kernels/attend.ts';
import { floats, halves, norm, rope, swiglu } from './kernels/basic.ts';
import { stateBytes } from './kernels/softmax.ts';
import { createLeafTables, type LeafTables } from './leaf-tables.ts';
import { type Heap, type Limits, openMemory } from './memory.ts';
import { moduleBytes } from './module.ts';
import { createPool, type Pool } from './pool.ts';
import { CONTROL_WORDS, MOST_TASKS } from './pool-workers.ts';
import { type Arithmetic, Products, productKernels } from './products.ts';
import { wasmSupport } from './support.ts';
import { createTurns, type Turns } from './turns.ts';

type WasmTensor = Tensor & Placed;
type WasmBlock = Block & Placed;
type Fill = Parameters<Device['loadWeights']>[3];

export interface WasmOptions {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
  /** As many as there are cores unless given; 1 without shared memory. */
  threads?: number;
  /** false: plain SIMD even where relaxed SIMD is there. */
  relaxed?: boolean;
  /** int16 activations, and cache pages read as floats: slower, and as good as floats throughout. */
  precise?: boolean;
  /** Of one WebAssembly memory, 64 KiB each; 4 GiB unless given. Weights that do not fit go on in further memories. */
  maxPages?: number;
}

const bits = new DataView(new ArrayBuffer(4));
function floatBits(x: number): number {
  bits.setFloat32(0, x);
  return bits.getInt32(0);
}

/** Rows from which it pays to turn the f16 tail into floats before they read it. */
const MANY = 8;

/** States of rows that attend together take at most this share of the first memory. */
const STATES_SHARE = 32;

/** Rows that are enough to make unpacking a page for them worth while. */
const PART_ROWS = 64;

/** Rows below which a step is too short to be worth waking other threads for the small operations. */
const ALONE = 4;

export async function createWasmDevice(options: WasmOptions): Promise<Device> {
  const support = await wasmSupport();
  if (!support.simd) throw new UnsupportedError("This WebAssembly has no SIMD. Use a newer engine, or device: 'js'.");
  if (options.headDim % 8 !== 0)
    throw new ShapeError(
      `The wasm device needs heads of a multiple of 8 dims, not ${options.headDim}. Use device: 'js'.`,
    );
  const relaxed = support.relaxedSimd && options.relaxed !== false;
  const precise = options.precise ?? false;
  const shared = support.sharedMemory;
  const threads = shared ? Math.max(1, Math.min(64, options.threads ?? (await coreCount()))) : 1;
  const maxPages = options.maxPages ?? 65536;
  const limits = { maxPages, shared };
  const heap = openMemory(limits);
  const pool = await createPool(heap.memory, heap.alloc(4 * CONTROL_WORDS), threads);
  const kernels = [norm(), rope(), swiglu(), halves(), floats(), ...productKernels({ relaxed, precise })];
  const banks = new Banks(heap, pool, moduleBytes(kernels, limits), limits);
  return new WasmDevice(options, banks, pool, limits, { relaxed, precise });
}

async function coreCount(): Promise<number> {
  const { availableParallelism } = await import('node:os');
  return availableParallelism();
}

class WasmDevice implements Device {
  readonly name = 'wasm';
  readonly threads: number;
  /** Pieces of a large operation: enough that a thread that comes late does not keep the others waiting. */
  private readonly chunks: number;
  private readonly shape: AttendShape;
  private readonly codecs: Codecs;
  private readonly leafTables: LeafTables;
  private readonly turns: Turns;
  private readonly products: Products;
  private readonly heap: Heap;

  constructor(
    { headDim, heads, kvHeads, pageTokens }: WasmOptions,
    private readonly banks: Banks,
    private readonly pool: Pool,
    limits: Limits,
    arithmetic: Arithmetic,
  ) {
    this.heap = banks.first;
    this.threads = pool.threads;
    this.chunks = 4 * pool.threads;
    this.shape = { headDim, kvHeads, pageTokens, group: heads / kvHeads, ...arithmetic };
    this.codecs = createCodecs(this.heap, pool, this.shape, limits);
    this.leafTables = createLeafTables(this.heap);
    this.turns = createTurns(this.heap, headDim, pageTokens);
    this.products = new Products(banks, pool, headDim, arithmetic, this.chunks, (...of) => this.run(...of));
  }

  get bytes(): number {
    return this.banks.bytes;
  }

  reserve(bytes: number): number {
    return this.banks.reserve(bytes);
  }

  /** Runs a small operation on `rows` rows: here, unless there are many. */
  private run(rows: number, kernel: string, ...args: number[]): void {
    this.pool.run(kernel, rows < ALONE ? 1 : Math.min(rows, this.chunks), ...args);
  }

  tensor(rows: number, cols: number): WasmTensor {
    const address = this.heap.alloc(4 * rows * cols);
    this.banks.floats(address, rows * cols).fill(0);
    return { rows, cols, address };
  }

  write(tensor: Tensor, row: number, data: Float32Array): void {
    this.banks.floats(at(tensor) + 4 * row * tensor.cols, data.length).set(data);
  }

  copy(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void {
    this.write(to, toRow, this.banks.floats(at(from) + 4 * fromRow * from.cols, rows * from.cols));
  }

  async read(tensor: Tensor, row: number): Promise<Float32Array<ArrayBuffer>> {
    return new Float32Array(this.banks.floats(at(tensor) + 4 * row * tensor.cols, tensor.cols));
  }

  block(bytes: number): WasmBlock {
    const address = this.heap.alloc(bytes);
    this.banks.raw(address, bytes).fill(0);
    return { bytes, address };
  }

  free(handle: Block | Tensor): void {
    this.heap.free(at(handle), 'bytes' in handle ? handle.bytes : 4 * handle.rows * handle.cols);
    if ('bytes' in handle) this.leafTables.forget(handle);
  }

  async readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(this.banks.raw(at(block), block.bytes));
  }

  writeBlock(block: Block, data: Uint8Array): void {
    this.banks.raw(at(block), block.bytes).set(data);
  }

  loadWeights(type: WeightType, rows: number, cols: number, fill: Fill): Promise<Weights> {
    return this.products.loadWeights(type, rows, cols, fill);
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void {
    this.products.embed(table, ids, out);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    this.products.project(x, rows, projections);
  }

  norm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void {
    const parts = (rows * x.cols) / weight.cols;
    this.run(rows, 'norm', at(x), at(out), at(weight), parts, weight.cols, floatBits(eps));
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    this.run(rows, 'rope', at(x), at(angles), rows, x.cols, headDim, angles.cols);
  }

  swiglu(gate: Tensor, up: Tensor, rows: number): void {
    this.run(rows, 'swiglu', at(gate), at(up), rows * gate.cols);
  }

  /** Learned codecs have kernels of their own in every layer: the event loop has its turn between two. */
  async loadCodecs(layers: readonly KvLayer[]): Promise<void> {
    for (const { keys, values } of layers) {
      this.codecs.moduleOf(keys.fragment, values.fragment);
      await eventLoop();
    }
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    for (const run of runs) this.appendRun(layer, k, v, run);
  }

  private appendRun(layer: number, k: Tensor, v: Tensor, { view, row, count, position }: KvRun): void {
    const { headDim, kvHeads, sinks, tailTokens } = view.shape;
    const store = (tensor: Tensor, block: number, room: number, first: number, n: number, place: number) => {
      const from = at(tensor) + 4 * (row + first) * tensor.cols;
      this.pool.run('halves', 1, from, tensor.cols, block + 2 * headDim * place, room, n, headDim, kvHeads);
    };
    [k, v].forEach((tensor, side) => {
      const tail = this.half(view, view.tail, layer, side, tailTokens);
      for (let done = 0; done < count; ) {
        const place = (position + done) % tailTokens;
        const n = Math.min(count - done, tailTokens - place);
        store(tensor, tail, tailTokens, done, n, place);
        done += n;
      }
      const kept = Math.min(count, sinks - position);
      if (kept > 0) store(tensor, this.half(view, view.sinkBlock, layer, side, sinks), sinks, 0, kept, position);
    });
  }

  /** Where one layer's keys (0) or values (1) lie in a tail or sink block. */
  private half({ shape }: KvView, block: Block, layer: number, side: number, tokens: number): number {
    return at(block) + 2 * shape.kvHeads * tokens * shape.headDim * (2 * layer + side);
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], scale: number): void {
    for (const run of runs) {
      const most = this.mostRows(layer, run);
      for (let done = 0; done < run.count; done += most) {
        const { row, position } = run;
        const part = { row: row + done, position: position + done, count: Math.min(most, run.count - done) };
        this.attendRun(layer, q, out, { ...run, ...part }, floatBits(scale));
      }
    }
  }

  /** Max rows that attend together: each has a state per KV head and split, and a long context has many splits. */
  private mostRows(layer: number, { view, sealed }: KvRun): number {
    const splits = Math.ceil((sealed - view.firstLeaf) / SPLIT);
    const rowBytes = view.shape.kvHeads * splits * this.stateBytes(view, layer);
    return Math.max(1, Math.floor(this.heap.capacity / STATES_SHARE / rowBytes));
  }

  /** Of the states of a KV head's query heads. */
  private stateBytes({ shape }: KvView, layer: number): number {
    return this.shape.group * stateBytes(shape.layers[layer].values.fragment.codedDim);
  }

  private attendRun(layer: number, q: Tensor, out: Tensor, run: KvRun, scale: number): void {
    const { view, row, count, position, sealed } = run;
    const { pageTokens, sinks, tailTokens, kvHeads } = view.shape;
    const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
    const module = this.codecs.moduleOf(keys.fragment, values.fragment);
    const pages = sealed - view.firstLeaf;
    const many = count >= MANY;
    const f16 = (name: string, block: Block, tokens: number) => {
      const from = this.half(view, block, layer, 0, tokens);
      if (!many || tokens === 0) return from;
      const values = 2 * kvHeads * tokens * view.shape.headDim;
      const to = this.banks.room(`${name} as floats`, 4 * values);
      this.pool.run('floats', this.chunks, from, to, values);
      return to;
    };
    const queries = at(q) + 4 * row * q.cols;
    const sinkCount = visibleSinks(sealed, view.shape);
    const splits = Math.ceil(pages / SPLIT);
    const stateSize = this.stateBytes(view, layer);
    const states = this.banks.room('states', count * kvHeads * splits * stateSize);
    if (pages > 0) {
      const prepared = this.banks.room('queries', count * kvHeads * module.queryBytes);
      const leaves = this.leafTables.addressOf(view);
      const skip = skippedTokens(view.firstLeaf * pageTokens, sealed, view.shape);
      this.run(count, module.prepare, queries, 4 * q.cols, prepared, count, scale);
      const turns = this.turns.addressOf(keys.fragment.turn, view.firstLeaf, sealed);
      // Heads and runs of pages alone may be too few to keep all threads busy.
      const part = Math.max(PART_ROWS, 4 * Math.ceil(count / (4 * MOST_TASKS)));
      this.pool.runAll(
        Array.from({ length: Math.ceil(count / part) }, (_, i) => ({
          kernel: many ? module.pagesMany : module.pages,
          chunks: splits * kvHeads,
          args: [
            prepared + i * part * kvHeads * module.queryBytes,
            states + i * part * kvHeads * splits * stateSize,
            leaves,
            keyOffset,
            valueOffset,
            Math.min(part, count - i * part),
            pages,
            skip,
            turns,
          ],
        })),
      );
    }
    this.pool.run(
      many ? module.finishMany : module.finish,
      count * kvHeads,
      queries,
      4 * q.cols,
      states,
      pages,
      f16('sinks', view.sinkBlock, sinks),
      sinks,
      sinkCount,
      f16('tail', view.tail, tailTokens),
      tailTokens,
      sealed * pageTokens,
      position,
      at(out) + 4 * row * out.cols,
      4 * out.cols,
      count,
      scale,
    );
  }

  seal(view: KvView, layer: number, page: number, leaf: Block): void {
    const { pageTokens, tailTokens, kvHeads } = view.shape;
    const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
    const module = this.codecs.moduleOf(keys.fragment, values.fragment);
    const start = (page * pageTokens) % tailTokens;
    const [tailKeys, tailValues] = [0, 1].map(side => this.half(view, view.tail, layer, side, tailTokens));
    const first = firstCodedRow(view.shape, page);
    const turn = this.turns.addressOf(keys.fragment.turn, page, page + 1);
    this.pool.run(module.sealKeys, kvHeads, tailKeys, tailTokens, start, first, at(leaf) + keyOffset, turn);
    this.pool.run(module.sealValues, kvHeads, tailValues, tailTokens, start, first, at(leaf) + valueOffset, 0);
  }

  async dispose(): Promise<void> {
    await this.pool.dispose();
  }
}
