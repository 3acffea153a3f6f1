/** Reading the cache of a conversation back: keys and values as attention sees them. */
import { describe, expect, it } from 'vitest';
import { type Conversation, InputError, type LoadOptions, loadModel, type Model } from '../src/index.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { tinyModel } from './support/tiny-model.ts';

const file = new Blob([writeGguf(tinyModel({ headDim: 32 }))]);
const load = (options: LoadOptions) => loadModel(file, { pageTokens: 16, context: 64, ...options });
const prompt = Array.from({ length: 45 }, (_, i) => (i * 31 + 7) % 256);
const greedy = { temperature: 0, ignoreEos: true, maxTokens: 1 };

const relativeError = (actual: Float32Array, expected: Float32Array) =>
  Math.sqrt(
    expected.reduce((sum, x, i) => sum + (x - actual[i]) ** 2, 0) / expected.reduce((sum, x) => sum + x * x, 0),
  );

describe.each(['js', 'wasm'] as const)('on %s', device => {
  it('decodes pages, and reads sinks and tail exactly', async () => {
    await using f16 = await load({ device, kv: 'f16' });
    await using tq4 = await load({ device, kv: 'tq4' });
    await using exact = f16.conversation();
    await using coded = tq4.conversation();
    await exact.generate(prompt, greedy).result();
    await coded.generate(prompt, greedy).result();
    // The first layer's keys and values depend on the tokens alone.
    const [a, b] = [await exact.decode(0), await coded.decode(0)];
    expect([a.keys.length, b.values.length]).toEqual([a.values.length, a.keys.length]);
    const row = a.keys.length / exact.length;
    for (const side of ['keys', 'values'] as const) {
      expect(b[side].subarray(0, 4 * row)).toEqual(a[side].subarray(0, 4 * row));
      expect(b[side].subarray(32 * row)).toEqual(a[side].subarray(32 * row));
      const error = relativeError(b[side].subarray(4 * row, 32 * row), a[side].subarray(4 * row, 32 * row));
      expect(error).toBeGreaterThan(0.01);
      expect(error).toBeLessThan(0.15);
      expect((await coded.decode(0, 20, 40))[side]).toEqual(b[side].subarray(20 * row, 40 * row));
    }
  });

  it.each([
    ['is cropped', (one: Conversation) => one.crop(0)],
    ['is reset', (one: Conversation) => one.reset()],
    ['answers', (one: Conversation) => one.generate([...prompt.slice(0, 20), 1, 2], greedy).result()],
    // Room is made for others: tails of what nobody reads are dropped first.
    [
      'makes room',
      (_: Conversation, model: Model) => model.complete(prompt.toReversed(), { ...greedy, maxTokens: 15 }),
    ],
  ])('reads what it had when it was asked, if the conversation %s meanwhile', async (_, change) => {
    await using model = await load({ device, kv: 'tq4', kvMemory: 60_000 });
    await using conversation = model.conversation();
    // The js device is slow.
    for (let ticks = 0; ticks < 24; ticks += device === 'js' ? 5 : 1) {
      await conversation.generate(prompt, greedy).result();
      const expected = await conversation.decode(1);
      const decoding = conversation.decode(1);
      // Between any two of its steps.
      for (let tick = 0; tick < ticks; tick++) await undefined;
      const changing = change(conversation, model);
      expect(await decoding).toEqual(expected);
      await changing;
    }
  });

  it('reads what sliding has left, and refuses the rest', async () => {
    await using model = await load({ device, kv: 'tq4', overflow: 'slide' });
    await using conversation = model.conversation();
    await expect(conversation.decode(0)).rejects.toThrow(/no cache yet/);
    await conversation.generate(prompt, { ...greedy, maxTokens: 60 }).result();
    const { keys } = await conversation.decode(1);
    expect(keys.length).toBeLessThan(conversation.length * 32 * model.config.kvHeads);
    await expect(conversation.decode(1, 0)).rejects.toThrow(InputError);
    await expect(conversation.decode(99)).rejects.toThrow(/layer must be/);
  });
});
