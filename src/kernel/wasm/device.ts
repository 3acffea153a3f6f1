/**
 * The wasm device: SIMD kernels generated for the loaded model, run by threads over shared memory. Projections multiply
 * quantized weights by int8 activations, attention reads packed cache pages; norms, softmax and sums are f32.
 */
import { ShapeError, UnsupportedError } from '../../errors.ts';
import { yieldToEventLoop } from '../../event-loop.ts';
import type { Block, Device, KvLayer, KvRun, KvView, Projection, Tensor, Weights } from '../device.ts';
import { tracksError } from '../page-layout.ts';
import { firstCodedRow, skippedTokens, visibleSinks } from '../visibility.ts';
import type { WeightType } from '../weights/types.ts';
import { type CodecModules, createCodecModules } from './codec-modules.ts';
import { type AttentionShape, PAGES_PER_SPLIT } from './kernels/attend.ts';
import { f16ToF32, f32ToF16Heads, norm, rope, swiglu } from './kernels/norm-rope-swiglu.ts';
import { stateBytes } from './kernels/online-softmax.ts';
import { createLeafTables, type LeafTables } from './leaf-tables.ts';
import { type Allocation, addressOf, Memories } from './memories.ts';
import { type Heap, type MemoryLimits, openMemory } from './memory.ts';
import { moduleBytes } from './module.ts';
import { createPageRopeTables, type PageRopeTables } from './page-rope.ts';
import { createPool, type Pool } from './pool.ts';
import { CONTROL_WORDS, MAX_TASKS } from './pool-workers.ts';
import { type ArithmeticOptions, Projections, projectionKernels } from './projections.ts';
import { wasmSupport } from './support.ts';

type WasmTensor = Tensor & Allocation;
type WasmBlock = Block & Allocation;
type Fill = Parameters<Device['loadWeights']>[3];

export interface WasmOptions {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
  /** Default: one per core. Always 1 without shared memory. */
  threads?: number;
  /** false: use plain SIMD even if relaxed SIMD is available. */
  relaxed?: boolean;
  /** int16 activations and cache pages dequantized to f32: slower, with the accuracy of f32 throughout. */
  precise?: boolean;
  /** Max size of one WebAssembly memory in pages of 64 KiB. Default: 4 GiB. More weights go to additional memories. */
  maxPages?: number;
}

const bits = new DataView(new ArrayBuffer(4));
function floatBits(x: number): number {
  bits.setFloat32(0, x);
  return bits.getInt32(0);
}

/** From this many rows on, the f16 sinks and tail are converted to f32 once before all rows read them. */
const MIN_MULTI_ROWS = 8;

/** The attention states of the rows that are processed together take at most 1 / this of the main memory. */
const STATES_DIVISOR = 32;

/** Min rows per attention task: each task unpacks every page again. */
const MIN_TASK_ROWS = 64;

/** Below this many rows small kernels are too short to be worth waking other threads. */
const MIN_PARALLEL_ROWS = 4;

export async function createWasmDevice(options: WasmOptions): Promise<Device> {
  const support = await wasmSupport();
  if (!support.simd)
    throw new UnsupportedError("This WebAssembly engine has no SIMD. Use a newer one, or device: 'js'.");
  if (options.headDim % 8 !== 0)
    throw new ShapeError(
      `The wasm device needs a head dim that is a multiple of 8, not ${options.headDim}. Use device: 'js'.`,
    );
  const relaxed = support.relaxedSimd && options.relaxed !== false;
  const precise = options.precise ?? false;
  const shared = support.sharedMemory;
  const threads = shared ? Math.max(1, Math.min(64, options.threads ?? (await coreCount()))) : 1;
  const maxPages = options.maxPages ?? 65536;
  const limits = { maxPages, shared };
  const heap = openMemory(limits);
  const pool = await createPool(heap.memory, heap.alloc(4 * CONTROL_WORDS), threads);
  const kernels = [norm(), rope(), swiglu(), f32ToF16Heads(), f16ToF32(), ...projectionKernels({ relaxed, precise })];
  const memories = new Memories(heap, pool, moduleBytes(kernels, limits), limits);
  return new WasmDevice(options, memories, pool, limits, { relaxed, precise });
}

