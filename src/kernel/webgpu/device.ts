/**
 * The webgpu device: every operation is a dispatch into one command encoder, submitted when a result is read. Weights stay
 * quantized, pages stay packed, and their bytes are the same as on every other device.
 */
import { type DeviceError, ShapeError } from '../../util/errors.ts';
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
  SampledTokens,
  SamplingRequest,
  SealRequest,
  Tensor,
  Weights,
} from '../device.ts';
import type { QuantizedType } from '../weights/split.ts';
import type { WeightType } from '../weights/types.ts';
import { type AdapterInfo, type LowerLimits, openAdapter } from './adapter.ts';
import { Attention } from './attention.ts';
import { createCodecs } from './codecs.ts';
import { Experts } from './experts.ts';
import { Gpu } from './gpu.ts';
import type { AttendShape } from './kernels/attend.ts';
import { type GpuBlock, Pool } from './pool.ts';
import { type PendingNorm, Projections } from './projections.ts';
import { RowOperations } from './row-operations.ts';
import { Sampling } from './sampling.ts';
import { Sealing } from './sealing.ts';
import { bufferForWriting, bufferOf, type GpuTensor, gpuBlock } from './tensor.ts';
import { type GpuWeights, loadWeights, matrixBytes, randomWeights } from './weights.ts';

export interface WebGpuOptions {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
  /** Float activations, and pages dequantized to floats. */
  precise?: boolean;
  /** Lower limits than the adapter's. */
  limits?: LowerLimits;
  /** Whether to use WGSL's int8 dot products. Default: where the adapter has them. Results do not depend on it. */
  packedDots?: boolean;
  /**
   * Rows per invocation of a matrix product, and half the queries that share unpacked values in attention. Default: 4; 1
   * for software adapters, which compile slowly. Results do not depend on it.
   */
  unroll?: number;
  /** Pages per attention split. Default: 4. Results depend on it in their last bits. */
  pagesPerSplit?: number;
  /** Whether to use subgroup operations. Default: where the adapter has them. */
  subgroups?: boolean;
  /**
   * Whether independent kernels of attention share a dispatch. Default: true; false for software adapters, which compile
   * slowly: each pair of kernels is one more to compile. Results do not depend on it.
   */
  horizontalFusion?: boolean;
  /**
   * Whether to use subgroup matrices for prompt rows, and for pages of f16 and fp8. Default: where the adapter has them.
   * Results depend on it.
   */
  subgroupMatrices?: boolean;
  /**
   * Whether a decoded row has the same bits alone and in any batch. False: rows decoded together use subgroup matrices
   * where these are faster. Default: true. Results depend on it.
   */
  batchInvariant?: boolean;
}

/**
 * An operation that has not been dispatched yet, because the next one may be fused with it: a norm of one row with the
 * projections that read it; RoPE of queries with that of keys and with the append to the cache, and for one row with the
 * projections before; gate and up projection with their product.
 */
type Pending =
  | ({ kind: 'norm'; out: Tensor } & PendingNorm)
  | {
      kind: 'rope';
      tensors: readonly Tensor[];
      rows: number;
      headDim: number;
      angles: Tensor;
      after?: PendingProjections;
    }
  | PendingProjections;

interface PendingProjections {
  kind: 'projections';
  x: Tensor;
  rows: number;
  projections: readonly Projection[];
  norm?: PendingNorm;
}

export function checkHeadDim(headDim: number): void {
  if (headDim % 2 !== 0)
    throw new ShapeError(
      option => `The webgpu device needs an even head dimension, and got ${headDim}. Use ${option('device', 'js')}.`,
    );
}

export async function createWebGpuDevice(options: WebGpuOptions): Promise<WebGpuDevice> {
  checkHeadDim(options.headDim);
  const { device, info } = await openAdapter(options.limits);
  try {
    return new WebGpuDevice(new Gpu(device, options.packedDots ?? info.packedDots), info, options);
  } catch (error) {
    device.destroy();
    throw error;
  }
}

