/**
 * Adapters with small limits: the selected kernels fit, for every codec and number of rows. Passes are recorded without
 * being run; Dawn compiles every kernel, and creates its pipeline on a device with WebGPU's minimum limits.
 */

import { beforeAll, describe, expect, it } from 'vitest';
import { createSequence } from '../../src/cache/create-sequence.ts';
import { leafLayout } from '../../src/cache/leaf.ts';
import { createCodec, type KvCodec, learn, needsProfile } from '../../src/codec/kv.ts';
import { gaussianSamples } from '../../src/codec/learned.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { parseSpec } from '../../src/codec/spec.ts';
import { zoo } from '../../src/codec/zoo.ts';
import { openModelFile } from '../../src/engine/engine.ts';
import type { Tensor } from '../../src/kernel/device.ts';
import type { AdapterInfo } from '../../src/kernel/webgpu/adapter.ts';
import { WebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import { Gpu } from '../../src/kernel/webgpu/gpu.ts';
import { type Kernel, wgsl } from '../../src/kernel/webgpu/kernel.ts';
import { exceededLimit, type KernelLimits, workgroupBytes } from '../../src/kernel/webgpu/limits.ts';
import type { WeightType } from '../../src/kernel/weights/types.ts';
import { forward } from '../../src/model/forward.ts';
import { createScratch } from '../../src/model/scratch.ts';
import { loadWeights } from '../../src/model/weights.ts';
import { createPlan } from '../../src/plan/plan.ts';
import { CODEC_VARIANTS } from '../support/attention.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { ALL_CASES, LONG_CASES, matrix } from '../support/matrix.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { nullDevice } from './compiler.ts';

const MIN_LIMITS = { workgroupMemory: 16384, storageBuffers: 8, invocations: 256 };
const ALL_LIMITS: KernelLimits[] = [16384, 32768].flatMap(workgroupMemory =>
  [8, 10].map(storageBuffers => ({ ...MIN_LIMITS, workgroupMemory, storageBuffers })),
);
/** `npm test`: the smallest and the largest. */
const LIMITS = ALL_LIMITS.filter((_, i) => ALL_CASES || i % 3 === 0);
const EXTENSIONS: Record<string, string> = { f16: 'shader-f16', subgroups: 'subgroups' };
const FEATURES = [[], ['subgroups'], ['shader-f16'], ['subgroups', 'shader-f16']];
const ROWS = Array.from({ length: 16 }, (_, i) => i + 1);
const SPECS = [...zoo, ...CODEC_VARIANTS, 'mead3u', 'tri4i16/oaken'];
/** One codec per kind of page. */
const REPRESENTATIVES = {
  f16: 'rows of f16',
  q8_0: 'blocks',
  oaken: 'outlier lists',
  kivi2g32: 'ranges per channel and per token',
  'kivi2g32-token/kivi2g32-channel': 'ranges per token and per channel',
  tq4: 'codes as int8',
  tq2: 'pairs of codes',
  tq35: 'two bit widths in one vector',
  'vec-d4b8': 'codebooks',
  'tri8i4/tq2': 'RoPE pair spectrum',
  mead2: 'additive codebooks',
  mead2u: 'a bit width per channel',
};
const TYPES: WeightType[] = ['F32', 'F16', 'Q4_0', 'Q4_1', 'Q8_0', 'Q6_K'];

const found = await nullDevice();
const suite = typeof found === 'string' ? describe.skip : describe;

type Shape = { headDim: number; heads: number; kvHeads: number; pageTokens: number };

/** The device of an adapter with these limits and features. */
async function adapter(limits: KernelLimits, features: readonly string[], shape: Shape, precise = false) {
  const gpu = new Gpu((await nullDevice(features)) as GPUDevice);
  Object.assign(gpu, { limits: { ...gpu.limits, ...limits } });
  const has = (feature: string) => features.includes(feature);
  const info = {
    name: 'planned',
    software: false,
    subgroups: has('subgroups') ? 32 : 0,
    subgroupMin: has('subgroups') ? 32 : 0,
    f16: has('shader-f16'),
    matrices: false,
    narrowMatrices: false,
    limits: gpu.limits,
  } as AdapterInfo;
  return { gpu, device: new WebGpuDevice(gpu, info, { ...shape, precise }) };
}

/** Seals a page and attends to it and to the tail with prompts of these numbers of rows. */
async function attendRows(device: WebGpuDevice, made: KvCodec, shape: Shape, counts = ROWS): Promise<void> {
  const { headDim, heads, kvHeads, pageTokens } = shape;
  const sinks = made.window.sink;
  const cache = { headDim, kvHeads, pageTokens, sinks };
  const leaf = leafLayout([made]);
  const sequence = createSequence({ device, shape: cache, leaf, recent: made.window.recent, context: 4096 });
  const rows = pageTokens + made.window.recent + 1;
  const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.createTensor(rows, n * headDim));
  for (const count of [rows, ...counts]) {
    const runs = sequence.plan(count);
    await device.ensureMemory([sequence.view]);
    for (const run of runs) {
      if (run.sealedPages > 0) device.seal(0, [{ view: sequence.view, page: 0 }]);
      const own = [{ ...run, view: sequence.view }];
      device.append(0, k, v, own);
      device.attend(0, q, out, own, { scale: 1 });
    }
    sequence.commit(count);
  }
  sequence.dispose();
  for (const tensor of [k, v, q, out]) device.free(tensor);
}

