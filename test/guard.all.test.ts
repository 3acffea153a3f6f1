/** The guard: it notices a codec that does not suit a model, says so once, and stays silent otherwise. */
import type { Logger } from 'pino';
import { describe, expect, it } from 'vitest';
import { type DeviceName, type LoadOptions, listDevices, loadModel, QualityError, type Result } from '../src/index.ts';
import { createService } from '../src/worker/create-service.ts';
import { greedy, openServer } from './programs/server/tiny-server.ts';
import { type GgufSpec, writeGguf } from './support/gguf-writer.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';
import { quantize } from './support/quantize.ts';
import { tinyModel } from './support/tiny-model.ts';

/** A codec whose error grows with what all keys have in common. */
const PLAIN = 'tq4-raw';
const MAIN_CODECS = ['f16', 'q8_0', 'tq4', 'tq3', 'tq2', 'kivi2g32', 'oscar2g32', 'q4_0', 'tq4+recent32'];
/** Each takes half a minute on a GPU that the CPU emulates: `npm test` has the one that does not suit. */
const GPU_CODECS = ALL_CASES ? ['tq4'] : [];
const BIASED_LAYER = 1;

const SHAPE = { layers: 3, headDim: 32 } as const;
const blobOf = (spec: GgufSpec) => new Blob([writeGguf(spec)]);
const architectures = ['llama', 'qwen2', 'qwen3'] as const;
/** On wasm all: other devices are slow, and compute the same. `npm run test:long` has all on js, too. */
const architecturesOn = (device: DeviceName) =>
  device === 'wasm' || (device === 'js' && LONG_CASES) ? architectures : architectures.slice(0, 1);

/** As in Qwen2: the keys of a layer have a large vector in common, in dims that RoPE hardly rotates. */
function biasedModel(): Blob {
  const spec = tinyModel({ ...SHAPE, architecture: 'qwen2' });
  const bias = spec.tensors.find(({ name }) => name === `blk.${BIASED_LAYER}.attn_k.bias`)!;
  const slowest = [SHAPE.headDim / 2 - 1, SHAPE.headDim - 1];
  const values = Float32Array.from({ length: Number(bias.shape[0]) }, (_, i) =>
    slowest.includes(i % SHAPE.headDim) ? 150 : 0,
  );
  bias.data = quantize('F32', values);
  return blobOf(spec);
}
const BIASED = biasedModel();

const LOAD = { pageTokens: 32, context: 512 } as const satisfies LoadOptions;
const OPTIONS = { maxTokens: 3, temperature: 0, ignoreEos: true } as const;
const TEXT = 'Kvasir was the wisest of all, and no question was too hard for him. He taught wherever he came. ';
const devices = (await listDevices())
  .filter(({ missing }) => missing === undefined)
  .map(({ name }) => name as DeviceName);

describe.each(devices)('on %s', device => {
  it.skipIf(device === 'webgpu' && GPU_CODECS.length === 0).each(architecturesOn(device))(
    '%s suits all main codecs',
    async architecture => {
      const blob = blobOf(tinyModel({ ...SHAPE, architecture }));
      for (const kv of device === 'webgpu' ? GPU_CODECS : MAIN_CODECS) {
        await using model = await loadModel(blob, { ...LOAD, kv, device });
        const { notices, qualityLoss } = await model.complete(TEXT, OPTIONS);
        const { guard } = model.stats();
        expect({ kv, notices, qualityLoss, ok: guard.ok }).toEqual({
          kv,
          notices: [],
          qualityLoss: undefined,
          ok: true,
        });
        expect(guard.pages).toBeGreaterThan(0);
        expect(guard.error).toBeLessThan(guard.limit);
        if (kv !== 'f16') expect(guard.meanError).toBeGreaterThan(0);
      }
    },
    180_000,
  );

  it('a key bias does not suit a plain codec: the notice names its layer', async () => {
    await using model = await loadModel(BIASED, { ...LOAD, kv: PLAIN, device });
    const { notices, qualityLoss } = await model.complete(TEXT, OPTIONS);
    expect(qualityLoss).toMatchObject({ kv: PLAIN, layer: BIASED_LAYER });
    expect(qualityLoss!.error).toBeGreaterThan(qualityLoss!.limit);
    expect(notices).toEqual([expect.stringContaining(`${PLAIN} does not suit this model: in layer ${BIASED_LAYER}`)]);
    expect(model.stats().guard).toMatchObject({ ok: false, layer: BIASED_LAYER });
  }, 180_000);
});