export class WebGpuDevice implements Device {
  readonly name = 'webgpu';
  readonly threads = 1;
  readonly arithmetic: string;
  private readonly maxBindingBytes: number;
  private readonly pools = new Map<string, Pool>();
  private readonly projections: Projections;
  private readonly experts: Experts;
  private readonly attention: Attention;
  private readonly sealing: Sealing;
  private pending?: Pending;
  private readonly sampling: Sampling;
  private readonly rowOperations: RowOperations;

  constructor(
    readonly gpu: Gpu,
    readonly info: AdapterInfo,
    { headDim, heads, kvHeads, pageTokens, precise = false, ...rest }: WebGpuOptions,
  ) {
    const hasFixedSize = rest.subgroups !== false && info.subgroups >= 4 && info.subgroupMin === info.subgroups;
    const matrices = rest.subgroupMatrices ?? info.matrices;
    const subgroupSize = hasFixedSize ? info.subgroups : 0;
    const shape: AttendShape = {
      headDim,
      kvHeads,
      pageTokens,
      group: heads / kvHeads,
      subgroupSize,
      subgroupMatrices: matrices && info.narrowMatrices,
      f16: info.f16,
    };
    // Without subgroup matrices, rows never depend on their batch.
    const batchInvariant = rest.batchInvariant !== false || !matrices || precise;
    const modes = { subgroupSize, matrices, f16: info.f16, packedDots: info.packedDots, precise };
    this.arithmetic = `webgpu ${info.name} ${JSON.stringify(batchInvariant ? modes : { ...modes, batchInvariant })}`;
    const unroll = rest.unroll ?? (info.software ? 1 : 4);
    this.maxBindingBytes = Math.min(info.limits.binding, info.limits.buffer);
    const codecOf = createCodecs(gpu, shape, precise);
    this.projections = new Projections(gpu, {
      precise,
      unroll,
      matrices,
      batchInvariant,
      tail: { headDim, kvHeads },
    });
    this.experts = new Experts(gpu, this.projections, precise);
    this.attention = new Attention(gpu, shape, codecOf, {
      heads,
      unroll,
      pagesPerSplit: rest.pagesPerSplit ?? 4,
      matrices: matrices && !precise,
      horizontalFusion: rest.horizontalFusion ?? !info.software,
      limits: gpu.limits,
      maxBindingBytes: this.maxBindingBytes,
    });
    this.sealing = new Sealing(gpu, shape, codecOf);
    this.sampling = new Sampling(gpu);
    this.rowOperations = new RowOperations(gpu);
  }

  get allocatedBytes(): number {
    return this.gpu.allocatedBytes;
  }

  get lost(): Promise<DeviceError> {
    return this.gpu.lost;
  }

  async warmUp(plan: () => void | Promise<void>): Promise<void> {
    const kernels = await this.gpu.planKernels(async () => {
      await plan();
      this.flush();
    });
    await this.gpu.compile(kernels);
  }

  createTensor(rows: number, cols: number): GpuTensor {
    return { rows, cols, buffer: this.gpu.createBuffer(4 * rows * cols, `tensor ${rows} x ${cols}`) };
  }

  writeRows(tensor: Tensor, row: number, data: Float32Array): void {
    this.flush();
    this.gpu.upload(bufferForWriting(tensor), 4 * row * tensor.cols, new Uint8Array(Float32Array.from(data).buffer));
  }

