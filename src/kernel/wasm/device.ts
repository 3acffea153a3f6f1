/**
 * The wasm device: SIMD kernels emitted for the model at hand, threads over shared memory. Weights are quantized
 * integers times int8 activations, cache pages are read packed; norms, softmax and sums are floats.
 */
import { ShapeError, UnsupportedError } from '../../errors.ts';
import type { Block, Device, KvRun, KvView, Projection, Tensor, Weights } from '../device.ts';
import { isInteger } from '../weights/split.ts';
import { type WeightType, weightBytes } from '../weights/types.ts';
import { type Codecs, createCodecs, type Limits } from './codecs.ts';
import { activationBytes, quantize, quantizeName, type Width } from './kernels/activations.ts';
import { type AttendShape, SPLIT } from './kernels/attend.ts';
import { floats, halves, norm, rope, swiglu } from './kernels/basic.ts';
import { arithmeticOf, floatMatmul, matmul, matmulName } from './kernels/matmul.ts';
import { MATMUL_SCRATCH, matmulMany } from './kernels/matmul-many.ts';
import { stateBytes } from './kernels/softmax.ts';
import { createLeafTables, type LeafTables } from './leaf-tables.ts';
import { createHeap, type Heap } from './memory.ts';
import { type Kernel, moduleBytes } from './module.ts';
import { packedBytes, packedFormats, packMatrix, unpackRow } from './pack-weights.ts';
import { CONTROL_WORDS, createPool, MOST_TASKS, type Pool, type Task } from './pool.ts';
import { wasmSupport } from './support.ts';
import { createTurns, type Turns } from './turns.ts';

interface Placed {
  address: number;
  /** The memory it lies in; weights may lie in another than the first. */
  bank?: number;
}

/** A memory and its kernels, whose names end in the suffix. */
interface Bank {
  heap: Heap;
  suffix: string;
}
type WasmTensor = Tensor & Placed;
type WasmWeights = Weights & Placed;
type WasmBlock = Block & Placed;

const at = (handle: Tensor | Weights | Block) => (handle as unknown as Placed).address;

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

/** Most bytes of a matrix that are held twice while it is loaded, but for at least four heads of rows. */
const LOAD_BYTES = 2 * 2 ** 20;

/** Rows from which it pays to turn the f16 tail into floats before they read it. */
const MANY = 8;

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
  const limits: Limits = { maxPages, shared };
  const openHeap = () => createHeap(new WebAssembly.Memory({ initial: 16, maximum: maxPages, shared }), maxPages);
  const heap = openHeap();
  const pool = await createPool(heap.memory, heap.alloc(4 * CONTROL_WORDS), threads);
  const kernels = moduleBytes(modelKernels(relaxed, precise), limits);
  pool.load(kernels);
  const openBank = (number: number): Bank => {
    const bank = { heap: openHeap(), suffix: `@${number}` };
    pool.load(kernels, { memory: bank.heap.memory, suffix: bank.suffix });
    return bank;
  };
  return new WasmDevice(options, heap, pool, limits, { relaxed, precise }, openBank);
}

async function coreCount(): Promise<number> {
  const { availableParallelism } = await import('node:os');
  return availableParallelism();
}

