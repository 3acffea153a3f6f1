/**
 * A GPU as the device's operations see it: kernels are dispatched into one command encoder, with their parameters and
 * tables in one arena that is uploaded once, and everything is submitted when somebody wants to read.
 */
import { assert, type DeviceError } from '../../errors.ts';
import { Failures, noMemory } from './failures.ts';
import type { Kernel } from './kernel.ts';
import { type Limits, limitsOf } from './limits.ts';
import { type Pipeline, Pipelines, UNIFORM_BYTES } from './pipelines.ts';

export type { Kernel } from './kernel.ts';

/** A table in the arena: its place in words, good until the next submission. */
export interface Placed {
  word: number;
  generation: number;
}

/** The flags of the specification, which not every place has as globals. */
const USE = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128, QUERY_RESOLVE: 512 };
const MAP_READ_MODE = 1;

const ARENA = 4 << 20;
const ALIGN = 256;
/** Dispatches after which the GPU may begin, if it is idle and if it is not: it works while the next ones are recorded. */
const BEGIN = { idle: 4, busy: 32 };
/** Dispatches that a set of timestamps can hold. */
const WATCHED = 2048;

export class Gpu {
  /** For kernels that read tables: `data: array<u32>`. */
  readonly arena: GPUBuffer;
  /** What the device enforces. */
  readonly limits: Limits;
  /** Goes up with every submission: tables placed before are gone. */
  generation = 0;
  bytes = 0;
  private readonly shadow = new Uint8Array(ARENA);
  private readonly words = new Uint32Array(this.shadow.buffer);
  private readonly floats = new Float32Array(this.shadow.buffer);
  private readonly offset = new Uint32Array(1);
  private used = 0;
  private encoder?: GPUCommandEncoder;
  private pass?: GPUComputePassEncoder;
  /** Of the pass. */
  private current?: Pipeline;
  private submission?: Promise<{ checked: Promise<void> }>;
  /** Dispatches since the last submission. */
  private recorded = 0;
  /** Whether all that was submitted is known to be done. */
  private idling = true;
  /** Whether what is recorded must stay in one pass. */
  private timed = false;
  private watch?: { querySet: GPUQuerySet; names: string[] };
  private readonly kernels = new Map<string, Kernel>();
  private readonly pipelines: Pipelines;
  private readonly rooms = new Map<string, GPUBuffer>();
  private readonly doomed: GPUBuffer[] = [];
  private readonly idle = new Map<number, GPUBuffer[]>();
  private readonly failures: Failures;
  /** Buffers for which there was no memory. */
  private readonly missing = new WeakSet<GPUBuffer>();
  /** While a warm-up plans: kernels that would be run, by name. */
  private planned?: Map<string, Kernel>;

