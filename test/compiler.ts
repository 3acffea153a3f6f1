/** Dawn's compiler, on its backend that runs nothing: what no adapter of the tests can run is at least WGSL. */
import { createRequire } from 'node:module';
import { type Kernel, wgsl } from '../src/kernel/webgpu/pipelines.ts';

/** What it says of a kernel, or why it is not here. */
export async function compiler(): Promise<((kernel: Kernel) => Promise<string[]>) | string> {
  try {
    const { create } = await import(createRequire(import.meta.url).resolve('webgpu'));
    const gpu: GPU = create(['backend=null', 'enable-dawn-features=allow_unsafe_apis']);
    const adapter = await gpu.requestAdapter();
    const requiredFeatures = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'] as GPUFeatureName[];
    const device = await adapter!.requestDevice({ requiredFeatures });
    // Dawn crashes once these are collected.
    Object.assign(globalThis, { compiles: [gpu, adapter, device] });
    return async kernel => {
      device.pushErrorScope('validation');
      const { messages } = await device.createShaderModule({ code: wgsl(kernel) }).getCompilationInfo();
      await device.popErrorScope();
      return messages.map(({ message }) => message);
    };
  } catch (error) {
    return `the optional package webgpu does not work here: ${(error as Error).message}`;
  }
}
