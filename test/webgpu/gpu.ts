/** A GPU for tests: whatever WebGPU finds, in Node most often SwiftShader on the CPU. */
import { describe } from 'vitest';
import { findAdapter } from '../../src/kernel/webgpu/adapter.ts';
import { createWebGpuDevice, type WebGpuDevice, type WebGpuOptions } from '../../src/kernel/webgpu/device.ts';

const found = await findAdapter();
/** SwiftShader compiles kernels on the CPU, which takes long on a busy machine. */
const TIMEOUT = 240_000;

/** `describe` for tests that need WebGPU: without an adapter they are skipped with the reason, and fail under CI. */
export function describeGpu(title: string, suite: () => void): void {
  if (typeof found !== 'string') describe(title, { timeout: TIMEOUT }, suite);
  else if (process.env.CI) throw new Error(`CI must run the WebGPU tests, but ${found}. Install chromium.`);
  else describe.skip(`${title} (skipped: ${found})`, suite);
}

/** Small, because SwiftShader is slow. */
export const SMALL_SHAPE = { headDim: 32, heads: 6, kvHeads: 2, pageTokens: 32 };

const devices = new Map<string, Promise<WebGpuDevice>>();

/**
 * One device per set of options as long as the process lives: compiling pipelines takes most of the time, and all tests
 * share them.
 */
export function openWebGpu(options: Partial<WebGpuOptions> = {}): Promise<WebGpuDevice> {
  const key = JSON.stringify(options);
  const device = devices.get(key) ?? createWebGpuDevice({ ...SMALL_SHAPE, ...options });
  devices.set(key, device);
  return device;
}
