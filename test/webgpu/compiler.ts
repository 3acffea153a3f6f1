/**
 * Dawn's compiler on its null backend, which compiles but runs nothing, for kernels that no adapter of the tests can run. Its
 * devices have WebGPU's minimum limits (16 KiB of workgroup memory, 8 storage buffers, 256 invocations) and enforce them.
 */
import { createRequire } from 'node:module';
import { type Kernel, wgsl } from '../../src/kernel/webgpu/kernel.ts';

const FEATURES = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'];
/** Dawn crashes if these are garbage collected. */
const held: unknown[] = [];
Object.assign(globalThis, { compiles: held });

/** A device with these features (default: all that kernels use), or why there is none. */
export async function nullDevice(features: readonly string[] = FEATURES): Promise<GPUDevice | string> {
  try {
    const { create } = await import(createRequire(import.meta.url).resolve('webgpu'));
    const gpu: GPU = create(['backend=null', 'enable-dawn-features=allow_unsafe_apis']);
    const adapter = await gpu.requestAdapter();
    if (!adapter) return 'Dawn has no null adapter';
    const device = await adapter.requestDevice({ requiredFeatures: features as GPUFeatureName[] });
    held.push(gpu, adapter, device);
    return device;
  } catch (error) {
    return `the optional package webgpu does not work here: ${(error as Error).message}`;
  }
}

/** Compiles a kernel and returns the messages; a string says why there is no compiler. */
export async function compiler(): Promise<((kernel: Kernel) => Promise<string[]>) | string> {
  const device = await nullDevice();
  if (typeof device === 'string') return device;
  return async kernel => {
    device.pushErrorScope('validation');
    const { messages } = await device.createShaderModule({ code: wgsl(kernel) }).getCompilationInfo();
    await device.popErrorScope();
    return messages.map(({ message }) => message);
  };
}
