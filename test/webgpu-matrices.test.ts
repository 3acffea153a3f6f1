/**
 * Products by subgroup matrices. SwiftShader has none, so they run on real GPUs alone (`npm run bench -- matmul` validates them
 * there); what can be said here is that the compiler takes every one of their kernels, on Dawn's backend that runs nothing.
 */
import { describe, expect, it } from 'vitest';
import type { Kernel } from '../src/kernel/webgpu/kernel.ts';
import { matmulMatrices, toHalves } from '../src/kernel/webgpu/kernels/matrices.ts';
import { formatOf } from '../src/kernel/webgpu/weights.ts';
import { isInteger } from '../src/kernel/weights/split.ts';
import { weightTypes } from '../src/kernel/weights/types.ts';
import { compiler } from './compiler.ts';

const TILE = { outs: 128, rows: 64, subOuts: 64, subRows: 32 };

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
