/**
 * Matrix products with subgroup matrices, compiled as they are: SwiftShader has no subgroup matrices, so they run only
 * emulated (subgroup-matrices.test.ts). `npm run bench -- matmul` validates results on a real GPU.
 */
import { describe, expect, it } from 'vitest';
import type { Kernel } from '../../src/kernel/webgpu/kernel.ts';
import { addPartials, convertToF16, gemmSubgroupMatrix } from '../../src/kernel/webgpu/kernels/gemm-subgroup-matrix.ts';
import { gpuFormat } from '../../src/kernel/webgpu/weights.ts';
import { isQuantized } from '../../src/kernel/weights/split.ts';
import { weightTypes } from '../../src/kernel/weights/types.ts';
import { compiler } from './compiler.ts';

const TILE = { outs: 128, rows: 64, subgroupOuts: 64, subgroupRows: 32, blocks: 1, split: false };
const SPLIT_TILE = { outs: 128, rows: 48, subgroupOuts: 32, subgroupRows: 48, blocks: 2, split: true };

const found = await compiler();
const suite = typeof found === 'string' ? describe.skip : describe;
suite(`subgroup-matrix kernels compile (not run)${typeof found === 'string' ? ` (skipped: ${found})` : ''}`, () => {
  const compile = found as (kernel: Kernel) => Promise<string[]>;

  it.each(weightTypes.filter(isQuantized))('%s: compile', async type => {
    const m = { format: gpuFormat(type), precise: false, bias: true };
    expect(await compile(gemmSubgroupMatrix(m, TILE))).toEqual([]);
    expect(await compile(gemmSubgroupMatrix({ ...m, bias: false }, TILE, 3))).toEqual([]);
    expect(await compile(gemmSubgroupMatrix(m, SPLIT_TILE))).toEqual([]);
    expect(await compile(gemmSubgroupMatrix({ ...m, bias: false }, SPLIT_TILE, 3))).toEqual([]);
    expect(await compile(addPartials(m, 128))).toEqual([]);
    expect(await compile(addPartials({ ...m, bias: false }, 128, 3))).toEqual([]);
  });

  it('conversion to f16: compiles', async () => expect(await compile(convertToF16)).toEqual([]));

  it('an invalid kernel is reported', async () =>
    expect(await compile({ ...convertToF16, body: convertToF16.body.replace('vec2u(pack', 'vec3u(pack') })).not.toEqual(
      [],
    ));
});
