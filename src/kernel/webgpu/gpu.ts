/**
 * Command recording: kernels are dispatched into one command encoder, their parameters and tables go into one arena that
 * is uploaded once per submission, and everything is submitted when a result is read.
 */
import { assert, type DeviceError } from '../../util/errors.ts';
import { Failures, outOfMemoryError } from './failures.ts';
import type { Kernel } from './kernel.ts';
import { type Limits, limitsOf } from './limits.ts';
import { type Pipeline, Pipelines, UNIFORM_BYTES } from './pipelines.ts';

/** A table in the arena: its offset in words, valid until the next submission. */
export interface ArenaTable {
  word: number;
  generation: number;
}

/** The specification's flags: not every runtime has them as globals. */
const USE = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128, QUERY_RESOLVE: 512 };
const MAP_READ_MODE = 1;

const ARENA_BYTES = 4 << 20;
const ALIGN = 256;
/** Dispatches to record before a submission, so that the GPU works while the next ones are recorded. */
const SUBMIT_AFTER = { idle: 4, busy: 32 };

const MAX_TIMED_DISPATCHES = 2048;
/** How long a failed read waits for the report that the device was lost. */
const LOSS_REPORT_MS = 1000;

export class Gpu {
  /** Kernels that read tables bind it as `data`. */
  readonly arena: GPUBuffer;

  readonly limits: Limits;
  /** Increases with every submission, which invalidates tables in the arena. */
  generation = 0;
  allocatedBytes = 0;
  private readonly arenaBytes = new Uint8Array(ARENA_BYTES);
  private readonly arenaWords = new Uint32Array(this.arenaBytes.buffer);
  private readonly arenaFloats = new Float32Array(this.arenaBytes.buffer);
  private readonly dynamicOffset = new Uint32Array(1);
  private arenaUsed = 0;
  private encoder?: GPUCommandEncoder;
  private pass?: GPUComputePassEncoder;

  private currentPipeline?: Pipeline;
  private pendingSubmit?: Promise<{ checked: Promise<void> }>;
  /** Dispatches since the last submission. */
  private dispatchCount = 0;
  /** Whether all submitted work is known to be done. */
  private isIdle = true;
  /** While everything must stay in one pass. */
  private inTimedPass = false;
  private dispatchTimestamps?: { querySet: GPUQuerySet; names: string[] };
  private readonly kernels = new Map<string, Kernel>();
  private readonly pipelines: Pipelines;
  private readonly scratchBuffers = new Map<string, GPUBuffer>();
  private readonly destroyAfterSubmit: GPUBuffer[] = [];
  private readonly freeStagingBuffers = new Map<number, GPUBuffer[]>();
  private readonly failures: Failures;

  private readonly failedBuffers = new WeakSet<GPUBuffer>();
  /** While planning: the kernels that would run, by name. */
  private plannedKernels?: Map<string, Kernel>;

  /** `packedDots`: whether WGSL has int8 dot products (packed-dots.ts). */
  constructor(
    readonly device: GPUDevice,
    packedDots = true,
  ) {
    this.limits = limitsOf(device.limits);
    this.failures = new Failures(
      device,
      () => this.generation,
      () => this.nextGeneration(),
    );
    this.arena = device.createBuffer({
      label: 'arena',
      size: ARENA_BYTES,
      usage: USE.UNIFORM | USE.STORAGE | USE.COPY_DST | USE.COPY_SRC,
    });
    this.pipelines = new Pipelines(device, this.arena, this.limits, packedDots);
  }

  get lost(): Promise<DeviceError> {
    return this.failures.lost;
  }

  get hasFailed(): boolean {
    return this.failures.isFatal;
  }

  throwIfFailed(): void {
    this.failures.throwIfFatal();
  }

  /** Does not wait. If the allocation fails, `forget` is called, and reads of commands that use the buffer throw. */
  createBuffer(bytes: number, label: string, forget: () => void = () => {}): GPUBuffer {
    this.throwIfFailed();
    const { buffer, scope } = this.allocate(bytes, label, USE.STORAGE | USE.COPY_DST | USE.COPY_SRC);
    const held = this.allocatedBytes;
    this.allocatedBytes += buffer.size;
    this.failures.watchAllocation(scope, buffer.size, held, () => {
      this.destroy(buffer);
      this.failedBuffers.add(buffer);
      forget();
    });
    return buffer;
  }

