/**
 * Attention where a subgroup is 32 lanes. SwiftShader's are smaller, so these kernels run on real GPUs alone (`npm run bench --
 * attention` validates them there); here the compiler takes them.
 */
import { describe, expect, it } from 'vitest';
import { createCodec, learn } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { turnOf } from '../src/eval/vectors.ts';
import { createCodecs } from '../src/kernel/webgpu/codecs.ts';
import { frameOf } from '../src/kernel/webgpu/frames.ts';
import type { Gpu } from '../src/kernel/webgpu/gpu.ts';
import type { Kernel } from '../src/kernel/webgpu/kernel.ts';
import { prepareByLanes } from '../src/kernel/webgpu/kernels/lanes/prepare.ts';
import { finishRotated } from '../src/kernel/webgpu/kernels/teams/finish.ts';
import { compiler } from './compiler.ts';

const SHAPE = { headDim: 128, kvHeads: 2, pageTokens: 128, group: 4, subgroups: 32 };
const OPTIONS = { unroll: 4, split: 4, limits: { workgroupMemory: 32768, invocations: 256, storageBuffers: 8 } };
/** Nothing is run, so nothing is kept. */
const NO_GPU = { buffer: () => ({}), upload() {} } as unknown as Gpu;

const found = await compiler();
const suite = typeof found === 'string' ? describe.skip : describe;
suite(`kernels of 32 lanes together${typeof found === 'string' ? ` (skipped: ${found})` : ''}`, () => {
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
    'tq35',
    'vec-d4b8',
    'oaken',
    'mead2',
    'mead2u',
  ])('%s: pages and tails', async spec => {
    const shape = { ...SHAPE, turn: turnOf(SHAPE.headDim) };
    const samples = gaussianSamples(shape, 256);
    const { keys, values } = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
    const [key, value] = [codecOf(keys.fragment), codecOf(values.fragment)];
    const frame = frameOf(key, value, SHAPE, OPTIONS);
    expect(await compile(frame.pages(1))).toEqual([]);
    expect(await compile(frame.halves(1))).toEqual([]);
    if (frame.turned) expect(await compile(frame.turned.kernel())).toEqual([]);
  });

  it.each([
    ['f16', 1],
    ['fp8', 1],
    ['fp8', 2],
    ['q8_0/fp8', 1],
    ['fp8/tq4u', 1],
  ])('%s: pages by subgroup matrices, %i rows', async (spec, rows) => {
    const shape = { ...SHAPE, turn: turnOf(SHAPE.headDim) };
    const byMatrices = { ...SHAPE, matrices: true };
    const { keys, values } = createCodec(spec, shape);
    const [key, value] = [keys, values].map(({ fragment }) => createCodecs(NO_GPU, byMatrices, false)(fragment));
    const kernel = frameOf(key, value, byMatrices, OPTIONS).pages(rows);
    expect(kernel.body).toContain('subgroupMatrixMultiplyAccumulate');
    expect(await compile(kernel)).toEqual([]);
  });

  it.each(['q8_0', 'q4_0', 'oaken'])('%s: pages by pairs of halves', async spec => {
    // Of fewer heads, oaken's blocks do not begin at vectors.
    const withHalves = { ...SHAPE, kvHeads: 8, f16: true };
    const shape = { ...withHalves, turn: turnOf(SHAPE.headDim) };
    const samples = gaussianSamples(shape, 256);
    const { keys, values } = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
    const [key, value] = [keys, values].map(({ fragment }) => createCodecs(NO_GPU, withHalves, false)(fragment));
    const kernel = frameOf(key, value, withHalves, OPTIONS).pages(1);
    expect(kernel.body).toContain('vec2<f16>');
    expect(await compile(kernel)).toEqual([]);
  });

  it.each([64, 128, 256])('rotations of %i dims', async headDim => {
    const flags = { matrix: true, signs: true, perHead: false };
    for (const mean of [false, true]) {
      const domain = { headDim, codedDim: headDim, heads: 8, kvHeads: 2, ...flags, mean };
      for (const int8 of [false, true]) {
        expect(await compile(prepareByLanes(domain, int8, true))).toEqual([]);
        expect(await compile(finishRotated(domain, int8, true))).toEqual([]);
        const plain = { ...domain, matrix: false, signs: false };
        expect(await compile(prepareByLanes(plain, int8, true))).toEqual([]);
      }
    }
  });
});