function modelKernels(relaxed: boolean, precise: boolean): Kernel[] {
  const integer = new Map(
    Object.values(packedFormats)
      .filter(({ bits }) => bits < 16)
      .map(format => [matmulName(format, 'one'), format]),
  );
  return [
    norm(),
    rope(),
    swiglu(),
    ...(['bytes', 'words'] as const).flatMap(width =>
      (['one', 'many'] as const).map(rows => quantize(width, rows, precise)),
    ),
    halves(),
    floats(),
    ...[...integer.values()].flatMap(format => {
      const arithmetic = arithmeticOf(format, relaxed, precise);
      return [matmul(format, arithmetic), matmulMany(format, arithmetic)];
    }),
    ...(['F32', 'F16', 'BF16'] as const).map(floatMatmul),
  ];
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
  private readonly rooms = new Map<string, { address: number; bytes: number }>();
  private readonly banks: Bank[];
  /** Room for weights on their way, one for all: garbage of this size is collected late. */
  private loading = new Uint8Array();

  constructor(
    { headDim, heads, kvHeads, pageTokens }: WasmOptions,
    private readonly heap: Heap,
    private readonly pool: Pool,
    private readonly memory: Limits,
    { relaxed, precise }: { relaxed: boolean; precise: boolean },
    private readonly openBank: (number: number) => Bank,
  ) {
    this.banks = [{ heap, suffix: '' }];
    this.threads = pool.threads;
    this.chunks = 4 * pool.threads;
    this.shape = { headDim, kvHeads, pageTokens, group: heads / kvHeads, relaxed, precise };
    this.codecs = createCodecs(heap, pool, this.shape, memory);
    this.leafTables = createLeafTables(heap);
    this.turns = createTurns(heap, headDim, pageTokens);
  }

  get bytes(): number {
    return this.banks.reduce((sum, { heap }) => sum + heap.used, 0);
  }

  private floats(address: number, length: number): Float32Array {
    return new Float32Array(this.heap.memory.buffer, address, length);
  }

  private raw(address: number, length: number, bank = 0): Uint8Array {
    return new Uint8Array(this.banks[bank].heap.memory.buffer, address, length);
  }

  /** Room that grows as needed and is reused from step to step. */
  private room(name: string, bytes: number, bank = 0): number {
    const { heap, suffix } = this.banks[bank];
    const has = this.rooms.get(name + suffix);
    if (has && has.bytes >= bytes) return has.address;
    if (has) heap.free(has.address, has.bytes);
    const size = Math.ceil(bytes * 1.25);
    const room = { address: heap.alloc(size), bytes: size };
    this.rooms.set(name + suffix, room);
    return room.address;
  }

  /** Runs a small operation on `rows` rows: here, unless there are many. */
  private run(rows: number, kernel: string, ...args: number[]): void {
    this.pool.run(kernel, rows < ALONE ? 1 : Math.min(rows, this.chunks), ...args);
  }

  tensor(rows: number, cols: number): WasmTensor {
    const address = this.heap.alloc(4 * rows * cols);
    this.floats(address, rows * cols).fill(0);
    return { rows, cols, address };
  }

  write(tensor: Tensor, row: number, data: Float32Array): void {
    this.floats(at(tensor) + 4 * row * tensor.cols, data.length).set(data);
  }

  copy(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void {
    this.write(to, toRow, this.floats(at(from) + 4 * fromRow * from.cols, rows * from.cols));
  }

  async read(tensor: Tensor, row: number): Promise<Float32Array<ArrayBuffer>> {
    return new Float32Array(this.floats(at(tensor) + 4 * row * tensor.cols, tensor.cols));
  }

  block(bytes: number): WasmBlock {
    const address = this.heap.alloc(bytes);
    this.raw(address, bytes).fill(0);
    return { bytes, address };
  }

  free(handle: Block | Tensor): void {
    this.heap.free(at(handle), 'bytes' in handle ? handle.bytes : 4 * handle.rows * handle.cols);
    if ('bytes' in handle) this.leafTables.forget(handle);
  }

  async readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(this.raw(at(block), block.bytes));
  }

  writeBlock(block: Block, data: Uint8Array): void {
    this.raw(at(block), block.bytes).set(data);
  }

  async loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<WasmWeights> {
    if (cols % (isInteger(type) ? 32 : 4) !== 0)
      throw new ShapeError(`The wasm device cannot take ${type} rows of ${cols} values. Use device: 'js'.`);
    const { address, bank } = this.placeWeights(packedBytes(type, rows, cols));
    const rowBytes = weightBytes(type, cols);
    const heads = 4 * this.shape.headDim;
    const piece = Math.max(1, Math.floor(LOAD_BYTES / (rowBytes * heads))) * heads;
    const size = Math.min(rows, piece) * rowBytes;
    const source = this.loading.length < size ? new Uint8Array(size) : this.loading;
    this.loading = new Uint8Array();
    for (let row = 0; row < rows; row += piece) {
      const bytes = source.subarray(0, Math.min(piece, rows - row) * rowBytes);
      await fill(bytes, row * rowBytes);
      const taken = packedBytes(type, row, cols);
      const out = this.raw(address + taken, packedBytes(type, row + bytes.length / rowBytes, cols) - taken, bank);
      if (isInteger(type)) packMatrix(type, bytes, cols, out);
      else out.set(bytes);
    }
    this.loading = source;
    return { type, rows, cols, address, bank };
  }

  /** In the newest memory if it has room to spare for the cache and for activations, else in a new one. */
  private placeWeights(bytes: number): { address: number; bank: number } {
    const spare = (this.memory.maxPages * 65536) / 4;
    const last = this.banks.length - 1;
    const { heap } = this.banks[last];
    if (heap.used === 0 || heap.used + bytes + spare <= this.memory.maxPages * 65536)
      return { address: heap.alloc(bytes), bank: last };
    this.banks.push(this.openBank(last + 1));
    return { address: this.banks[last + 1].heap.alloc(bytes), bank: last + 1 };
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void {
    const { type, rows, cols } = table;
    const packed = this.raw(at(table), packedBytes(type, rows, cols), (table as WasmWeights).bank);
    for (let r = 0; r < ids.length; r++)
      unpackRow(type, packed, ids[r], cols, this.floats(at(out) + 4 * r * cols, cols));
  }

  norm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void {
    const parts = (rows * x.cols) / weight.cols;
    this.run(rows, 'norm', at(x), at(out), at(weight), parts, weight.cols, floatBits(eps));
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    const count = rows === 1 ? 'one' : 'many';
    const quantized = new Map<Width, { address: number; bytes: number }>();
    const integers = (width: Width) => {
      const bytes = activationBytes(width, rows, x.cols);
      const input = quantized.get(width) ?? { address: this.room(`activations ${width}`, bytes), bytes };
      if (!quantized.has(width)) this.run(rows, quantizeName(width, count), at(x), input.address, rows, x.cols);
      quantized.set(width, input);
      return input;
    };
    const products = projections.map(({ weights, out, bias, add }) => {
      const { type } = weights;
      const format = packedFormats[type];
      const kernel = isInteger(type) ? matmulName(format, count) : `matmul${type}`;
      const input = isInteger(type)
        ? integers(arithmeticOf(format, this.shape.relaxed, this.shape.precise).width)
        : { address: at(x), bytes: 4 * rows * x.cols };
      return this.product(kernel, rows, input, weights as WasmWeights, out, bias, add ?? false);
    });
    this.pool.runAll(products.map(({ task }) => task));
    for (const { fetch } of products) fetch();
  }

  /** A product where the weights lie: in another memory it is given a copy of its input, and its output is fetched. */
  private product(
    kernel: string,
    rows: number,
    input: { address: number; bytes: number },
    weights: WasmWeights,
    out: Tensor,
    bias: Tensor | undefined,
    add: boolean,
  ): { task: Task; fetch(): void } {
    const { bank = 0 } = weights;
    const outBytes = 4 * rows * weights.rows;
    const there = (name: string, from: number, bytes: number) => {
      if (bank === 0) return from;
      // One of a kind for each product of a step: several may be under way.
      const to = this.room(`${name} ${at(out)}`, bytes, bank);
      this.raw(to, bytes, bank).set(this.raw(from, bytes));
      return to;
    };
    const x = there('input', input.address, input.bytes);
    const to = there('output', at(out), outBytes);
    const scratch = this.room('matmul', this.threads * MATMUL_SCRATCH, bank);
    const biasAt = bias ? there('bias', at(bias), 4 * weights.rows) : 0;
    return {
      task: {
        kernel: kernel + this.banks[bank].suffix,
        chunks: Math.min(this.chunks, Math.ceil(weights.rows / 64)),
        args: [x, weights.address, to, biasAt, add ? 1 : 0, rows, weights.rows, weights.cols, scratch],
      },
      fetch: () => {
        if (bank !== 0) this.raw(at(out), outBytes).set(this.raw(to, outBytes, bank));
      },
    };
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    this.run(rows, 'rope', at(x), at(angles), rows, x.cols, headDim, angles.cols);
  }

  swiglu(gate: Tensor, up: Tensor, rows: number): void {
    this.run(rows, 'swiglu', at(gate), at(up), rows * gate.cols);
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    for (const run of runs) this.appendRun(layer, k, v, run);
  }

  private appendRun(layer: number, k: Tensor, v: Tensor, { view, row, count, position }: KvRun): void {
    const { headDim, kvHeads, sinks, tailTokens } = view.shape;
    const store = (tensor: Tensor, block: number, room: number, first: number, n: number, place: number) => {
      for (let head = 0; head < kvHeads; head++) {
        const from = at(tensor) + 4 * ((row + first) * tensor.cols + head * headDim);
        const to = block + 2 * headDim * (head * room + place);
        this.pool.run('halves', 1, from, 4 * tensor.cols, to, 2 * headDim, n, headDim);
      }
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
    for (const run of runs) this.attendRun(layer, q, out, run, floatBits(scale));
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
      const to = this.room(`${name} as floats`, 4 * values);
      this.pool.run('floats', this.chunks, from, to, values);
      return to;
    };
    const queries = at(q) + 4 * row * q.cols;
    const sinkCount = Math.min(sinks, sealed * pageTokens);
    const splits = Math.ceil(pages / SPLIT);
    const stateSize = this.shape.group * stateBytes(values.fragment.codedDim);
    const states = this.room('states', count * kvHeads * splits * stateSize);
    if (pages > 0) {
      const prepared = this.room('queries', count * kvHeads * module.queryBytes);
      const leaves = this.leafTables.addressOf(view);
      const skip = Math.max(0, sinkCount - view.firstLeaf * pageTokens);
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
    const turn = this.turns.addressOf(keys.fragment.turn, page, page + 1);
    this.pool.run(module.sealKeys, kvHeads, tailKeys, tailTokens, start, at(leaf) + keyOffset, turn);
    this.pool.run(module.sealValues, kvHeads, tailValues, tailTokens, start, at(leaf) + valueOffset, 0);
  }

  async dispose(): Promise<void> {
    await this.pool.dispose();
  }
}