describe('a codec that does not suit', () => {
  const load = (options: LoadOptions = {}) => loadModel(BIASED, { ...LOAD, kv: PLAIN, device: 'wasm', ...options });

  it('is told once per model', async () => {
    await using model = await load();
    await using conversation = model.conversation();
    expect((await conversation.generate(TEXT, OPTIONS).result()).notices).toHaveLength(1);
    expect((await conversation.generate(TEXT.repeat(2), OPTIONS).result()).notices).toEqual([]);
    expect((await model.complete(`${TEXT}!`, OPTIONS)).qualityLoss).toBeUndefined();
  });

  it('is told by the next answer, if the reader of the first one has left', async () => {
    await using model = await load();
    for await (const _ of model.generate(TEXT, { ...OPTIONS, maxTokens: 50 })) break;
    expect((await model.complete('Odin', OPTIONS)).notices).toHaveLength(1);
  });

  it('fails this answer and later ones, if errors are asked for', async () => {
    await using model = await load({ onQualityLoss: 'error' });
    // Less than a page has no codes.
    expect((await model.complete('Odin', OPTIONS)).ids).toHaveLength(3);
    await expect(model.complete(TEXT, OPTIONS)).rejects.toThrow(QualityError);
    await expect(model.complete(TEXT, OPTIONS)).rejects.toThrow(`in layer ${BIASED_LAYER}`);
  });

  it.each(['shadow', 'two-tier'] as const)('is noticed in %s mode, too', async kvMode => {
    await using model = await load({ kvMode });
    expect((await model.complete(TEXT, OPTIONS)).qualityLoss).toMatchObject({ layer: BIASED_LAYER });
  });

  it('is a warning in the log of a server, once, and in its metrics', async () => {
    await using model = await load();
    const warnings: unknown[][] = [];
    const logger = { warn: (...line: unknown[]) => warnings.push(line) } as unknown as Logger;
    const { ask } = await openServer({ logger }, createService(model));
    for (const prompt of [TEXT, `${TEXT}!`]) await ask('/v1/completions', { prompt, ...greedy(3) });
    expect(warnings).toEqual([
      [expect.objectContaining({ kv: PLAIN, layer: BIASED_LAYER }), expect.stringContaining('does not suit')],
    ]);
    const metrics = await (await ask('/metrics')).text();
    expect(Number(metrics.match(/^kvasir_code_error\{.*"worst".*\} (.*)$/m)?.[1])).toBeGreaterThan(0.12);
  });

  it('may have another one that does', async () => {
    await using model = await load({ kv: 'kivi2g32' });
    expect((await model.complete(TEXT, OPTIONS)).notices).toEqual([]);
  });
});

/** Pages of 32 tokens: checks of all layers in the first four passes that complete one, then of one layer. */
it('does not change a bit of an answer, whichever layers it checks', async () => {
  const blob = blobOf(tinyModel({ ...SHAPE, architecture: 'llama' }));
  await using model = await loadModel(blob, { ...LOAD, kv: 'tq4', device: 'wasm', prefillChunk: 48 });
  const answer = (tenant: string): Promise<Result> =>
    model.complete(TEXT.repeat(2), { ...OPTIONS, maxTokens: 70, logprobs: 0, tenant });
  const [first, ...others] = [await answer('a'), await answer('b'), await answer('c')];
  for (const { logprobs } of others) expect(logprobs).toEqual(first.logprobs);
  expect(model.stats().guard.pages).toBeGreaterThan(8);
});
