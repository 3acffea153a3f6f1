/** Outliers that do not fit into a page are counted on every device, and evaluation reports them. */

import { expect, it } from 'vitest';
import { countOutliers, formatOutliers } from '../src/cache/outliers.ts';
import { createCodec, learn } from '../src/codec/kv.ts';
import { samplesOf } from '../src/codec/learned.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { loadEngine, openModelFile } from '../src/engine/engine.ts';
import { measureDivergence } from '../src/eval/divergence.ts';
import type { Device, Outliers } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import { createWebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { createPlan, createPlanFromCodecs } from '../src/plan/plan.ts';
import { runAttention } from './support/attention.ts';
import { createTrained } from './support/codec-suite.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { tinyModel } from './support/tiny-model.ts';
import { describeGpu } from './webgpu/gpu.ts';

const SHAPE = { headDim: 80, heads: 2, kvHeads: 2, pageTokens: 32 };
const VALUES = (SHAPE.pageTokens + 1) * SHAPE.kvHeads * SHAPE.headDim;
/** Like the training values; with too many small values; with too many large values. */
const KINDS: ((x: number, i: number) => number)[] = [x => x, (x, i) => (i % 3 ? x : x / 50), x => 3 * x];

async function sealedOutliers(device: Device): Promise<Outliers[]> {
  const { values } = createTrained('oaken+sink0', SHAPE, new Float32Array(SHAPE.kvHeads * SHAPE.headDim));
  const found: Outliers[] = [];
  for (const kind of KINDS) {
    const setting = { ...SHAPE, spec: 'f16/oaken+sink0' };
    const options = { lastRows: 0, values: normals(createRandom(4), VALUES).map(kind) };
    const { leaves } = await runAttention(device, setting, [SHAPE.pageTokens + 1], options);
    found.push(values.outliers!(leaves[0].subarray(leaves[0].length - values.pageBytes)));
  }
  return found;
}

it('js counts them', async () => {
  const [usual, manySmall, large] = await sealedOutliers(createJsDevice());
  expect(usual.dropped).toBe(0);
  expect(manySmall.dropped).toBeGreaterThan(0);
  expect(large.dropped).toBeGreaterThan(large.listed);
});

it('wasm counts the same', async () => {
  const device = await createWasmDevice({ ...SHAPE, threads: 2 });
  expect(await sealedOutliers(device)).toEqual(await sealedOutliers(createJsDevice()));
  await device.dispose();
});

describeGpu('webgpu', () => {
  it('counts the same', async () => {
    const device = await createWebGpuDevice(SHAPE);
    expect(await sealedOutliers(device)).toEqual(await sealedOutliers(createJsDevice()));
    await device.dispose();
  });
});

it('evaluation sums them over all rows and prints them', async () => {
  const [pageTokens, context] = [16, 48];
  const file = await openModelFile(new Blob([writeGguf(tinyModel())]));
  const { layers } = file.config;
  const shape = { ...file.config, pageTokens };
  const engine = await loadEngine(file, { plan: createPlan(parseSpec('f16'), shape), context }, { device: 'js' });
  // Learned from much smaller vectors, so that all vectors of the model are outliers.
  const small = samplesOf(
    normals(createRandom(1), 64 * shape.kvHeads * shape.headDim).map(x => x / 1e4),
    shape,
  );
  const codec = createCodec('oaken', shape, learn('oaken', shape, { key: small, value: small }));
  const plan = createPlanFromCodecs('oaken', codec.window, Array(layers).fill(codec));
  const ids = Array.from({ length: 2 * context }, (_, i) => (i * i * 7 + 31 * i) % 256);
  const [exact, oaken] = await measureDivergence(engine, ids, { plans: [plan], context });
  expect(exact.outliers).toBeUndefined();
  // Two pages of keys and values per row are sealed.
  const sealed = 2 * 2 * 2 * layers * pageTokens * shape.kvHeads * shape.headDim;
  const { listed, dropped } = oaken.outliers!;
  expect(listed + dropped).toBeLessThanOrEqual(sealed);
  expect(listed + dropped).toBeGreaterThan(0.9 * sealed);
  expect(dropped).toBeGreaterThan(0.5 * sealed);

  const empty = engine.openSequence(plan, context);
  expect(await countOutliers(engine.device, empty.view)).toEqual({ listed: 0, dropped: 0 });
  await engine.dispose();
  expect(formatOutliers({ listed: 99_980, dropped: 20 })).toBe(
    '0.020 % of 100,000 outliers did not fit into their lists',
  );
  expect(formatOutliers({ listed: 5, dropped: 0 })).toBe('0 % of 5 outliers did not fit into their lists');
});