  /** `packedDots`: whether WGSL has int8 dots here (packed.ts). */
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
      size: ARENA,
      usage: USE.UNIFORM | USE.STORAGE | USE.COPY_DST | USE.COPY_SRC,
    });
    this.pipelines = new Pipelines(device, this.arena, this.limits, packedDots);
  }

  get lost(): Promise<DeviceError> {
    return this.failures.lost;
  }

  /** Whether nothing can be recorded any more. */
  get failed(): boolean {
    return this.failures.isFatal;
  }

  check(): void {
    this.failures.check();
  }

  /** If there is no memory for it, what is recorded with it fails at its next read, and its owner is to `forget` it. */
  buffer(bytes: number, label: string, forget: () => void = () => {}): GPUBuffer {
    this.check();
    const { buffer, scope } = this.allocate(bytes, label, USE.STORAGE | USE.COPY_DST | USE.COPY_SRC);
    const held = this.bytes;
    this.bytes += buffer.size;
    this.failures.watch(scope, buffer.size, held, () => {
      this.destroy(buffer);
      this.missing.add(buffer);
      forget();
    });
    return buffer;
  }

  /** A buffer that is known to be there, or an error and nothing else. */
  async reserve(bytes: number, label: string): Promise<GPUBuffer> {
    this.check();
    const { buffer, scope } = this.allocate(bytes, label, USE.STORAGE | USE.COPY_DST | USE.COPY_SRC);
    const error = await scope.catch(() => null);
    this.check();
    if (error) throw noMemory(buffer.size, this.bytes);
    this.bytes += buffer.size;
    return buffer;
  }

  private allocate(bytes: number, label: string, usage: number) {
    const size = Math.max(16, Math.ceil(bytes / 4) * 4);
    this.device.pushErrorScope('out-of-memory');
    const buffer = this.device.createBuffer({ label, size, usage });
    return { buffer, scope: this.device.popErrorScope() };
  }

  /** Waits until all buffers are known to be there; an error if one is not. */
  allocated(): Promise<void> {
    return this.failures.allocated();
  }

  dispose(): void {
    this.failures.dispose();
    this.device.destroy();
  }

  destroy(buffer: GPUBuffer): void {
    if (this.missing.has(buffer)) return;
    this.bytes -= buffer.size;
    this.pipelines.forgetBuffers();
    // What was recorded may still use it.
    if (this.encoder) this.doomed.push(buffer);
    else buffer.destroy();
  }

  /** Room that grows as needed and is reused from step to step. */
  room(name: string, bytes: number): GPUBuffer {
    const has = this.rooms.get(name);
    if (has && has.size >= bytes) return has;
    if (has) this.destroy(has);
    const buffer = this.buffer(bytes, name, () => {
      if (this.rooms.get(name) === buffer) this.rooms.delete(name);
    });
    this.rooms.set(name, buffer);
    return buffer;
  }

  /** A kernel by a short name of the caller's: its text is made once. */
  kernel(name: string, make: () => Kernel): Kernel {
    const kernel = this.kernels.get(name) ?? make();
    this.kernels.set(name, kernel);
    return kernel;
  }

  /** Room in the arena for words that a kernel reads. */
  place(words: ArrayLike<number> & { byteLength?: number }): Placed {
    const source = words instanceof Float32Array ? words : Uint32Array.from(words);
    const at = this.take(source.byteLength);
    this.shadow.set(new Uint8Array(source.buffer, source.byteOffset, source.byteLength), at);
    return { word: at / 4, generation: this.generation };
  }

  private take(bytes: number): number {
    const size = Math.ceil(bytes / ALIGN) * ALIGN;
    assert(size <= ARENA / 2, `a table of ${bytes} bytes does not fit into the arena`);
    if (this.used + size > ARENA) this.submit();
    this.used += size;
    return this.used - size;
  }

  /** Whether a table of this size, and some uniforms after it, fit without a submission in between. */
  makeRoom(bytes: number): void {
    if (this.used + bytes + 16 * ALIGN > ARENA) this.submit();
  }

  run(kernel: Kernel, params: readonly number[], buffers: readonly GPUBuffer[], groups: readonly number[]): void {
    if (groups.includes(0)) return;
    if (this.planned) {
      this.planned.set(kernel.name, kernel);
      return;
    }
    const known = this.pipelines.of(kernel);
    const at = this.take(UNIFORM_BYTES);
    const word = at / 4;
    for (let i = 0; i < known.floats.length; i++) {
      if (known.floats[i]) this.floats[word + i] = params[i];
      else this.words[word + i] = params[i];
    }
    const pass = this.computePass(kernel);
    if (this.current !== known) pass.setPipeline(known.pipeline);
    this.current = known;
    this.offset[0] = at;
    pass.setBindGroup(0, this.pipelines.bind(known, buffers), this.offset, 0, 1);
    pass.dispatchWorkgroups(groups[0], groups[1] ?? 1, groups[2] ?? 1);
    this.recorded++;
  }

  /** A moment at which nothing depends on tables placed before: the GPU begins if there is enough to do. */
  mayBegin(): void {
    if (this.recorded >= (this.idling ? BEGIN.idle : BEGIN.busy) && !this.timed) this.submit();
  }

  private computePass({ name }: Kernel): GPUComputePassEncoder {
    this.check();
    const { watch } = this;
    if (watch && watch.names.length < WATCHED) {
      const at = 2 * watch.names.push(name);
      const timestampWrites = {
        querySet: watch.querySet,
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
    this.check();
    this.pass?.end();
    this.pass = undefined;
    this.current = undefined;
    this.encoder ??= this.device.createCommandEncoder();
    return this.encoder;
  }

  copy(from: GPUBuffer, fromByte: number, to: GPUBuffer, toByte: number, bytes: number): void {
    this.commands().copyBufferToBuffer(from, fromByte, to, toByte, bytes);
  }

  clear(buffer: GPUBuffer, offset: number, bytes: number): void {
    this.commands().clearBuffer(buffer, offset, bytes);
  }

  /** Bytes into a buffer, after what was recorded and before what will be. A multiple of four. */
  upload(to: GPUBuffer, offset: number, data: Uint8Array<ArrayBuffer>): void {
    this.check();
    if (this.encoder && data.byteLength <= ARENA / 8) {
      const at = this.take(data.byteLength);
      this.shadow.set(data, at);
      this.copy(this.arena, at, to, offset, data.byteLength);
    } else {
      this.submit();
      this.device.queue.writeBuffer(to, offset, data);
    }
  }

  /** Everything recorded so far begins. */
  submit(): void {
    if (!this.encoder) return;
    const encoder = this.commands();
    this.encoder = undefined;
    this.device.queue.writeBuffer(this.arena, 0, this.shadow, 0, Math.ceil(this.used / 4) * 4);
    this.device.queue.submit([encoder.finish()]);
    this.idling = false;
    for (const buffer of this.doomed.splice(0)) buffer.destroy();
    this.used = 0;
    this.recorded = 0;
    this.generation++;
  }

  private nextGeneration(): void {
    if (this.encoder && !this.failed) this.submit();
    else this.generation++;
  }

  /** Everything recorded so far has been run, and the memory of buffers that were destroyed is free. */
  async done(): Promise<void> {
    this.submit();
    await this.device.queue.onSubmittedWorkDone();
    this.check();
  }

  /** Nanoseconds that the GPU takes for what `record` dispatches; by the clock on the wall where it cannot tell. */
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
    this.timed = true;
    record();
    this.timed = false;
    assert(this.pass === pass, 'what is timed must be dispatches alone: run it once before, so that uploads are done');
    this.commands().resolveQuerySet(querySet, 0, 2, resolved, 0);
    const [from, to] = new BigUint64Array(await this.read(resolved, 0, 16));
    querySet.destroy();
    resolved.destroy();
    return Number(to - from);
  }

  /**
   * Where the time goes in what `work` dispatches: nanoseconds of every dispatch, by the name of its kernel, each in a pass
   * of its own. What lies between them is left out, so the whole takes longer than their sum.
   */
  async breakdown(work: () => Promise<void>): Promise<{ name: string; ns: number }[]> {
    this.submit();
    const querySet = this.device.createQuerySet({ type: 'timestamp', count: 2 * WATCHED });
    const resolved = this.device.createBuffer({ size: 16 * WATCHED, usage: USE.QUERY_RESOLVE | USE.COPY_SRC });
    const names: string[] = [];
    this.watch = { querySet, names };
    await work();
    this.watch = undefined;
    this.commands().resolveQuerySet(querySet, 0, 2 * names.length, resolved, 0);
    const times = new BigUint64Array(await this.read(resolved, 0, 16 * names.length));
    querySet.destroy();
    resolved.destroy();
    return names.map((name, i) => ({ name, ns: Number(times[2 * i + 1] - times[2 * i]) }));
  }

  /** The kernels that `work` would run, without running them. */
  async plan(work: () => void | Promise<void>): Promise<Kernel[]> {
    const planned = new Map<string, Kernel>();
    this.planned = planned;
    try {
      await work();
    } finally {
      this.planned = undefined;
    }
    return [...planned.values()];
  }

  /** Compiles kernels before they are needed. */
  async compile(kernels: readonly Kernel[]): Promise<void> {
    await Promise.all(kernels.map(kernel => this.pipelines.prepare(kernel)));
    await this.allocated();
  }

  private staging(size: number): GPUBuffer {
    const { buffer, scope } = this.allocate(size, 'staging', USE.MAP_READ | USE.COPY_DST);
    this.failures.watch(scope, size, this.bytes, () => {});
    return buffer;
  }

  /** Bytes of a buffer as they are after what was recorded. Reads that are asked for together share a submission. */
  async read(buffer: GPUBuffer, offset: number, bytes: number): Promise<ArrayBuffer> {
    this.check();
    const size = 2 ** Math.ceil(Math.log2(Math.max(256, bytes)));
    const staging = this.idle.get(size)?.pop() ?? this.staging(size);
    this.copy(buffer, offset, staging, 0, bytes);
    const recorded = this.generation;
    this.submission ??= Promise.resolve().then(() => {
      this.submission = undefined;
      this.submit();
      return { checked: this.failures.checkpoint() };
    });
    try {
      const { checked } = await this.submission;
      const { generation } = this;
      await staging.mapAsync(MAP_READ_MODE, 0, bytes);
      this.idling = this.generation === generation;
      await checked;
      this.failures.checkResults(recorded);
    } catch (error) {
      // The loss is told a moment after the commands that it broke.
      await new Promise(resolve => setTimeout(resolve));
      this.failures.checkResults(recorded);
      throw error;
    }
    const result = staging.getMappedRange(0, bytes).slice(0);
    staging.unmap();
    const idle = this.idle.get(size) ?? [];
    idle.push(staging);
    this.idle.set(size, idle);
    return result;
  }
}