  /** Waits for the allocation, and throws if it failed. */
  async allocateBuffer(bytes: number, label: string): Promise<GPUBuffer> {
    this.throwIfFailed();
    const { buffer, scope } = this.allocate(bytes, label, USE.STORAGE | USE.COPY_DST | USE.COPY_SRC);
    const error = await scope.catch(() => null);
    this.throwIfFailed();
    if (error) throw outOfMemoryError(buffer.size, this.allocatedBytes);
    this.allocatedBytes += buffer.size;
    return buffer;
  }

  private allocate(bytes: number, label: string, usage: number) {
    const size = Math.max(16, Math.ceil(bytes / 4) * 4);
    this.device.pushErrorScope('out-of-memory');
    const buffer = this.device.createBuffer({ label, size, usage });
    return { buffer, scope: this.device.popErrorScope() };
  }

  waitForAllocations(): Promise<void> {
    return this.failures.waitForAllocations();
  }

  dispose(): void {
    this.failures.dispose();
    this.device.destroy();
  }

  destroy(buffer: GPUBuffer): void {
    if (this.failedBuffers.has(buffer)) return;
    this.allocatedBytes -= buffer.size;
    this.pipelines.clearBindGroups();
    // Recorded commands may still use it.
    if (this.encoder) this.destroyAfterSubmit.push(buffer);
    else buffer.destroy();
  }

  /** A buffer that grows as needed and is reused in every step. */
  scratch(name: string, bytes: number): GPUBuffer {
    const cached = this.scratchBuffers.get(name);
    if (cached && cached.size >= bytes) return cached;
    if (cached) this.destroy(cached);
    const buffer = this.createBuffer(bytes, name, () => {
      if (this.scratchBuffers.get(name) === buffer) this.scratchBuffers.delete(name);
    });
    this.scratchBuffers.set(name, buffer);
    return buffer;
  }

  /** Generates a kernel once per name. */
  kernel(name: string, make: () => Kernel): Kernel {
    const kernel = this.kernels.get(name) ?? make();
    this.kernels.set(name, kernel);
    return kernel;
  }

  /** Stores words for kernels to read. */
  writeToArena(words: ArrayLike<number> & { byteLength?: number }): ArenaTable {
    const source = words instanceof Float32Array ? words : Uint32Array.from(words);
    const at = this.allocateInArena(source.byteLength);
    this.arenaBytes.set(new Uint8Array(source.buffer, source.byteOffset, source.byteLength), at);
    return { word: at / 4, generation: this.generation };
  }

  private allocateInArena(bytes: number): number {
    const size = Math.ceil(bytes / ALIGN) * ALIGN;
    assert(size <= ARENA_BYTES / 2, `a table of ${bytes} bytes does not fit into the arena`);
    if (this.arenaUsed + size > ARENA_BYTES) this.submit();
    this.arenaUsed += size;
    return this.arenaUsed - size;
  }

  /** Submits first if a table of this size and the parameters of 16 dispatches do not fit. */
  reserveArena(bytes: number): void {
    if (this.arenaUsed + bytes + 16 * ALIGN > ARENA_BYTES) this.submit();
  }

  run(kernel: Kernel, params: readonly number[], buffers: readonly GPUBuffer[], groups: readonly number[]): void {
    if (groups.includes(0)) return;
    if (this.plannedKernels) {
      this.plannedKernels.set(kernel.name, kernel);
      return;
    }
    const pipeline = this.pipelines.get(kernel);
    const at = this.allocateInArena(UNIFORM_BYTES);
    const word = at / 4;
    for (let i = 0; i < pipeline.isFloatParam.length; i++) {
      if (pipeline.isFloatParam[i]) this.arenaFloats[word + i] = params[i];
      else this.arenaWords[word + i] = params[i];
    }
    const pass = this.computePass(kernel);
    if (this.currentPipeline !== pipeline) pass.setPipeline(pipeline.pipeline);
    this.currentPipeline = pipeline;
    this.dynamicOffset[0] = at;
    pass.setBindGroup(0, this.pipelines.bindGroupFor(pipeline, buffers), this.dynamicOffset, 0, 1);
    pass.dispatchWorkgroups(groups[0], groups[1] ?? 1, groups[2] ?? 1);
    this.dispatchCount++;
  }

