/** Shadow mode: every page in f16 beside its codes. */
import { describe, expect, it } from 'vitest';
import { type LoadOptions, loadModel, UnsupportedError } from '../src/index.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { ALL_CASES, LONG_CASES, matrix } from './support/matrix.ts';
import { mimir } from './support/mimir.ts';
import { tinyModel } from './support/tiny-model.ts';
import { traceOf } from './support/trace-of.ts';
import { describeGpu } from './webgpu/gpu.ts';

const tiny = new Blob([writeGguf(tinyModel({ tied: false, headDim: 32 }))]);
const prompt = Array.from({ length: 75 }, (_, i) => (i * i * 31 + 7) % 256);
const greedy = { temperature: 0, ignoreEos: true, logprobs: 0, maxTokens: 24 };
const load = (options: LoadOptions) => loadModel(tiny, { pageTokens: 16, context: 512, ...options });

function testDevice(device: 'js' | 'wasm' | 'webgpu') {
  it('reading f16 pages gives the text of an f16 cache, bit for bit', async () => {
    // SwiftShader is slow.
    const [ask, options] = device === 'webgpu' ? [prompt.slice(0, 36), { ...greedy, maxTokens: 6 }] : [prompt, greedy];
    await using f16 = await load({ device, kv: 'f16' });
    const expected = traceOf(await f16.complete(ask, options));
    await using shadow = await load({ device, kv: 'tq4+sink0', kvMode: 'shadow' });
    expect(traceOf(await shadow.complete(ask, { ...options, readExact: true }))).toEqual(expected);
  });

  // SwiftShader is slow.
  it.skipIf(device === 'webgpu' && !LONG_CASES)(
    'reading codes gives another text, beside a reader of f16 pages in the same passes',
    async () => {
      await using shadow = await load({ device, kv: 'tq2', kvMode: 'shadow' });
      const alone = await shadow.complete(prompt, greedy);
      const exact = await shadow.complete(prompt, { ...greedy, readExact: true });
      expect(traceOf(alone)).not.toEqual(traceOf(exact));
      // The first token is the prompt's, which reads f16 pages in both.
      expect(traceOf(alone)[0]).toEqual(traceOf(exact)[0]);
      const [codesBeside, exactBeside] = await Promise.all([
        shadow.complete(prompt, greedy),
        shadow.complete(prompt, { ...greedy, readExact: true }),
      ]);
      expect(traceOf(codesBeside)).toEqual(traceOf(alone));
      expect(traceOf(exactBeside)).toEqual(traceOf(exact));
      expect([codesBeside, exactBeside].map(({ usage }) => usage.reusedTokens)).toEqual([0, 0]);
    },
  );
}

describe('on js', () => testDevice('js'));
describe('on wasm', () => testDevice('wasm'));

if (ALL_CASES) describeGpu('on webgpu', () => testDevice('webgpu'));

describe('the measured divergence', () => {
  it.each(matrix(['tq4', 'tq2', 'f16'], { tq2: 'codes', f16: 'none' }))(
    '%s: of the newest tokens, 0 for f16',
    async kv => {
      await using model = await load({ device: 'wasm', kv, kvMode: 'shadow' });
      const { divergence } = await model.complete(prompt, greedy);
      expect(divergence!.tokens).toBeGreaterThanOrEqual(64);
      expect(divergence!.tokens).toBeLessThan(64 + 16);
      if (kv === 'f16') expect(divergence).toMatchObject({ nats: 0, top1: 1 });
      else expect(divergence!.nats).toBeGreaterThan(0);
      expect(model.stats()).toMatchObject({ running: 0, sharedLeaves: 0 });
    },
  );

  it('of a calibrated codec on familiar text is small', async () => {
    await using model = await loadModel(mimir, { device: 'wasm', kv: 'mead3', pageTokens: 16, kvMode: 'shadow' });
    await using conversation = model.conversation();
    const { divergence } = await conversation.send('Who is Mimir, and what did Odin give him? '.repeat(6)).result();
    expect(divergence!.nats).toBeGreaterThan(0);
    expect(divergence!.nats).toBeLessThan(0.2);
  });

  it('is not there without a sealed page, or in a packed cache', async () => {
    await using shadow = await load({ device: 'js', kv: 'tq4', kvMode: 'shadow' });
    expect((await shadow.complete([1, 2, 3], { ...greedy, maxTokens: 4 })).divergence).toBeUndefined();
    await using packed = await load({ device: 'js', kv: 'tq4' });
    expect((await packed.complete(prompt, greedy)).divergence).toBeUndefined();
  });
});

it('prompts share nothing, with a recent window neither: an answer has read codes, and a prompt has not', async () => {
  await using shadow = await load({ device: 'wasm', kv: 'tq2+recent16', kvMode: 'shadow' });
  const { ids } = await shadow.complete(prompt, greedy);
  const next = [...prompt, ...ids, 1, 2, 3];
  const answer = await shadow.complete(next, greedy);
  expect(answer.usage.reusedTokens).toBe(0);
  expect(answer.ids).toEqual((await shadow.complete(next, { ...greedy, tenant: 'other' })).ids);
});

it('conversations keep their cache; sessions and readExact without shadow mode are refused', async () => {
  await using shadow = await load({ device: 'wasm', kv: 'tq4', kvMode: 'shadow' });
  await using conversation = shadow.conversation();
  await conversation.generate(prompt, greedy).result();
  const { usage } = await conversation.generate([...prompt, 1, 2, 3], greedy).result();
  expect(usage.reusedTokens).toBeGreaterThan(60);
  await expect(conversation.save('unused.kvsession')).rejects.toThrow(UnsupportedError);
  await using packed = await load({ device: 'wasm', kv: 'tq4' });
  await expect(packed.complete(prompt, { ...greedy, readExact: true })).rejects.toThrow(/kvMode: 'shadow'/);
});
