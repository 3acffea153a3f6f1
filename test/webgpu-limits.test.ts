/**
 * Adapters with less than others: kernels are chosen so that they fit, for every codec and every number of rows. Kernels of
 * a whole pass are planned without being run; Dawn's compiler takes every one of them, and on the device that has the
 * least that WebGPU guarantees they become pipelines.
 */
import { beforeAll, describe, expect, it } from 'vitest';
import { leafLayout } from '../src/cache/leaf.ts';
import { createSequence } from '../src/cache/sequence.ts';
import { createCodec, type KvCodec, learn, learns } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { zoo } from '../src/codec/zoo.ts';
import { openModelFile } from '../src/engine/engine.ts';
import { turnOf } from '../src/eval/vectors.ts';
import type { Tensor } from '../src/kernel/device.ts';
import type { AdapterInfo } from '../src/kernel/webgpu/adapter.ts';
import { WebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { Gpu } from '../src/kernel/webgpu/gpu.ts';
import { type Kernel, wgsl } from '../src/kernel/webgpu/kernel.ts';
import { exceededLimit, type KernelLimits, workgroupBytes } from '../src/kernel/webgpu/limits.ts';
import type { WeightType } from '../src/kernel/weights/types.ts';
import { createScratch, forward } from '../src/model/forward.ts';
import { loadWeights } from '../src/model/weights.ts';
import { planOf } from '../src/plan/plan.ts';
import { VARIANTS } from './attention.ts';
import { nullDevice } from './compiler.ts';
import { writeGguf } from './gguf-writer.ts';
import { tinyModel } from './tiny-model.ts';

const LEAST = { workgroupMemory: 16384, storageBuffers: 8, invocations: 256 };
const LIMITS: KernelLimits[] = [16384, 32768].flatMap(workgroupMemory =>
  [8, 10].map(storageBuffers => ({ ...LEAST, workgroupMemory, storageBuffers })),
);
const EXTENSIONS: Record<string, string> = { f16: 'shader-f16', subgroups: 'subgroups' };
const FEATURES = [[], ['subgroups'], ['shader-f16'], ['subgroups', 'shader-f16']];
const ROWS = Array.from({ length: 16 }, (_, i) => i + 1);
const SPECS = [...zoo, ...VARIANTS, 'mead3u', 'tri4i16/oaken'];
const TYPES: WeightType[] = ['F32', 'F16', 'Q4_0', 'Q4_1', 'Q8_0', 'Q6_K'];

/** Every row count with every adapter, and every text as a pipeline. */
const long = process.env.KVASIR_LONG === '1';

const found = await nullDevice();
const suite = typeof found === 'string' ? describe.skip : describe;

type Shape = { headDim: number; heads: number; kvHeads: number; pageTokens: number };

/** A device as an adapter of these limits and features would have it. */
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

/** A sealed page, rows that attend to it and to the tail, as prompts of 1 to 16 rows and alone. */
async function attendRows(device: WebGpuDevice, made: KvCodec, shape: Shape, counts = ROWS): Promise<void> {
  const { headDim, heads, kvHeads, pageTokens } = shape;
  const sinks = made.window.sink;
  const cache = { headDim, kvHeads, pageTokens, sinks };
  const leaf = leafLayout([made]);
  const sequence = createSequence({ device, shape: cache, leaf, recent: made.window.recent, context: 4096 });
  const rows = pageTokens + made.window.recent + 1;
  const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.tensor(rows, n * headDim));
  for (const count of [rows, ...counts]) {
    const runs = sequence.plan(count);
    await device.ready([sequence.view]);
    for (const run of runs) {
      if (run.sealed > 0) device.seal(sequence.view, 0, 0, sequence.view.leaves[0]);
      const own = [{ ...run, view: sequence.view }];
      device.append(0, k, v, own);
      device.attend(0, q, out, own, 1);
    }
    sequence.commit(count);
  }
  sequence.dispose();
  for (const tensor of [k, v, q, out]) device.free(tensor);
}

