/**
 * Attention kernels for subgroups of 32 lanes, compiled only: SwiftShader's subgroups are smaller, so nothing runs and no
 * result is checked. `npm run bench -- attention` validates results on a real GPU.
 */

import { describe, expect, it } from 'vitest';
import { createCodec, learn } from '../../src/codec/kv.ts';
import { gaussianSamples } from '../../src/codec/learned.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { selectVariants } from '../../src/kernel/webgpu/attention-variant.ts';
import { createCodecs } from '../../src/kernel/webgpu/codecs.ts';
import type { Gpu } from '../../src/kernel/webgpu/gpu.ts';
import type { Kernel } from '../../src/kernel/webgpu/kernel.ts';
import { combineSplitsHadamard } from '../../src/kernel/webgpu/kernels/four-subgroups/combine-splits.ts';
import { fuseHorizontally } from '../../src/kernel/webgpu/kernels/horizontal-fusion.ts';
import { transformQueryOneSubgroup } from '../../src/kernel/webgpu/kernels/one-subgroup/transform-query.ts';
import { compiler } from './compiler.ts';

const SHAPE = { headDim: 128, kvHeads: 2, pageTokens: 128, group: 4, subgroupSize: 32 };
const OPTIONS = {
  unroll: 4,
  pagesPerSplit: 4,
  matrices: false,
  limits: { workgroupMemory: 32768, invocations: 256, storageBuffers: 8 },
};
/** Nothing runs, so no buffer is needed. */
const NO_GPU = { createBuffer: () => ({}), upload() {} } as unknown as Gpu;

const found = await compiler();
const suite = typeof found === 'string' ? describe.skip : describe;
suite(`kernels for subgroups of 32 lanes compile (not run)${typeof found === 'string' ? ` (skipped: ${found})` : ''}`, () => {
  const compile = found as (kernel: Kernel) => Promise<string[]>;
  const codecOf = createCodecs(NO_GPU, SHAPE, false);

  it.each([
    'tq4u',
    'tq2',
    'tq3',
    'tq4',
    'kivi2g32',
    'q8_0',
    'q4_0',
    'fp8',
    'f16',
    'tq1',
    'vec-d4b8',
    'mead2',
    'mead2u',
  ])('%s: pages and tails', async spec => {
    const shape = { ...SHAPE, ropeFrequencies: createRopeFrequencies(SHAPE.headDim) };
    const samples = gaussianSamples(shape, 256);
    const { keys, values } = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
    const [key, value] = [codecOf(keys.layout), codecOf(values.layout)];
    const frame = selectVariants(key, value, SHAPE, OPTIONS).decoded;
    const [pages, f16] = [frame.pages(1), frame.f16(1)];
    expect(await compile(pages)).toEqual([]);
    expect(await compile(f16)).toEqual([]);
    if (pages.size === f16.size) expect(await compile(fuseHorizontally(f16, pages))).toEqual([]);
    if (frame.pageQueries) expect(await compile(frame.pageQueries.kernel())).toEqual([]);
  });

  it.each([
    ['f16', 1],
    ['fp8', 1],
    ['fp8', 2],
    ['q8_0/fp8', 1],
    ['fp8/tq4u', 1],
  ])('%s: pages by subgroup matrices, %i rows', async (spec, rows) => {
    const shape = { ...SHAPE, ropeFrequencies: createRopeFrequencies(SHAPE.headDim) };
    const byMatrices = { ...SHAPE, subgroupMatrices: true };
    const { keys, values } = createCodec(spec, shape);
    const [key, value] = [keys, values].map(({ layout }) => createCodecs(NO_GPU, byMatrices, false)(layout));
    const kernel = selectVariants(key, value, byMatrices, OPTIONS).decoded.pages(rows);
    expect(kernel.body).toContain('subgroupMatrixMultiplyAccumulate');
    expect(await compile(kernel)).toEqual([]);
  });

  it.each(['f16', 'fp8', 'q8_0', 'q4_0', 'tq4', 'tq2u', 'kivi2g32', 'vec-d4b8', 'tq4/mead2', 'mead2', 'mead2u'])(
    '%s: pages of prompts by subgroup matrices',
    async spec => {
      const shape = { ...SHAPE, ropeFrequencies: createRopeFrequencies(SHAPE.headDim) };
      const samples = gaussianSamples(shape, 256);
      const { keys, values } = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
      const [key, value] = [codecOf(keys.layout), codecOf(values.layout)];
      const limits = { ...OPTIONS.limits, workgroupMemory: 49152, storageBuffers: 10, invocations: 1024 };
      const kernel = selectVariants(key, value, SHAPE, { ...OPTIONS, matrices: true, limits }).prompt.pages(1);
      expect(kernel.name).toMatch(/^attend prompt .* by 64 of/);
      expect(await compile(kernel)).toEqual([]);
    },
  );

  it.each(['q8_0', 'q4_0'])('%s: pages with vec2<f16>', async spec => {
    const withHalves = { ...SHAPE, f16: true };
    const shape = { ...withHalves, ropeFrequencies: createRopeFrequencies(SHAPE.headDim) };
    const samples = gaussianSamples(shape, 256);
    const { keys, values } = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
    const [key, value] = [keys, values].map(({ layout }) => createCodecs(NO_GPU, withHalves, false)(layout));
    const kernel = selectVariants(key, value, withHalves, OPTIONS).decoded.pages(1);
    expect(kernel.body).toContain('vec2<f16>');
    expect(await compile(kernel)).toEqual([]);
  });

  it.each([64, 128, 256])('rotations of %i dims', async headDim => {
    const flags = { matrix: true, signs: true, perHead: false };
    for (const mean of [false, true]) {
      const domain = { headDim, codedDim: headDim, heads: 8, kvHeads: 2, ...flags, mean, centered: mean };
      for (const int8 of [false, true]) {
        expect(await compile(transformQueryOneSubgroup(domain, int8, true))).toEqual([]);
        for (const sinkLogits of [false, true])
          expect(await compile(combineSplitsHadamard(domain, { int8, sinkLogits }, true))).toEqual([]);
        const plain = { ...domain, matrix: false, signs: false };
        expect(await compile(transformQueryOneSubgroup(plain, int8, true))).toEqual([]);
      }
    }
  });
});
