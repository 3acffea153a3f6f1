/**
 * The wasm device: SIMD kernels generated for the loaded model, run by threads over shared memory. Projections multiply
 * quantized weights by int8 activations, attention reads packed cache pages; norms, softmax and sums are f32.
 */

import { platform } from '../../platform/node.ts';
import { ShapeError, UnsupportedError } from '../../util/errors.ts';
import type {
  Activation,
  AttendOptions,
  Block,
  Device,
  ExpertProjection,
  KvBlocks,
  KvLayer,
  KvRun,
  Projection,
  Routing,
  RoutingRule,
  SealRequest,
  Tensor,
  Weights,
} from '../device.ts';
import { floatBits } from '../float.ts';
import type { WeightType } from '../weights/types.ts';
import { Attention } from './attention.ts';
import { Experts } from './experts.ts';
import { ADD_EXPERTS, addExperts } from './kernels/add-experts.ts';
import type { ArithmeticOptions } from './kernels/gemv.ts';
import {
  f16ToF32,
  f32ToF16Heads,
  gate,
  gateSignature,
  norm,
  normSignature,
  ROPE,
  rope,
  SOFTCAP,
  softcap,
} from './kernels/norm-rope-gate.ts';
import { type Allocation, addressOf, Memories } from './memories.ts';
import { type Heap, type MemoryLimits, openMemory } from './memory.ts';
import { moduleBytes, type Signature } from './module.ts';
import { createPool, type Pool } from './pool.ts';
import { CONTROL_WORDS } from './pool-workers.ts';
import { Projections, projectionKernels } from './projections.ts';
import { wasmSupport } from './support.ts';
import { type TaskArgs, task } from './task.ts';

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
  /** Whether to add int8 products to 32-bit sums: same results. Default: if the engine has one instruction for it. */
  dotAdd?: boolean;
  /** Whether to use tiles for vectors of 256 bits: same results. Default: if the engine makes such vectors. */
  wide?: boolean;
  /** int16 activations and cache pages dequantized to f32: slower, with the accuracy of f32 throughout. */
  precise?: boolean;
  /** Max size of one WebAssembly memory in pages of 64 KiB. Default: 4 GiB. More weights go to additional memories. */
  maxPages?: number;
}

export async function createWasmDevice(options: WasmOptions): Promise<Device> {
  const support = wasmSupport();
  if (!support.simd)
    throw new UnsupportedError(
      option => `This WebAssembly engine has no SIMD. Use a newer one, or ${option('device', 'js')}.`,
    );
  if (options.headDim % 8 !== 0)
    throw new ShapeError(
      option =>
        `The wasm device needs a head dim that is a multiple of 8, not ${options.headDim}. Use ${option('device', 'js')}.`,
    );
  const relaxed = support.relaxedSimd && options.relaxed !== false;
  const precise = options.precise ?? false;
  const { wide = support.wide } = options;
  const arithmetic = { relaxed, precise, wide, dotAdd: relaxed && (options.dotAdd ?? support.dotAdd) };
  const shared = support.sharedMemory;
  const threads = shared ? Math.max(1, Math.min(64, options.threads ?? platform.coreCount())) : 1;
  const maxPages = options.maxPages ?? 65536;
  const limits = { maxPages, shared };
  const heap = openMemory(limits);
  const pool = await createPool(heap.memory, heap.alloc(4 * CONTROL_WORDS), threads);
  const bytes = commonModule(arithmetic, limits);
  await pool.load(bytes);
  const memories = new Memories(heap, pool, bytes, limits);
  return new WasmDevice(options, memories, pool, limits, arithmetic);
}

/** Of elementwise kernels: a few microseconds of work. */
const MIN_CHUNK_VALUES = 1024;

const commonModules = new Map<string, Uint8Array<ArrayBuffer>>();

/** The kernels that do not depend on the model. The devices of a process share them: emitting takes longer than loading. */
function commonModule(arithmetic: ArithmeticOptions, limits: MemoryLimits): Uint8Array<ArrayBuffer> {
  const name = JSON.stringify([arithmetic, limits]);
  const known = commonModules.get(name);
  if (known) return known;
  const kernels = [
    norm(false),
    norm(true),
    rope(),
    gate('silu'),
    gate('gelu'),
    gate('clamped'),
    addExperts(),
    softcap(),
    f32ToF16Heads(),
    f16ToF32(),
    ...projectionKernels(arithmetic),
  ];
  const bytes = moduleBytes(kernels, limits);
  commonModules.set(name, bytes);
  return bytes;
}

class WasmDevice implements Device {
  readonly name = 'wasm';
  readonly threads: number;
  readonly arithmetic: string;
  /** Chunks per large kernel: several per thread, so that a thread that starts late does not hold up the others. */
  private readonly chunks: number;
  private readonly attention: Attention;
  private readonly projections: Projections;
  private readonly experts: Experts;
  private readonly heap: Heap;
  /** The layers whose codecs have been loaded. */
  private readonly loaded = new WeakSet<readonly KvLayer[]>();