  copyRows(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void {
    this.flush();
    const bytes = 4 * from.cols;
    this.gpu.copy(bufferOf(from), fromRow * bytes, bufferForWriting(to), toRow * bytes, rows * bytes);
  }

  async readRows(tensor: Tensor, row: number, count = 1): Promise<Float32Array<ArrayBuffer>> {
    this.flush();
    const bytes = 4 * tensor.cols;
    return new Float32Array(await this.gpu.read(bufferOf(tensor), row * bytes, count * bytes));
  }

  sampleTokens(logits: Tensor, requests: readonly SamplingRequest[]): SampledTokens {
    this.flush();
    return this.sampling.sample(logits, requests);
  }

  matrixBytes = matrixBytes;

  loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<Weights> {
    return loadWeights(this.gpu, this.maxBindingBytes, type, rows, cols, fill);
  }

  /** Random codes, for benchmarks. */
  randomWeights(type: QuantizedType, rows: number, cols: number): Weights {
    return randomWeights(this.gpu, this.maxBindingBytes, type, rows, cols);
  }

  createBlock(bytes: number, partOffsets: readonly number[] = [0]): Block {
    const key = `${bytes}:${partOffsets}`;
    const pool = this.pools.get(key) ?? new Pool(this.gpu, bytes, partOffsets, this.maxBindingBytes);
    this.pools.set(key, pool);
    return pool.allocate();
  }

  ensureMemory(views: readonly KvBlocks[]): Promise<void> | undefined {
    for (const pool of this.pools.values()) if (pool.needsMemory) return this.growFor(views);
    return undefined;
  }

  /** Waits only for the pools of these views. A pool that is already growing may have to grow again. */
  private async growFor(views: readonly KvBlocks[]): Promise<void> {
    const blocks = views.flatMap(({ tail, sinkBlock, leaves, windowPages = [] }) => [
      ...[...tail, sinkBlock, ...leaves],
      ...windowPages,
    ]);
    for (const block of blocks.filter(block => block !== undefined) as GpuBlock[])
      while (!block.pool.hasMemory(block)) await block.pool.grow();
  }

  free(handle: Block | Tensor): void {
    // After a failure nothing can be recorded, and no one reads what is pending.
    if (this.gpu.hasFailed) this.pending = undefined;
    this.flush();
    if ('bytes' in handle) (handle as GpuBlock).pool.free(handle as GpuBlock);
    else {
      const { buffer, int8, f16 } = handle as GpuTensor;
      const more = [...(int8 ? [int8.codes, int8.stats] : []), ...(f16 ? [f16.buffer] : [])];
      for (const one of [buffer, ...more]) this.gpu.destroy(one);
    }
  }

  readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>> {
    return gpuBlock(block).pool.read(gpuBlock(block));
  }

  writeBlock(block: Block, data: Uint8Array): void {
    gpuBlock(block).pool.write(gpuBlock(block), data);
  }

  copyBlock(from: Block, to: Block): void {
    (from as GpuBlock).pool.copy(from as GpuBlock, to as GpuBlock);
  }

  embed(table: Weights, ids: ArrayLike<number>, out: Tensor, scale = 1): void {
    this.flush();
    this.rowOperations.embed(table as GpuWeights, ids, this.sampling.tokens, out, scale);
  }

  rmsNorm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor, accumulate = false): void {
    this.flush();
    if (rows === 1 && x !== out && x.cols === weight.cols && !accumulate)
      this.pending = { kind: 'norm', x, weight, eps, out };
    else this.rowOperations.norm(x, rows, weight, eps, out, accumulate);
  }

  project(x: Tensor, rows: number, projections: readonly Projection[], prompts = 0): void {
    const matrixRows = this.projections.matrixRows(rows, prompts, projections);
    if (matrixRows > 0) {
      this.flush();
      this.projections.projectByMatrices(x as GpuTensor, rows - matrixRows, rows, projections);
      if (rows > matrixRows) this.project(x, rows - matrixRows, projections);
      return;
    }
    const { pending } = this;
    const norm =
      pending?.kind === 'norm' && pending.out === x && this.projections.canFuseNorm(rows, projections)
        ? pending
        : undefined;
    if (norm) this.pending = undefined;
    this.flush();
    const normed = norm !== undefined;
    const waits =
      this.projections.canFuseGate(rows, projections, normed) ||
      this.projections.canFuseAppend(rows, projections, normed);
    if (waits) this.pending = { kind: 'projections', x, rows, projections, norm };
    else this.projections.project(x, rows, projections, norm);
  }

