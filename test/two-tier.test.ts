/** Two-tier mode: f16 pages while a conversation is used, codes when others need the room. */
import { describe, expect, it } from 'vitest';
import { type Conversation, InputError, type LoadOptions, loadModel, type Model, type Result } from '../src/index.ts';
import { type Plan, planBytes, withMode } from '../src/plan/plan.ts';
import { openGenerations } from './support/generations.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';
import { roundF16 } from './support/round-f16.ts';
import { tinyModel } from './support/tiny-model.ts';
import { traceOf } from './support/trace-of.ts';
import { describeGpu } from './webgpu/gpu.ts';

const tiny = new Blob([writeGguf(tinyModel({ tied: false, headDim: 32 }))]);
const load = (options: LoadOptions) =>
  loadModel(tiny, { pageTokens: 16, context: 512, kvMode: 'two-tier', kv: 'tq2+sink0', ...options });
const promptOf = (seed: number, length = 90) =>
  Array.from({ length }, (_, i) => ((i + seed) * (i + 3 * seed) * 31 + 7) % 256);
const greedy = { temperature: 0, ignoreEos: true, logprobs: 0, maxTokens: 24 };
const rounded = (values: Float32Array) => values.map(roundF16);

/** Bytes of a cache in which one conversation of `tokens` can run beside the codes of some others. */
const roomIn = (plan: Plan, tokens: number, others: number): number =>
  planBytes(plan, tokens) + others * planBytes(withMode(plan, 'packed'), tokens);
async function roomFor(tokens: number, others: number): Promise<number> {
  await using model = await load({ device: 'js' });
  return roomIn(model.plan, tokens, others);
}

/** A request waits for pages that are decoded faster than they could be computed: here they take no time. */
const openTimed = (kv: string, capacity?: (plan: Plan) => number) =>
  openGenerations({ model: { tied: false, headDim: 32 }, kvMode: 'two-tier', kv, capacity, msPerRow: 10 });

/** Adds a turn: the conversation continues after its last answer. */
async function turn(conversation: Conversation, ids: number[], added: readonly number[]): Promise<Result> {
  ids.push(...added);
  const result = await conversation.generate([...ids], greedy).result();
  ids.push(...result.ids);
  return result;
}

function testDevice(device: 'js' | 'wasm' | 'webgpu') {
  // SwiftShader is slow.
  const length = device === 'webgpu' ? 36 : 90;

  // test/shadow.all.test.ts reads the same pages on webgpu.
  it.skipIf(device === 'webgpu' && !LONG_CASES)(
    'has the text of an f16 cache, bit for bit, while nothing was spilled',
    async () => {
      await using f16 = await load({ device, kv: 'f16', kvMode: 'packed' });
      await using model = await load({ device });
      expect(traceOf(await model.complete(promptOf(1), greedy))).toEqual(
        traceOf(await f16.complete(promptOf(1), greedy)),
      );
    },
  );

  it('pages come back as their codes say, in f16', async () => {
    await using model = await load({ device });
    await using conversation = model.conversation();
    await conversation.generate(promptOf(1, length), { ...greedy, maxTokens: 4 }).result();
    const [hotBytes, exact] = [conversation.bytes, await conversation.decode(1)];
    await conversation.spill();
    const [coldBytes, codes] = [conversation.bytes, await conversation.decode(1)];
    const pages = Math.floor((length + 2) / 16);
    expect(hotBytes - coldBytes).toBe(pages * model.plan.leaf.exact!.bytes);
    expect(codes.keys).not.toEqual(exact.keys);
    await conversation.prefetch();
    expect(conversation.bytes).toBe(hotBytes);
    expect(await conversation.decode(1)).toEqual({ keys: rounded(codes.keys), values: rounded(codes.values) });
    expect(model.stats()).toMatchObject({ spilledPages: pages, decodedPages: pages });
  });
}

describe('on js', () => testDevice('js'));
describe('on wasm', () => testDevice('wasm'));

if (ALL_CASES) describeGpu('on webgpu', () => testDevice('webgpu'));