  /** Submits if enough is recorded. Call it where no table in the arena is needed any more. */
  submitIfWorthwhile(): void {
    if (this.dispatchCount >= (this.isIdle ? SUBMIT_AFTER.idle : SUBMIT_AFTER.busy) && !this.inTimedPass) this.submit();
  }

  private computePass({ name }: Kernel): GPUComputePassEncoder {
    this.throwIfFailed();
    const { dispatchTimestamps } = this;
    if (dispatchTimestamps && dispatchTimestamps.names.length < MAX_TIMED_DISPATCHES) {
      const at = 2 * dispatchTimestamps.names.push(name);
      const timestampWrites = {
        querySet: dispatchTimestamps.querySet,
        beginningOfPassWriteIndex: at - 2,
        endOfPassWriteIndex: at - 1,
      };
      this.pass = this.commands().beginComputePass({ timestampWrites });
      return this.pass;
    }
    this.encoder ??= this.device.createCommandEncoder();
    this.pass ??= this.encoder.beginComputePass();
    return this.pass;
  }

  private commands(): GPUCommandEncoder {
    this.throwIfFailed();
    this.pass?.end();
    this.pass = undefined;
    this.currentPipeline = undefined;
    this.encoder ??= this.device.createCommandEncoder();
    return this.encoder;
  }

  copy(from: GPUBuffer, fromByte: number, to: GPUBuffer, toByte: number, bytes: number): void {
    this.commands().copyBufferToBuffer(from, fromByte, to, toByte, bytes);
  }

  clear(buffer: GPUBuffer, offset: number, bytes: number): void {
    this.commands().clearBuffer(buffer, offset, bytes);
  }

  /** Writes a multiple of four bytes, in order with recorded commands. */
  upload(to: GPUBuffer, offset: number, data: Uint8Array<ArrayBuffer>): void {
    this.throwIfFailed();
    if (this.encoder && data.byteLength <= ARENA_BYTES / 8) {
      const at = this.allocateInArena(data.byteLength);
      this.arenaBytes.set(data, at);
      this.copy(this.arena, at, to, offset, data.byteLength);
    } else {
      this.submit();
      this.device.queue.writeBuffer(to, offset, data);
    }
  }

  submit(): void {
    if (!this.encoder) return;
    const encoder = this.commands();
    this.encoder = undefined;
    this.device.queue.writeBuffer(this.arena, 0, this.arenaBytes, 0, Math.ceil(this.arenaUsed / 4) * 4);
    this.device.queue.submit([encoder.finish()]);
    this.isIdle = false;
    for (const buffer of this.destroyAfterSubmit.splice(0)) buffer.destroy();
    this.arenaUsed = 0;
    this.dispatchCount = 0;
    this.generation++;
  }

  private nextGeneration(): void {
    if (this.encoder && !this.hasFailed) this.submit();
    else this.generation++;
  }

  /** Runs everything recorded so far. Then the memory of destroyed buffers is free. */
  async waitUntilIdle(): Promise<void> {
    this.submit();
    await this.device.queue.onSubmittedWorkDone();
    this.throwIfFailed();
  }

