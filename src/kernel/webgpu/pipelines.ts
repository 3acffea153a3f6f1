/** Compiles each kernel into a pipeline once, and caches the bind groups of each pipeline. */
import { type Kernel, wgsl } from './kernel.ts';
import { type KernelLimits, requireFit } from './limits.ts';

export interface Pipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;

  isFloatParam: readonly boolean[];
  /** By the ids of their buffers; and the one used last. */
  bindGroups: Map<string, CachedBindGroup>;
  last?: CachedBindGroup;
}

/** Steps repeat, so the bind group that came `next` in the last step is tried first. */
interface CachedBindGroup {
  group: GPUBindGroup;
  buffers: readonly GPUBuffer[];
  next?: CachedBindGroup;
}

const COMPUTE_STAGE = 4;

/** Bytes for the parameters of a dispatch, at a dynamic offset. */
export const UNIFORM_BYTES = 128;

export class Pipelines {
  private readonly pipelines = new Map<string, Pipeline>();
  private readonly ids = new WeakMap<GPUBuffer, number>();
  private nextId = 0;

  constructor(
    private readonly device: GPUDevice,
    private readonly uniforms: GPUBuffer,
    private readonly limits: KernelLimits,
    private readonly packedDots: boolean,
  ) {}

  get(kernel: Kernel): Pipeline {
    const cached = this.pipelines.get(kernel.name);
    if (cached) return cached;
    const { descriptor, layout } = this.createDescriptor(kernel);
    return this.store(kernel, layout, this.device.createComputePipeline(descriptor));
  }

  /** Compiles a kernel in the background, before it is needed. */
  async compile(kernel: Kernel): Promise<void> {
    if (this.pipelines.has(kernel.name)) return;
    const { descriptor, layout } = this.createDescriptor(kernel);
    const pipeline = await this.device.createComputePipelineAsync(descriptor).catch(() => undefined);
    // It may have been needed meanwhile. A failed compilation fails again, with its reason, when it is needed.
    if (pipeline && !this.pipelines.has(kernel.name)) this.store(kernel, layout, pipeline);
  }

  private store(kernel: Kernel, layout: GPUBindGroupLayout, pipeline: GPUComputePipeline): Pipeline {
    const isFloatParam = kernel.params.map(({ type }) => type === 'f32');
    const entry = { pipeline, layout, isFloatParam, bindGroups: new Map() };
    this.pipelines.set(kernel.name, entry);
    return entry;
  }

  private createDescriptor(kernel: Kernel): { descriptor: GPUComputePipelineDescriptor; layout: GPUBindGroupLayout } {
    requireFit(kernel, this.limits);
    const storage = kernel.buffers.map(({ access }, i): GPUBindGroupLayoutEntry => {
      const type = access === 'read_write' ? 'storage' : 'read-only-storage';
      return { binding: i + 1, visibility: COMPUTE_STAGE, buffer: { type } };
    });
    const uniform = { type: 'uniform', hasDynamicOffset: true } as const;
    const layout = this.device.createBindGroupLayout({
      entries: [{ binding: 0, visibility: COMPUTE_STAGE, buffer: uniform }, ...storage],
    });
    const code = wgsl(kernel, this.packedDots);
    const descriptor = {
      label: kernel.name,
      layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module: this.device.createShaderModule({ label: kernel.name, code }), entryPoint: 'run' },
    };
    return { descriptor, layout };
  }

  bindGroupFor(pipeline: Pipeline, buffers: readonly GPUBuffer[]): GPUBindGroup {
    const { last } = pipeline;
    const guess = last?.next;
    if (guess && same(guess.buffers, buffers)) {
      pipeline.last = guess;
      return guess.group;
    }
    const key = buffers.map(buffer => this.idOf(buffer)).join();
    const bound = pipeline.bindGroups.get(key) ?? this.createBindGroup(pipeline.layout, buffers);
    pipeline.bindGroups.set(key, bound);
    if (last) last.next = bound;
    pipeline.last = bound;
    return bound.group;
  }

  /** Called when a buffer is destroyed. */
  clearBindGroups(): void {
    for (const pipeline of this.pipelines.values()) {
      pipeline.bindGroups.clear();
      pipeline.last = undefined;
    }
  }

  private createBindGroup(layout: GPUBindGroupLayout, buffers: readonly GPUBuffer[]): CachedBindGroup {
    const entries = [
      { binding: 0, resource: { buffer: this.uniforms, size: UNIFORM_BYTES } },
      ...buffers.map((buffer, i) => ({ binding: i + 1, resource: { buffer } })),
    ];
    return { group: this.device.createBindGroup({ layout, entries }), buffers };
  }

  private idOf(buffer: GPUBuffer): number {
    const id = this.ids.get(buffer) ?? this.nextId++;
    this.ids.set(buffer, id);
    return id;
  }
}

const same = (a: readonly GPUBuffer[], b: readonly GPUBuffer[]) => a.every((buffer, i) => buffer === b[i]);
