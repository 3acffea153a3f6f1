/** A GPU for tests: whatever WebGPU finds, in Node most often SwiftShader on the CPU. */
import { describe, vi } from 'vitest';
import { findAdapter } from '../src/kernel/webgpu/adapter.ts';

const found = await findAdapter();
// Kernels are compiled for the CPU here, which takes long on a busy machine.
vi.setConfig({ testTimeout: 240_000 });

/** `describe`, for tests that need WebGPU: skipped with the reason where there is none, an error there under CI. */
export function describeGpu(title: string, suite: () => void): void {
  if (typeof found !== 'string') describe(title, suite);
  else if (process.env.CI) throw new Error(`CI must run the tests of WebGPU, but ${found}. Install chromium.`);
  else describe.skip(`${title} (skipped: ${found})`, suite);
}