  /** GPU time of what `record` dispatches, in nanoseconds; wall time without timestamp queries. */
  async time(record: () => void): Promise<number> {
    this.submit();
    if (!this.device.features.has('timestamp-query')) {
      const start = performance.now();
      record();
      this.submit();
      await this.device.queue.onSubmittedWorkDone();
      return 1e6 * (performance.now() - start);
    }
    const querySet = this.device.createQuerySet({ type: 'timestamp', count: 2 });
    const resolved = this.device.createBuffer({ size: 16, usage: USE.QUERY_RESOLVE | USE.COPY_SRC });
    this.encoder = this.device.createCommandEncoder();
    const pass = this.encoder.beginComputePass({
      timestampWrites: { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 },
    });
    this.pass = pass;
    this.inTimedPass = true;
    record();
    this.inTimedPass = false;
    assert(this.pass === pass, 'only dispatches can be timed: run the work once before, so that uploads are done');
    this.commands().resolveQuerySet(querySet, 0, 2, resolved, 0);
    const [from, to] = new BigUint64Array(await this.read(resolved, 0, 16));
    querySet.destroy();
    resolved.destroy();
    return Number(to - from);
  }

  /** Nanoseconds of each dispatch of `work`, each in its own pass. Gaps between passes are not counted. */
  async timeDispatches(work: () => Promise<void>): Promise<{ name: string; ns: number }[]> {
    this.submit();
    const querySet = this.device.createQuerySet({ type: 'timestamp', count: 2 * MAX_TIMED_DISPATCHES });
    const resolved = this.device.createBuffer({
      size: 16 * MAX_TIMED_DISPATCHES,
      usage: USE.QUERY_RESOLVE | USE.COPY_SRC,
    });
    const names: string[] = [];
    this.dispatchTimestamps = { querySet, names };
    await work();
    this.dispatchTimestamps = undefined;
    this.commands().resolveQuerySet(querySet, 0, 2 * names.length, resolved, 0);
    const times = new BigUint64Array(await this.read(resolved, 0, 16 * names.length));
    querySet.destroy();
    resolved.destroy();
    return names.map((name, i) => ({ name, ns: Number(times[2 * i + 1] - times[2 * i]) }));
  }

  /** The kernels that `work` would run, without running them. */
  async planKernels(work: () => void | Promise<void>): Promise<Kernel[]> {
    const planned = new Map<string, Kernel>();
    this.plannedKernels = planned;
    try {
      await work();
    } finally {
      this.plannedKernels = undefined;
    }
    return [...planned.values()];
  }

  /** Compiles kernels before they are needed. */
  async compile(kernels: readonly Kernel[]): Promise<void> {
    await Promise.all(kernels.map(kernel => this.pipelines.compile(kernel)));
    await this.waitForAllocations();
  }

  private createStaging(size: number): GPUBuffer {
    const { buffer, scope } = this.allocate(size, 'staging', USE.MAP_READ | USE.COPY_DST);
    this.failures.watchAllocation(scope, size, this.allocatedBytes, () => {});
    return buffer;
  }

  /** Reads a buffer after everything recorded so far. Reads of the same tick share a submission. */
  async read(buffer: GPUBuffer, offset: number, bytes: number): Promise<ArrayBuffer> {
    this.throwIfFailed();
    const size = 2 ** Math.ceil(Math.log2(Math.max(256, bytes)));
    const staging = this.freeStagingBuffers.get(size)?.pop() ?? this.createStaging(size);
    this.copy(buffer, offset, staging, 0, bytes);
    const recorded = this.generation;
    this.pendingSubmit ??= Promise.resolve().then(() => {
      this.pendingSubmit = undefined;
      this.submit();
      return { checked: this.failures.checkSubmitted() };
    });
    try {
      const { checked } = await this.pendingSubmit;
      const { generation } = this;
      await staging.mapAsync(MAP_READ_MODE, 0, bytes);
      this.isIdle = this.generation === generation;
      await checked;
      this.failures.throwIfInvalid(recorded);
    } catch (error) {
      // A device loss is reported after the commands that it broke: at the next turn by Dawn, later by Chromium.
      for (const limit of [0, LOSS_REPORT_MS]) {
        await Promise.race([this.lost, new Promise(resolve => setTimeout(resolve, limit))]);
        this.failures.throwIfInvalid(recorded);
      }
      throw error;
    }
    const result = staging.getMappedRange(0, bytes).slice(0);
    staging.unmap();
    const idle = this.freeStagingBuffers.get(size) ?? [];
    idle.push(staging);
    this.freeStagingBuffers.set(size, idle);
    return result;
  }
}