async function coreCount(): Promise<number> {
  const { availableParallelism } = await import('node:os');
  return availableParallelism();
}

class WasmDevice implements Device {
  readonly name = 'wasm';
  readonly threads: number;
  /** Chunks per large kernel: several per thread, so that a thread that starts late does not hold up the others. */
  private readonly chunks: number;
  private readonly shape: AttentionShape;
  private readonly codecModules: CodecModules;
  private readonly leafTables: LeafTables;
  private readonly pageRope: PageRopeTables;
  private readonly projections: Projections;
  private readonly heap: Heap;

  constructor(
    { headDim, heads, kvHeads, pageTokens }: WasmOptions,
    private readonly memories: Memories,
    private readonly pool: Pool,
    limits: MemoryLimits,
    arithmetic: ArithmeticOptions,
  ) {
    this.heap = memories.main;
    this.threads = pool.threads;
    this.chunks = 4 * pool.threads;
    this.shape = { headDim, kvHeads, pageTokens, group: heads / kvHeads, ...arithmetic };
    this.codecModules = createCodecModules(this.heap, pool, this.shape, limits);
    this.leafTables = createLeafTables(this.heap);
    this.pageRope = createPageRopeTables(this.heap, headDim, pageTokens);
    this.projections = new Projections(memories, pool, headDim, arithmetic, this.chunks, (...args) =>
      this.runSmall(...args),
    );
  }

  get allocatedBytes(): number {
    return this.memories.bytes;
  }

  reserve(bytes: number): number {
    return this.memories.reserve(bytes);
  }

  /** Runs a small kernel over `rows` rows, on the main thread alone if there are few. */
  private runSmall(rows: number, kernel: string, ...args: number[]): void {
    this.pool.run(kernel, rows < MIN_PARALLEL_ROWS ? 1 : Math.min(rows, this.chunks), ...args);
  }

  createTensor(rows: number, cols: number): WasmTensor {
    const address = this.heap.alloc(4 * rows * cols);
    this.memories.floatsAt(address, rows * cols).fill(0);
    return { rows, cols, address };
  }

  writeRows(tensor: Tensor, row: number, data: Float32Array): void {
    this.memories.floatsAt(addressOf(tensor) + 4 * row * tensor.cols, data.length).set(data);
  }

  copyRows(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void {
    this.writeRows(to, toRow, this.memories.floatsAt(addressOf(from) + 4 * fromRow * from.cols, rows * from.cols));
  }

  async readRows(tensor: Tensor, row: number, count = 1): Promise<Float32Array<ArrayBuffer>> {
    return new Float32Array(this.memories.floatsAt(addressOf(tensor) + 4 * row * tensor.cols, count * tensor.cols));
  }

  createBlock(bytes: number): WasmBlock {
    const address = this.heap.alloc(bytes);
    this.memories.bytesAt(address, bytes).fill(0);
    return { bytes, address };
  }

  free(handle: Block | Tensor): void {
    this.heap.free(addressOf(handle), 'bytes' in handle ? handle.bytes : 4 * handle.rows * handle.cols);
    if ('bytes' in handle) this.leafTables.remove(handle);
  }

  async readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(this.memories.bytesAt(addressOf(block), block.bytes));
  }

  writeBlock(block: Block, data: Uint8Array): void {
    this.memories.bytesAt(addressOf(block), block.bytes).set(data);
  }

  copyBlock(from: Block, to: Block): void {
    this.writeBlock(to, this.memories.bytesAt(addressOf(from), from.bytes));
  }