describe('conversations that do not all fit in f16', () => {
  /** Two turns of each of four conversations, one after the other; reused tokens of the second ones. */
  async function takeTurns(model: Model): Promise<{ reused: number[]; traces: string[][] }> {
    const chats = [0, 1, 2, 3].map(seed => ({ conversation: model.conversation(), ids: [] as number[], seed }));
    for (const { conversation, ids, seed } of chats) await turn(conversation, ids, promptOf(seed));
    const second = [];
    for (const { conversation, ids } of chats) {
      await conversation.prefetch();
      second.push(await turn(conversation, ids, [1, 2, 3]));
    }
    return { reused: second.map(({ usage }) => usage.reusedTokens), traces: second.map(traceOf) };
  }

  it('stay, packed, and are decoded instead of computed again', async () => {
    const kvMemory = await roomFor(160, 3);
    await using model = await load({ device: 'wasm', kvMemory });
    const { reused, traces } = await takeTurns(model);
    // The last token of an answer has not been read by the model.
    expect(reused).toEqual([113, 113, 113, 113]);
    const { used, capacity, idleSequences, spilledPages, decodedPages } = model.stats();
    expect(used).toBeLessThanOrEqual(capacity);
    expect(idleSequences).toBe(4);
    expect(spilledPages).toBeGreaterThan(0);
    expect(decodedPages).toBeGreaterThan(0);

    await using f16 = await load({ device: 'wasm', kvMemory, kv: 'f16', kvMode: 'packed' });
    expect((await takeTurns(f16)).reused).toContain(0);

    await using large = await load({ device: 'wasm' });
    expect((await takeTurns(large)).traces).not.toEqual(traces);
    expect(large.stats()).toMatchObject({ spilledPages: 0, decodedPages: 0 });
  });

  it('answer as if they had been spilled and prefetched by hand', async () => {
    const run = async (model: Model, between: (conversation: Conversation) => Promise<unknown>) => {
      await using conversation = model.conversation();
      const ids: number[] = [];
      await turn(conversation, ids, promptOf(5));
      await between(conversation);
      await conversation.prefetch();
      return traceOf(await turn(conversation, ids, [9, 8, 7]));
    };
    await using large = await load({ device: 'wasm' });
    const byHand = await run(large, conversation => conversation.spill());
    expect(byHand).not.toEqual(await run(large, async () => {}));
    await using small = await load({ device: 'wasm', kvMemory: await roomFor(160, 1) });
    // A longer text, which needs all f16 pages.
    const crowded = await run(small, () => small.complete(promptOf(6, 150), { ...greedy, maxTokens: 8 }));
    expect(small.stats().spilledPages).toBeGreaterThanOrEqual(7);
    expect(crowded).toEqual(byHand);
  });

  it('that run at the same time take turns, and keep what they have read', async () => {
    const { cache, scheduler, conversation } = await openTimed('tq2+sink0', plan => roomIn(plan, 200, 2));
    const conversations = [1, 2, 3].map(conversation);
    const options = { ...greedy, maxTokens: 80 };
    const results = await Promise.all(
      conversations.map((conversation, i) => conversation.generate(promptOf(i, 100), options).result()),
    );
    expect(results.map(({ ids }) => ids.length)).toEqual([80, 80, 80]);
    const { used, capacity, decodedPages } = cache.stats;
    expect(used).toBeLessThanOrEqual(capacity);
    expect(scheduler.stats.preemptions).toBeGreaterThan(0);
    expect(decodedPages).toBeGreaterThan(0);
    for (const conversation of conversations) await conversation.dispose();
    expect(cache.stats.used).toBe(0);
  });
});

describe('a spilled conversation', () => {
  const open = async (kv = 'tq4') => {
    const model = await load({ device: 'wasm', kv });
    const conversation = model.conversation();
    const ids: number[] = [];
    await turn(conversation, ids, promptOf(3));
    await conversation.spill();
    return { model, conversation, ids, [Symbol.asyncDispose]: () => model.dispose() };
  };

  it('is decoded only as far as the next prompt shares it', async () => {
    const { cache, conversation: open } = await openTimed('tq4');
    await using conversation = open();
    const ids: number[] = [];
    await turn(conversation, ids, promptOf(3));
    await conversation.spill();
    const { usage } = await conversation.generate([...ids.slice(0, 50), 1, 2], greedy).result();
    expect(usage.reusedTokens).toBe(48);
    expect(cache.stats.decodedPages).toBe(4);
  });

  it('can be cropped, and continues there', async () => {
    await using opened = await open();
    expect(await opened.conversation.crop(70)).toBe(64);
    await opened.conversation.prefetch();
    const { usage } = await opened.conversation.generate([...opened.ids.slice(0, 70), 5], greedy).result();
    expect(usage.reusedTokens).toBe(64);
    expect(opened.model.stats().decodedPages).toBe(4);
  });

  it('with a recent window is reused as a whole', async () => {
    await using opened = await open('tq4+recent16');
    await opened.conversation.prefetch();
    const { usage } = await turn(opened.conversation, opened.ids, [1, 2, 3]);
    expect(usage.reusedTokens).toBe(113);
  });

  it('frees everything when it is disposed, also while it is decoded', async () => {
    await using opened = await open();
    const prefetching = opened.conversation.prefetch();
    await opened.conversation.dispose();
    await prefetching;
    expect(opened.model.stats().used).toBe(0);
  });
});

it('nothing is shared, and sessions and tiers are refused', async () => {
  await using model = await load({ device: 'wasm', tiers: 'host=1MiB' });
  expect(model.notices.join()).toMatch(/stored in the tiers.*kvMode two-tier/);
  await model.complete(promptOf(1), greedy);
  expect((await model.complete(promptOf(1), greedy)).usage.reusedTokens).toBe(0);
  expect(model.stats()).toMatchObject({ sharedLeaves: 0, cachedLeaves: 0, used: 0 });
  await using conversation = model.conversation();
  await conversation.generate(promptOf(1), greedy).result();
  await expect(conversation.save('unused.kvsession')).rejects.toThrow(/two-tier mode/);
  await using packed = await load({ device: 'wasm', kvMode: 'packed' });
  await using other = packed.conversation();
  await expect(other.spill()).rejects.toThrow(InputError);
  await other.prefetch();
});
