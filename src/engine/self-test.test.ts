import { expect, it } from 'vitest';
import { architectureModels } from '../../test/support/architecture-models.ts';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { matrix } from '../../test/support/matrix.ts';
import { mimir } from '../../test/support/mimir.ts';
import { type TinyOptions, tinyModel } from '../../test/support/tiny-model.ts';
import { parseSpec } from '../codec/spec.ts';
import type { Device } from '../kernel/device.ts';
import { createJsDevice } from '../kernel/js/device.ts';
import { createWasmDevice } from '../kernel/wasm/device.ts';
import { weightTypes } from '../kernel/weights/types.ts';
import { createPlan } from '../plan/plan.ts';
import { type ModelInput, openModelFile, planShape } from './engine.ts';
import { selfTest } from './self-test.ts';

async function wrong(input: ModelInput, kv: string, open: (file: Parameters<typeof planShape>[0]) => Promise<Device>) {
  const file = await openModelFile(input);
  const plan = createPlan(parseSpec(kv), planShape(file, 16));
  const device = await open(file);
  try {
    return await selfTest(device, file, plan);
  } finally {
    await device.dispose();
    await file.gguf.close();
  }
}

const onWasm = (input: ModelInput, kv: string) =>
  wrong(input, kv, ({ config }) => createWasmDevice({ ...config, pageTokens: 16, threads: 1 }));
const tiny = (options: TinyOptions) => new Blob([writeGguf(tinyModel({ headDim: 32, ...options }))]);

const architectures = matrix(Object.keys(architectureModels), {
  'gpt-oss': 'experts, sink logits, windows and MXFP4',
  gemma2: 'softcaps and four norms',
  qwen2: 'biases',
  'phi3, LongRoPE, long': 'fused matrices',
});

it.each(architectures)('%s: finds nothing wrong with the wasm device', async name => {
  expect(await onWasm(tiny(architectureModels[name]), 'tq4')).toBeUndefined();
});

const types = matrix(weightTypes, { Q4_K: 'superblocks', IQ4_NL: 'a table', F16: 'floats' });

it.each(types)('weights in %s: finds nothing wrong with the wasm device', async type => {
  expect(await onWasm(tiny({ type, layers: 1, headDim: 64 }), 'tq4u+recent20')).toBeUndefined();
});

it.each(['f16', 'tq2', 'q8_0/q4_0', 'kivi2g16'])('Mimir with %s: finds nothing wrong with wasm', async kv => {
  expect(await onWasm(mimir, kv)).toBeUndefined();
});

it.each([
  ...['embed', 'rmsNorm', 'project', 'rope', 'gate', 'softcap', 'append', 'attend', 'seal', 'writeRows'],
  ...['route', 'projectExperts', 'addExperts'],
] as const)('finds a device that does nothing in %s', async operation => {
  const architecture = operation === 'softcap' ? 'gemma2' : /route|xperts/.test(operation) ? 'qwen3moe' : 'llama';
  const broken: Device = { ...createJsDevice(), [operation]: () => {} };
  expect(await wrong(tiny(architectureModels[architecture]), 'tq4', async () => broken)).toMatch(
    /^the (attention|logits) of \d+ of 26 tokens of a test model differ/,
  );
});

it('finds a device that samples another token than the likeliest', async () => {
  const logitsOf = createJsDevice();
  const least = (logits: Float32Array) => logits.indexOf(logits.reduce((a, b) => Math.min(a, b)));
  const device: Device = {
    ...logitsOf,
    sampleTokens: logits => ({ handles: [-1], ids: logitsOf.readRows(logits, 0).then(row => [least(row)]) }),
  };
  expect(await wrong(mimir, 'tq4', async () => device)).toMatch(/samples a token/);
});