/** Forward passes of a model with one layer, with different numbers of rows. */
async function passes(device: WebGpuDevice, model: Blob, shape: Shape): Promise<void> {
  const { headDim, kvHeads, pageTokens } = shape;
  const file = await openModelFile(model);
  const { config, rope } = file;
  const weights = await loadWeights(file.gguf, config, device);
  const scratch = createScratch(device, config, 512);
  const plan = createPlan(parseSpec('tq4u'), { ...config, pageTokens });
  for (const rows of [...ROWS, 24, 40, 64, 512]) {
    const cache = { headDim, kvHeads, pageTokens, sinks: plan.window.sink };
    const { leaf, window } = plan;
    const sequence = createSequence({ device, shape: cache, leaf, recent: window.recent, context: 1024 });
    const choice = { temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 };
    const chunk = { sequence, tokens: Array(rows).fill(1), logits: 'last' as const, sampling: choice };
    const hooks = { onLogits() {}, onToken() {} };
    await (await forward({ device, config, weights, rope, scratch }, [chunk], hooks)).delivered;
    sequence.dispose();
  }
  await file.gguf.close();
  const { rows: _, projections: __, shared: ___, dense: ____, ...tensors } = scratch;
  for (const tensor of Object.values<Tensor>(tensors)) device.free(tensor);
}

const SHAPE = { headDim: 128, heads: 8, kvHeads: 2, pageTokens: 128 };
/** Training for large heads is slow. */
const shapeOf = (spec: string): Shape => (needsProfile(parseSpec(spec)) ? { ...SHAPE, headDim: 64 } : SHAPE);

function codecOf(spec: string, { headDim, kvHeads, pageTokens }: Shape): KvCodec {
  const shape = { headDim, kvHeads, pageTokens, ropeFrequencies: createRopeFrequencies(headDim) };
  const samples = gaussianSamples(shape, 128);
  return createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
}

suite(`kernels fit the limits${typeof found === 'string' ? ` (skipped: ${found})` : ''}`, () => {
  /** By WGSL text: its kernel, and the features of an adapter that selects it. */
  const texts = new Map<string, { kernel: Kernel; features: readonly string[] }>();
  let compileAll: GPUDevice;
  beforeAll(async () => {
    compileAll = (await nullDevice()) as GPUDevice;
  });

  const plan = async (
    limits: KernelLimits,
    features: readonly string[],
    shape: Shape,
    work: (device: WebGpuDevice) => Promise<void>,
    precise = false,
  ) => {
    const { gpu, device } = await adapter(limits, features, shape, precise);
    const kernels = await gpu.planKernels(() => work(device));
    expect(kernels.length).toBeGreaterThan(3);
    for (const kernel of kernels) {
      expect(exceededLimit(kernel, limits), kernel.name).toBeUndefined();
      expect(features).toEqual(expect.arrayContaining((kernel.enable ?? []).map(name => EXTENSIONS[name])));
      texts.set(wgsl(kernel), { kernel, features });
    }
    await device.dispose();
  };

  it.each(matrix(SPECS, REPRESENTATIVES))('%s: pages, tails, sealing', async spec => {
    const shape = shapeOf(spec);
    const codec = codecOf(spec, shape);
    const run = (limits: KernelLimits, features: readonly string[], rows: number[], precise = false) =>
      plan(limits, features, shape, device => attendRows(device, codec, shape, rows), precise);
    for (const limits of LIMITS)
      for (const features of LONG_CASES ? FEATURES : [FEATURES[0], FEATURES[3]]) await run(limits, features, [1, 16]);
    // `npm run test:long`: every row count on every adapter.
    for (const features of FEATURES) await run(MIN_LIMITS, features, LONG_CASES ? ROWS : [1, 2, 16]);
    await run(MIN_LIMITS, [], [1, 16], true);
  });

  it.each(TYPES)('%s: whole passes', async type => {
    const { pageTokens: _, ...heads } = SHAPE;
    const tiny = tinyModel({ type, layers: 1, width: 256, ffn: 512, ...heads, tied: false });
    const model = new Blob([writeGguf(tiny)]);
    for (const limits of LIMITS) await plan(limits, [], SHAPE, device => passes(device, model, SHAPE));
  });

  it('all kernels compile, and Dawn counts the same workgroup memory as Kvasir', { timeout: 300_000 }, async () => {
    expect(texts.size).toBeGreaterThan(ALL_CASES ? 300 : 150);
    let larger = 0;
    for (const [code, { kernel }] of texts) {
      compileAll.pushErrorScope('validation');
      const module = compileAll.createShaderModule({ code });
      compileAll.createComputePipeline({ layout: 'auto', compute: { module, entryPoint: 'run' } });
      const message = (await compileAll.popErrorScope())?.message;
      const bytes = Number(/workgroup storage \((\d+) bytes\)/.exec(message ?? '')?.[1] ?? 0);
      if (bytes > 0) expect(workgroupBytes(kernel), kernel.name).toBe(bytes);
      else if (kernel.buffers.length <= MIN_LIMITS.storageBuffers) expect(message, kernel.name).toBeUndefined();
      if (bytes > 0) larger++;
    }
    expect(larger).toBeGreaterThan(5);
  });
});
