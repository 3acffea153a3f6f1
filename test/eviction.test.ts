/** Eviction policies in a running model. */
import { expect, it } from 'vitest';
import { type LoadOptions, loadModel, type Model } from '../src/api/model.ts';
import { createKvGraph, type KvGraph } from '../src/eviction/graph/kv-graph.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { itAll } from './support/matrix.ts';
import { mimir } from './support/mimir.ts';
import { tinyModel } from './support/tiny-model.ts';

const tiny = writeGguf(tinyModel());

/** The graph may take so much of the time of requests. */
const MAX_SHARE = 0.01;
const PAGE = 16;

const loadTiny = (eviction: LoadOptions['eviction'], options?: LoadOptions) =>
  loadModel(tiny, {
    ...{ device: 'wasm', threads: 1, pageTokens: PAGE, context: 256, kvMemory: 40_000, eviction },
    ...options,
  });
const greedy = { temperature: 0, ignoreEos: true };

/** Four pages that no other prompt shares. */
const prompt = (i: number) => Array.from({ length: 4 * PAGE + 1 }, (_, j) => 5 + (((i + 1) * 31 + j * (i + 2)) % 200));
const read = async (model: Model, from: number, count: number) => {
  for (let i = from; i < from + count; i++) await model.complete(prompt(i), { ...greedy, maxTokens: 1 });
};

it('with a graph, a system message stays cached', async () => {
  await using model = await loadTiny('graph', {
    context: 512,
    kvMemory: 60_000,
    tiers: [{ type: 'host', capacity: 1e7 }],
  });
  const system = 'Answer in short sentences. Never speak of the war with the Vanir. '.repeat(2);
  const messages = (i: number) => [
    { role: 'system', content: system },
    { role: 'user', content: `Question number ${i}, which nobody has asked before` },
  ];
  const ask = async (i: number) =>
    (await model.complete(messages(i), { ...greedy, maxTokens: 2 * PAGE })).usage.reusedTokens;
  const tokens = model.encodeChat(messages(0));
  const systemEnd = tokens.findIndex((_, i) => model.tokenizer.decode(tokens.slice(0, i)).endsWith(system));
  const systemPages = Math.floor(systemEnd / PAGE);
  await ask(0);
  const reused: number[] = [];
  for (let i = 1; i < 12; i++) reused.push(await ask(i));
  expect([systemPages > 4, model.stats().evictions > 0]).toEqual([true, true]);
  expect(Math.min(...reused)).toBeGreaterThanOrEqual(systemPages * PAGE);
});

it.each(['lru', 'graph'] as const)('%s gives the same text', async eviction => {
  await using model = await loadTiny(eviction);
  expect(model.stats().eviction).toBe(eviction);
  await read(model, 0, 12);
  expect(model.stats().evictions).toBeGreaterThan(0);
  const again = await model.complete(prompt(0), { ...greedy, maxTokens: 40 });
  await using fresh = await loadTiny('lru');
  expect(again.ids).toEqual((await fresh.complete(prompt(0), { ...greedy, maxTokens: 40 })).ids);
});

it('a graph of the caller learns from the model: uses, moves between tiers, and edges', async () => {
  const graph = createKvGraph({ edges: ['prefix_share', 'spill_link'] });
  const used: { key: number; parent?: number }[] = [];
  const observed: KvGraph = {
    ...graph,
    noteUse(key, parent) {
      used.push({ key, parent });
      graph.noteUse(key, parent);
    },
  };
  await using model = await loadTiny(observed, { tiers: [{ type: 'host', capacity: 1e7 }] });
  for (let i = 0; i < 12; i++) {
    await read(model, i, 1);
    // All pages so far are stored before the next ones are evicted.
    await expect.poll(() => model.stats().tiers[0].puts, { interval: 5 }).toBeGreaterThanOrEqual(4 * (i + 1));
  }
  expect(model.stats()).toMatchObject({ eviction: 'graph', evictions: expect.toSatisfy(count => count > 0) });
  const leaves = used.map(({ key }) => graph.leaf(key)!);
  const stored = leaves.filter(({ tier }) => tier === 'stored');
  expect([graph.size, stored.length > 0, leaves.every(({ uses }) => uses > 0)]).toEqual([
    new Set(used.map(({ key }) => key)).size,
    true,
    true,
  ]);
  const [first, second] = used;
  expect(second.parent).toBe(first.key);
  expect(graph.edges(first.key, 'prefix_share').map(({ to }) => to)).toEqual([second.key]);
  expect(stored.some(({ key }) => graph.edges(key, 'spill_link').length > 0)).toBe(true);
  const { key, parent } = used.find(one => graph.leaf(one.parent!) && graph.leaf(one.key)?.tier === 'stored')!;
  expect(graph.suggestPrefetch([parent!], 9)).toContain(key);
});

it('names the policies if there is no such one', async () => {
  await expect(loadModel(tiny, { eviction: 'lfu' as never })).rejects.toThrow(
    "eviction must be 'lru' or 'graph' or a graph from createKvGraph; got",
  );
});

/** With pages of 16 tokens, leaves are cached and evicted eight times as often as usual. */
itAll('the graph takes little of the time of requests', { timeout: 300_000 }, async () => {
  let ms = 0;
  const timed =
    <A extends unknown[], R>(call: (...args: A) => R) =>
    (...args: A): R => {
      const started = performance.now();
      const result = call(...args);
      ms += performance.now() - started;
      return result;
    };
  const graph = createKvGraph();
  const { noteUse, noteIdle, noteMove, nextEviction } = graph;
  const eviction: KvGraph = {
    ...graph,
    noteUse: timed(noteUse),
    noteIdle: timed(noteIdle),
    noteMove: timed(noteMove),
    nextEviction: timed(nextEviction),
  };
  await using model = await loadModel(mimir, {
    ...{ device: 'wasm', threads: 1, pageTokens: PAGE, context: 512, kvMemory: 400_000, eviction },
  });
  await read(model, 0, 8);
  let share = Number.POSITIVE_INFINITY;
  // Other processes may interrupt the graph: measured again if it was too much.
  for (let tries = 0; share >= MAX_SHARE && tries < 4; tries++) {
    const started = performance.now();
    const before = model.stats().evictions;
    ms = 0;
    for (let i = 0; i < 4; i++) await model.complete(prompt(8 + 4 * tries + i), { ...greedy, maxTokens: 128 });
    expect(model.stats().evictions).toBeGreaterThan(before);
    share = ms / (performance.now() - started);
    console.log(`${(100 * share).toFixed(2)} % of the time of requests in the graph`);
  }
  expect(share).toBeLessThan(MAX_SHARE);
});