/** Whole passes of a model of one layer: rows of prompts, and rows that are written. */
async function passes(device: WebGpuDevice, model: Blob, shape: Shape): Promise<void> {
  const { headDim, kvHeads, pageTokens } = shape;
  const file = await openModelFile(model);
  const { config, rope } = file;
  const weights = await loadWeights(file.gguf, config, device);
  const scratch = createScratch(device, config, 512);
  const plan = planOf('tq4u', { ...config, pageTokens });
  for (const rows of [...ROWS, 24, 40, 64, 512]) {
    const cache = { headDim, kvHeads, pageTokens, sinks: plan.window.sink };
    const { leaf, window } = plan;
    const sequence = createSequence({ device, shape: cache, leaf, recent: window.recent, context: 1024 });
    const choice = { temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 };
    const chunk = { sequence, tokens: Array(rows).fill(1), logits: 'last' as const, choice };
    const hooks = { onLogits() {}, onToken() {} };
    await (await forward(device, config, weights, rope, scratch, [chunk], hooks)).delivered;
    sequence.dispose();
  }
  await file.gguf.close();
  const { rows: _, products: __, ...tensors } = scratch;
  for (const tensor of Object.values<Tensor>(tensors)) device.free(tensor);
}

const SHAPE = { headDim: 128, heads: 8, kvHeads: 2, pageTokens: 128 };
/** What codecs learn is slow to learn of large heads. */
const shapeOf = (spec: string): Shape => (learns(spec) ? { ...SHAPE, headDim: 64 } : SHAPE);

function codecOf(spec: string, { headDim, kvHeads, pageTokens }: Shape): KvCodec {
  const shape = { headDim, kvHeads, pageTokens, turn: turnOf(headDim) };
  const samples = gaussianSamples(shape, 128);
  return createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
}

suite(`kernels fit${typeof found === 'string' ? ` (skipped: ${found})` : ''}`, () => {
  /** By text: the features of an adapter that takes it, and its kernel. */
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
    const kernels = await gpu.plan(() => work(device));
    expect(kernels.length).toBeGreaterThan(3);
    for (const kernel of kernels) {
      expect(exceededLimit(kernel, limits), kernel.name).toBeUndefined();
      expect(features).toEqual(expect.arrayContaining((kernel.enable ?? []).map(name => EXTENSIONS[name])));
      texts.set(wgsl(kernel), { kernel, features });
    }
    await device.dispose();
  };

  it.each(SPECS)('%s: pages, tails, sealing', { timeout: 60_000 }, async spec => {
    const shape = shapeOf(spec);
    const codec = codecOf(spec, shape);
    const run = (limits: KernelLimits, features: readonly string[], rows: number[], precise = false) =>
      plan(limits, features, shape, device => attendRows(device, codec, shape, rows), precise);
    for (const limits of LIMITS)
      for (const features of long ? FEATURES : [FEATURES[0], FEATURES[3]]) await run(limits, features, [1, 16]);
    for (const features of FEATURES) await run(LEAST, features, long ? ROWS : [1, 2, 16]);
    await run(LEAST, [], [1, 16], true);
  });

  it.each(TYPES)('%s: whole passes', async type => {
    const { pageTokens: _, ...heads } = SHAPE;
    const tiny = tinyModel({ type, layers: 1, width: 256, ffn: 512, ...heads, tied: false });
    const model = new Blob([writeGguf(tiny)]);
    for (const limits of LIMITS) await plan(limits, [], SHAPE, device => passes(device, model, SHAPE));
  });

  it('all of them are WGSL, and Dawn counts their workgroup memory as Kvasir does', { timeout: 300_000 }, async () => {
    expect(texts.size).toBeGreaterThan(300);
    let larger = 0;
    for (const [code, { kernel }] of texts) {
      compileAll.pushErrorScope('validation');
      const module = compileAll.createShaderModule({ code });
      compileAll.createComputePipeline({ layout: 'auto', compute: { module, entryPoint: 'run' } });
      const message = (await compileAll.popErrorScope())?.message;
      const bytes = Number(/workgroup storage \((\d+) bytes\)/.exec(message ?? '')?.[1] ?? 0);
      if (bytes > 0) expect(workgroupBytes(kernel), kernel.name).toBe(bytes);
      else if (kernel.buffers.length <= LEAST.storageBuffers) expect(message, kernel.name).toBeUndefined();
      if (bytes > 0) larger++;
    }
    expect(larger).toBeGreaterThan(5);
  });
});
