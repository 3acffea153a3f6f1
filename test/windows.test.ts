/**
 * Models whose layers have windows: what is left behind is freed, and an answer is the same, bit for bit, whether its prompt
 * was read, found in the cache, fetched from a tier or restored from a session.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LoadOptions, loadModel, type Model } from '../src/index.ts';
import { createHostStore } from '../src/store/host-store.ts';
import { typed, writeGguf } from './support/gguf-writer.ts';
import { LONG_CASES } from './support/matrix.ts';
import { tinyModel } from './support/tiny-model.ts';
import { traceOf } from './support/trace-of.ts';
import { describeGpu } from './webgpu/gpu.ts';

const PAGE = 16;
const WINDOW = 40;
/** Layers 0 to 4 see 40 tokens, layer 5 sees all. */
const gemma = new Blob([
  writeGguf(
    tinyModel({
      architecture: 'gemma3',
      layers: 6,
      headDim: 32,
      metadata: {
        'gemma3.attention.sliding_window': WINDOW,
        'gemma3.rope.freq_base': typed('f32', 1e6),
      },
    }),
  ),
]);

const load = (options: LoadOptions = {}) =>
  loadModel(gemma, {
    ...{ kv: 'tq4', pageTokens: PAGE, context: 512, device: 'wasm', threads: 1 },
    ...options,
  });
const greedy = { temperature: 0, ignoreEos: true, logprobs: 0, maxTokens: 5 };
const promptOf = (length: number) => Array.from({ length }, (_, i) => (i * i * 31 + i * 17 + 7) % 256);

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-windows-'));
});
afterAll(() => rm(folder, { recursive: true }));

/** Whoever has another salt finds nothing. */
const cold = (model: Model, length: number) =>
  model.complete(promptOf(length), { ...greedy, cacheSalt: String(length) });

async function expectSameText(model: Model): Promise<void> {
  await model.complete(promptOf(200), greedy);
  for (const length of [199, 230]) {
    const warm = await model.complete(promptOf(length), greedy);
    expect(warm.usage.reusedTokens).toBe(length === 199 ? 198 : 200);
    expect(traceOf(warm)).toEqual(traceOf(await cold(model, length)));
  }
}

describe('on wasm', () => {
  it.each(['tq4', 'f16', 'q4_0+sink20'])('%s: the same text from the cache and without it', async kv => {
    await using model = await load({ kv });
    await expectSameText(model);
  });

  it('the same text from a tier', async () => {
    const host = createHostStore({ capacity: 2 ** 28 });
    await using first = await load({ tiers: [host] });
    await first.complete(promptOf(200), greedy);
    await using second = await load({ tiers: [host] });
    const fetched = await second.complete(promptOf(210), greedy);
    expect(fetched.usage.reusedTokens).toBe(12 * PAGE);
    expect(traceOf(fetched)).toEqual(traceOf(await cold(second, 210)));
  });

  it('the next turn reads only what is new, also after a restore', async () => {
    await using model = await load();
    await using chat = model.conversation({ system: 'Be brief.' });
    const one = { ...greedy, maxTokens: 8 };
    await chat.send('Tell me a long story about a cat. '.repeat(6), one).result();
    const path = join(folder, 'chat.kvsession');
    await chat.save(path);
    const { length } = chat;
    const next = await chat.send('And then?', one).result();
    expect(next.usage.prefilledTokens).toBe(next.usage.promptTokens - length);
    await using other = await load();
    await using restored = await other.restore(path);
    const again = await restored.send('And then?', one).result();
    expect(again.usage.prefilledTokens).toBe(next.usage.prefilledTokens);
    expect(traceOf(again)).toEqual(traceOf(next));
  });

  it('layers with a window take no more memory as a text grows', async () => {
    await using windowed = await load({ kv: 'f16' });
    const bytesAt = async (tokens: number) => {
      await using chat = windowed.conversation();
      await chat.send('x'.repeat(tokens), { ...greedy, maxTokens: 1 }).result();
      return chat.bytes;
    };
    const [short, long] = [await bytesAt(160), await bytesAt(320)];
    // Keys and values of one layer: 2 heads of 32 dims in f16.
    const perToken = (long - short) / 160;
    expect(perToken).toBeCloseTo(2 * 2 * 2 * 32, -1);
  });
});

describeGpu('on webgpu', () => {
  it.skipIf(!LONG_CASES)('the same text from the cache and without it', { timeout: 600_000 }, async () => {
    await using model = await load({ device: 'webgpu' });
    await expectSameText(model);
  });
});