  loadWeights(type: WeightType, rows: number, cols: number, fill: Fill): Promise<Weights> {
    return this.projections.loadWeights(type, rows, cols, fill);
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void {
    this.projections.embed(table, ids, out);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    this.projections.project(x, rows, projections);
  }

  rmsNorm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void {
    const vectors = (rows * x.cols) / weight.cols;
    this.runSmall(rows, 'norm', addressOf(x), addressOf(out), addressOf(weight), vectors, weight.cols, floatBits(eps));
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    this.runSmall(rows, 'rope', addressOf(x), addressOf(angles), rows, x.cols, headDim, angles.cols);
  }

  swiglu(gate: Tensor, up: Tensor, rows: number): void {
    this.runSmall(rows, 'swiglu', addressOf(gate), addressOf(up), rows * gate.cols);
  }

  /** Learned codecs have separate kernels per layer; the event loop runs between two compilations. */
  async loadCodecs(layers: readonly KvLayer[]): Promise<void> {
    for (const { keys, values } of layers) {
      this.codecModules.moduleOf(keys.layout, values.layout);
      await yieldToEventLoop();
    }
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    for (const run of runs) this.appendRun(layer, k, v, run);
  }

  private appendRun(layer: number, k: Tensor, v: Tensor, { view, row, count, position }: KvRun): void {
    const { headDim, kvHeads, sinks, tailTokens } = view.shape;
    const store = (tensor: Tensor, block: number, capacity: number, first: number, n: number, index: number) => {
      const from = addressOf(tensor) + 4 * (row + first) * tensor.cols;
      this.pool.run('f32ToF16Heads', 1, from, tensor.cols, block + 2 * headDim * index, capacity, n, headDim, kvHeads);
    };
    [k, v].forEach((tensor, side) => {
      const tail = this.f16Address(view, view.tail, layer, side, tailTokens);
      for (let done = 0; done < count; ) {
        const index = (position + done) % tailTokens;
        const n = Math.min(count - done, tailTokens - index);
        store(tensor, tail, tailTokens, done, n, index);
        done += n;
      }
      const newSinks = Math.min(count, sinks - position);
      if (newSinks > 0)
        store(tensor, this.f16Address(view, view.sinkBlock, layer, side, sinks), sinks, 0, newSinks, position);
    });
  }

  /** The address of one layer's keys (side 0) or values (side 1) in a tail or sink block. */
  private f16Address({ shape }: KvView, block: Block, layer: number, side: number, tokens: number): number {
    return addressOf(block) + 2 * shape.kvHeads * tokens * shape.headDim * (2 * layer + side);
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], scale: number): void {
    for (const run of runs) {
      const maxRows = this.maxRows(layer, run);
      for (let done = 0; done < run.count; done += maxRows) {
        const { row, position } = run;
        const part = { row: row + done, position: position + done, count: Math.min(maxRows, run.count - done) };
        this.attendRun(layer, q, out, { ...run, ...part }, floatBits(scale));
      }
    }
  }

  /** Max rows processed together: each has a state per KV head and split, and a long context has many splits. */
  private maxRows(layer: number, { view, sealedPages }: KvRun): number {
    const splits = Math.ceil((sealedPages - view.firstLeaf) / PAGES_PER_SPLIT);
    const rowBytes = view.shape.kvHeads * splits * this.stateBytes(view, layer);
    return Math.max(1, Math.floor(this.heap.capacity / STATES_DIVISOR / rowBytes));
  }

  /** Bytes of the states of one KV head's query heads. */
  private stateBytes({ shape }: KvView, layer: number): number {
    return this.shape.group * stateBytes(shape.layers[layer].values.layout.codedDim);
  }