  constructor(
    { headDim, heads, kvHeads, pageTokens }: WasmOptions,
    private readonly memories: Memories,
    private readonly pool: Pool,
    limits: MemoryLimits,
    arithmetic: ArithmeticOptions,
  ) {
    this.heap = memories.main;
    this.threads = pool.threads;
    const { relaxed, precise } = arithmetic;
    this.arithmetic = `wasm${relaxed ? ' relaxed' : ''}${precise ? ' precise' : ''}`;
    this.chunks = 4 * pool.threads;
    const shape = { headDim, kvHeads, pageTokens, group: heads / kvHeads, ...arithmetic };
    this.attention = new Attention(memories, pool, shape, limits);
    this.projections = new Projections(memories, pool, headDim, arithmetic, this.chunks);
    this.experts = new Experts(memories, pool, this.projections);
  }

  get allocatedBytes(): number {
    return this.memories.bytes;
  }

  reserve(bytes: number): number {
    return this.memories.reserve(bytes);
  }

  /** Runs a small kernel over rows of `cols` values. */
  private runSmall<P extends string>(rows: number, cols: number, kernel: Signature<P>, args: TaskArgs<P>): void {
    this.pool.runSmall(rows * cols, [task(kernel, Math.min(rows, this.chunks), args)]);
  }

  /** Runs a small kernel that treats all values alike: parts of one row are chunks, too. */
  private runElementwise<P extends string>(values: number, kernel: Signature<P>, args: TaskArgs<P>): void {
    this.pool.runSmall(values, [task(kernel, Math.min(Math.ceil(values / MIN_CHUNK_VALUES), this.chunks), args)]);
  }

  createTensor(rows: number, cols: number): WasmTensor {
    return { rows, cols, address: this.heap.allocZeroed(4 * rows * cols) };
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
    return { bytes, address: this.heap.allocZeroed(bytes) };
  }

  free(handle: Block | Tensor): void {
    this.heap.free(addressOf(handle), 'bytes' in handle ? handle.bytes : 4 * handle.rows * handle.cols);
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

  matrixBytes(type: WeightType, rows: number, cols: number): number {
    return this.projections.matrixBytes(type, rows, cols);
  }

  loadWeights(type: WeightType, rows: number, cols: number, fill: Fill): Promise<Weights> {
    return this.projections.loadWeights(type, rows, cols, fill);
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor, scale = 1): void {
    this.projections.embed(table, ids, out, scale);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[]): void {
    this.projections.project(x, rows, projections);
  }

  route(logits: Tensor, rows: number, routing: Routing, rule: RoutingRule, bias?: Tensor): void {
    this.experts.route(logits, rows, routing, rule, bias);
  }

  projectExperts(x: Tensor, rows: number, routing: Routing, projections: readonly ExpertProjection[]): void {
    this.experts.project(x, rows, routing, projections);
  }

  addExperts(outputs: Tensor, rows: number, { experts, weights }: Routing, out: Tensor): void {
    const [{ cols: used }, { cols }] = [experts, out];
    const addresses = { outputs: addressOf(outputs), weights: addressOf(weights), out: addressOf(out) };
    this.runSmall(rows, used * cols, ADD_EXPERTS, { ...addresses, rows, used, cols });
  }

  rmsNorm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor, accumulate = false): void {
    this.runSmall(rows, x.cols, normSignature(accumulate), {
      x: addressOf(x),
      out: addressOf(out),
      weight: addressOf(weight),
      vectors: (rows * x.cols) / weight.cols,
      n: weight.cols,
      eps: floatBits(eps),
    });
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    const { cols } = x;
    const addresses = { x: addressOf(x), angles: addressOf(angles) };
    this.runSmall(rows, cols, ROPE, { ...addresses, rows, cols, headDim, dims: angles.cols });
  }

  gate(gate: Tensor, up: Tensor, rows: number, activation: Activation): void {
    const values = rows * gate.cols;
    this.runElementwise(values, gateSignature(activation), { gate: addressOf(gate), up: addressOf(up), values });
  }

  softcap(x: Tensor, rows: number, cap: number): void {
    const values = rows * x.cols;
    this.runElementwise(values, SOFTCAP, { x: addressOf(x), values, softcap: floatBits(cap) });
  }

  /** Learned codecs have separate kernels per layer. */
  async loadCodecs(layers: readonly KvLayer[]): Promise<void> {
    for (const { keys, values } of layers) await this.attention.codecModules.load(keys.layout, values.layout);
    this.loaded.add(layers);
  }

  ensureMemory(views: readonly KvBlocks[]): Promise<void> | undefined {
    const isMissing = (layers?: readonly KvLayer[]) => layers !== undefined && !this.loaded.has(layers);
    if (!views.some(({ shape }) => isMissing(shape?.layers))) return undefined;
    return this.loadMissing(views);
  }

  private async loadMissing(views: readonly KvBlocks[]): Promise<void> {
    for (const { shape } of views) if (shape) await this.loadCodecs(shape.layers);
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    this.attention.append(layer, k, v, runs);
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], options: AttendOptions): void {
    this.attention.attend(layer, q, out, runs, options);
  }

  seal(layer: number, requests: readonly SealRequest[]): void {
    this.attention.seal(layer, requests);
  }

  async dispose(): Promise<void> {
    await this.pool.dispose();
  }
}
