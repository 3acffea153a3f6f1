/**
 * Products by subgroup matrices. SwiftShader has none, so they run on real GPUs alone (`npm run bench -- matmul` validates them
 * there); what can be said here is that the compiler takes every one of their kernels, on Dawn's backend that runs nothing.
 */
import { createRequire } from 'node:module';
import { describe, expect, it } from 'vitest';
import { matmulMatrices, toHalves } from '../src/kernel/webgpu/kernels/matrices.ts';
import { type Kernel, wgsl } from '../src/kernel/webgpu/pipelines.ts';
import { formatOf } from '../src/kernel/webgpu/weights.ts';
import { isInteger } from '../src/kernel/weights/split.ts';
import { weightTypes } from '../src/kernel/weights/types.ts';

const TILE = { outs: 128, rows: 64, subOuts: 64, subRows: 32 };

async function compiler(): Promise<((kernel: Kernel) => Promise<string[]>) | string> {
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

const found = await compiler();
const suite = typeof found === 'string' ? describe.skip : describe;
suite(`kernels of subgroup matrices${typeof found === 'string' ? ` (skipped: ${found})` : ''}`, () => {
  const compile = found as (kernel: Kernel) => Promise<string[]>;

  it.each(weightTypes.filter(isInteger))('of %s are WGSL', async type => {
    const m = { format: formatOf(type), precise: false, bias: true };
    expect(await compile(matmulMatrices(m, TILE))).toEqual([]);
    expect(await compile(matmulMatrices({ ...m, bias: false }, TILE, 3))).toEqual([]);
  });

  it('rows become halves', async () => expect(await compile(toHalves)).toEqual([]));

  it('the compiler tells a wrong one', async () =>
    expect(await compile({ ...toHalves, body: toHalves.body.replace('vec2u(pack', 'vec3u(pack') })).not.toEqual([]));
});