  route(logits: Tensor, rows: number, routing: Routing, rule: RoutingRule, bias?: Tensor): void {
    this.flush();
    this.experts.route(logits, rows, routing, rule, bias);
  }

  projectExperts(x: Tensor, rows: number, routing: Routing, projections: readonly ExpertProjection[]): void {
    this.flush();
    this.experts.project(x, rows, routing, projections);
  }

  addExperts(outputs: Tensor, rows: number, routing: Routing, out: Tensor): void {
    this.flush();
    this.experts.add(outputs, rows, routing, out);
  }

  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
    const { pending } = this;
    const same =
      pending?.kind === 'rope' && pending.rows === rows && pending.headDim === headDim && pending.angles === angles;
    if (same && pending.tensors.length === 1 && pending.tensors[0] !== x) {
      this.pending = { ...pending, tensors: [...pending.tensors, x] };
    } else {
      const after = pending?.kind === 'projections' && pending.projections.length === 3 ? pending : undefined;
      if (!after) this.flush();
      this.pending = { kind: 'rope', tensors: [x], rows, headDim, angles, after };
    }
  }

  gate(gate: Tensor, up: Tensor, rows: number, activation: Activation): void {
    const { pending } = this;
    if (pending?.kind === 'projections' && pending.rows === rows && pending.projections.length === 2) {
      const [first, second] = pending.projections;
      if (first.out === gate && second.out === up) {
        this.pending = undefined;
        this.projections.projectGated(pending.x as GpuTensor, rows, pending.projections, activation, pending.norm);
        return;
      }
    }
    this.flush();
    this.rowOperations.gate(gate, up, rows, activation);
  }

  softcap(x: Tensor, rows: number, softcap: number): void {
    this.flush();
    this.rowOperations.softcap(x, rows, softcap);
  }

  /** Dispatches the pending operation by itself. */
  private flush(): void {
    const { pending } = this;
    this.pending = undefined;
    if (pending?.kind === 'norm') this.rowOperations.norm(pending.x, 1, pending.weight, pending.eps, pending.out);
    const projections =
      pending?.kind === 'rope' ? pending.after : pending?.kind === 'projections' ? pending : undefined;
    if (projections)
      this.projections.project(projections.x, projections.rows, projections.projections, projections.norm);
    if (pending?.kind === 'rope')
      this.rowOperations.rope(pending.tensors, pending.rows, pending.headDim, pending.angles);
  }

  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void {
    const { pending } = this;
    const rows = runs.reduce((sum, { count }) => sum + count, 0);
    if (pending?.kind === 'rope' && pending.tensors[1] === k && pending.rows === rows) {
      this.pending = undefined;
      const { tensors, angles, after } = pending;
      const tail =
        after &&
        [...tensors, v].every((x, i) => after.projections[i].out === x) &&
        this.attention.tailPosition(layer, runs);
      if (tail)
        this.projections.projectFused(after.x as GpuTensor, 1, after.projections, {
          norm: after.norm,
          tail: { ...tail, angles },
        });
      else {
        if (after) this.projections.project(after.x, after.rows, after.projections, after.norm);
        this.attention.append(layer, k, v, runs, { q: tensors[0], angles });
      }
    } else {
      this.flush();
      this.attention.append(layer, k, v, runs);
    }
  }

  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], options: AttendOptions): void {
    this.flush();
    this.attention.attend(layer, q, out, runs, options);
  }

  unpacks(layer: KvLayer): boolean {
    return this.attention.unpacks(layer);
  }

  seal(layer: number, requests: readonly SealRequest[]): void {
    this.sealing.seal(layer, requests);
  }

  async dispose(): Promise<void> {
    this.gpu.dispose();
  }
}