  private attendRun(layer: number, q: Tensor, out: Tensor, run: KvRun, scale: number): void {
    const { view, row, count, position, sealedPages } = run;
    const { pageTokens, sinks, tailTokens, kvHeads } = view.shape;
    const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
    const module = this.codecModules.moduleOf(keys.layout, values.layout);
    const pages = sealedPages - view.firstLeaf;
    const multiRow = count >= MIN_MULTI_ROWS;
    /** Sinks or tail as the kernel expects them: f16, or f32 for many rows. */
    const unsealed = (name: string, block: Block, tokens: number) => {
      const from = this.f16Address(view, block, layer, 0, tokens);
      if (!multiRow || tokens === 0) return from;
      const values = 2 * kvHeads * tokens * view.shape.headDim;
      const to = this.memories.scratch(`${name} as f32`, 4 * values);
      this.pool.run('f16ToF32', this.chunks, from, to, values);
      return to;
    };
    const queries = addressOf(q) + 4 * row * q.cols;
    const sinkCount = visibleSinks(sealedPages, view.shape);
    const splits = Math.ceil(pages / PAGES_PER_SPLIT);
    const stateSize = this.stateBytes(view, layer);
    const states = this.memories.scratch('states', count * kvHeads * splits * stateSize);
    if (pages > 0) {
      const transformed = this.memories.scratch('queries', count * kvHeads * module.queryBytes);
      const leaves = this.leafTables.addressOf(view);
      const skip = skippedTokens(view.firstLeaf * pageTokens, sealedPages, view.shape);
      this.runSmall(count, module.transformQuery, queries, 4 * q.cols, transformed, count, scale);
      const pageRope = this.pageRope.addressOf(keys.layout.ropeFrequencies, view.firstLeaf, sealedPages);
      // Heads x splits may be too few chunks to keep all threads busy: rows are divided into tasks too.
      const taskRows = Math.max(MIN_TASK_ROWS, 4 * Math.ceil(count / (4 * MAX_TASKS)));
      this.pool.runAll(
        Array.from({ length: Math.ceil(count / taskRows) }, (_, i) => ({
          kernel: multiRow ? module.attendPagesMultiRow : module.attendPages,
          chunks: splits * kvHeads,
          args: [
            transformed + i * taskRows * kvHeads * module.queryBytes,
            states + i * taskRows * kvHeads * splits * stateSize,
            leaves,
            keyOffset,
            valueOffset,
            Math.min(taskRows, count - i * taskRows),
            pages,
            skip,
            pageRope,
          ],
        })),
      );
    }
    this.pool.run(
      multiRow ? module.combineSplitsMultiRow : module.combineSplits,
      count * kvHeads,
      queries,
      4 * q.cols,
      states,
      pages,
      unsealed('sinks', view.sinkBlock, sinks),
      sinks,
      sinkCount,
      unsealed('tail', view.tail, tailTokens),
      tailTokens,
      sealedPages * pageTokens,
      position,
      addressOf(out) + 4 * row * out.cols,
      4 * out.cols,
      count,
      scale,
    );
  }

  seal(view: KvView, layer: number, page: number, leaf: Block): void {
    const { pageTokens, tailTokens, kvHeads } = view.shape;
    const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
    const module = this.codecModules.moduleOf(keys.layout, values.layout);
    const start = (page * pageTokens) % tailTokens;
    const [tailKeys, tailValues] = [0, 1].map(side => this.f16Address(view, view.tail, layer, side, tailTokens));
    const first = firstCodedRow(view.shape, page);
    const rope = this.pageRope.addressOf(keys.layout.ropeFrequencies, page, page + 1);
    const to = addressOf(leaf);
    const errors = this.memories.scratch('errors', 8 * kvHeads);
    const valueErrors = errors + 4 * kvHeads;
    this.pool.run(module.sealKeys, kvHeads, tailKeys, tailTokens, start, first, to + keyOffset, rope, errors);
    this.pool.run(module.sealValues, kvHeads, tailValues, tailTokens, start, first, to + valueOffset, 0, valueErrors);
    if (!view.errors) return;
    const { rows, cols } = view.errors;
    const row = this.memories.floatsAt(addressOf(view.errors) + 4 * (page % rows) * cols, cols);
    [keys, values].forEach(({ layout }, side) => {
      const parts = this.memories.floatsAt(errors + 4 * side * kvHeads, kvHeads);
      if (tracksError(layout.encoding)) row[2 * layer + side] = parts.reduce((sum, error) => sum + error, 0);
    });
  }

  async dispose(): Promise<void> {
    await this.pool.dispose();
  }
}
