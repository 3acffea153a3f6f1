/**
 * Kernels as the GPU runs them: their text in WGSL, compiled once into a pipeline, and the bind groups that give a pipeline
 * its buffers. All are kept.
 */
import { type Kernel, wgsl } from './kernel.ts';
import { type KernelLimits, requireFit } from './limits.ts';

export interface Pipeline {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
  /** By parameter: whether it is a float. */
  floats: readonly boolean[];
  /** Its bind groups by the numbers of their buffers, and the one that was used last. */
  bound: Map<string, Bound>;
  last?: Bound;
}

/** Buffers of a dispatch. Steps are alike, so what came `next` the last time is tried first. */
interface Bound {
  group: GPUBindGroup;
  buffers: readonly GPUBuffer[];
  next?: Bound;
}

const COMPUTE_STAGE = 4;

/** Bytes that the uniform binding spans: parameters of a dispatch, at a dynamic offset. */
export const UNIFORM_BYTES = 128;

export class Pipelines {
  private readonly pipelines = new Map<string, Pipeline>();
  private readonly ids = new WeakMap<GPUBuffer, number>();
  private nextId = 0;

  /** `uniforms` holds the parameters of all dispatches. */
  constructor(
    private readonly device: GPUDevice,
    private readonly uniforms: GPUBuffer,
    private readonly limits: KernelLimits,
    private readonly packedDots: boolean,
  ) {}

  of(kernel: Kernel): Pipeline {
    const known = this.pipelines.get(kernel.name);
    if (known) return known;
    const { descriptor, layout } = this.describe(kernel);
    return this.keep(kernel, layout, this.device.createComputePipeline(descriptor));
  }

  /** Compiles a kernel before it is needed, while other things go on. */
  async prepare(kernel: Kernel): Promise<void> {
    if (this.pipelines.has(kernel.name)) return;
    const { descriptor, layout } = this.describe(kernel);
    const pipeline = await this.device.createComputePipelineAsync(descriptor).catch(() => undefined);
    // Somebody may have needed it meanwhile. What failed fails again, with its reason, when it is needed.
    if (pipeline && !this.pipelines.has(kernel.name)) this.keep(kernel, layout, pipeline);
  }

  private keep(kernel: Kernel, layout: GPUBindGroupLayout, pipeline: GPUComputePipeline): Pipeline {
    const floats = kernel.params.map(name => name.endsWith(': f32'));
    const made = { pipeline, layout, floats, bound: new Map() };
    this.pipelines.set(kernel.name, made);
    return made;
  }

  private describe(kernel: Kernel): { descriptor: GPUComputePipelineDescriptor; layout: GPUBindGroupLayout } {
    requireFit(kernel, this.limits);
    const storage = kernel.buffers.map((text, i): GPUBindGroupLayoutEntry => {
      const type = text.startsWith('write ') ? 'storage' : 'read-only-storage';
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

  bind(pipeline: Pipeline, buffers: readonly GPUBuffer[]): GPUBindGroup {
    const { last } = pipeline;
    const guess = last?.next;
    if (guess && same(guess.buffers, buffers)) {
      pipeline.last = guess;
      return guess.group;
    }
    const key = buffers.map(buffer => this.idOf(buffer)).join();
    const bound = pipeline.bound.get(key) ?? this.boundOf(pipeline.layout, buffers);
    pipeline.bound.set(key, bound);
    if (last) last.next = bound;
    pipeline.last = bound;
    return bound.group;
  }

  /** A buffer is gone, and bind groups with it. */
  forgetBuffers(): void {
    for (const pipeline of this.pipelines.values()) {
      pipeline.bound.clear();
      pipeline.last = undefined;
    }
  }

  private boundOf(layout: GPUBindGroupLayout, buffers: readonly GPUBuffer[]): Bound {
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
