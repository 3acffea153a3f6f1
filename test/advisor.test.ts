/** The advisor's thread, from dist/: it ranks for a running model, and a model goes on without it. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import type { loadModel as LoadModel, LoadOptions } from '../src/api/model.ts';
import type { Evictable } from '../src/eviction/eviction.ts';
import { createAdvisedPolicy } from '../src/eviction/graph/advisor.ts';
import { createAdvisorCycle } from '../src/eviction/graph/advisor-cycle.ts';
import { createSharedMemory } from '../src/eviction/graph/shared-memory.ts';
import { writeGguf } from './gguf-writer.ts';
import { itAll } from './matrix.ts';
import { tinyModel } from './tiny-model.ts';

const built = new URL('../dist/index.js', import.meta.url).href;
const { loadModel }: { loadModel: typeof LoadModel } = await import(built);
const tiny = writeGguf(tinyModel());
const mimir = fileURLToPath(new URL('../models/mimir.gguf', import.meta.url));
type Model = Awaited<ReturnType<typeof LoadModel>>;

/** The advisor may take so much of the CPU time of decoding. */
const MAX_SHARE = 0.03;
const PAGE = 16;

const loadTiny = (eviction: LoadOptions['eviction'], options?: LoadOptions) =>
  loadModel(tiny, {
    ...{ device: 'wasm', threads: 1, pageTokens: PAGE, context: 256, kvMemory: 40_000, eviction },
    ...options,
  });
const isPositive = (count: number) => count > 0;
/** Pages of 16 tokens: a leaf is sealed, and another one evicted, eight times as often as usual. */
const loadMimir = (eviction: LoadOptions['eviction']) =>
  loadModel(mimir, { device: 'wasm', threads: 1, pageTokens: PAGE, context: 512, kvMemory: 400_000, eviction });
const greedy = { temperature: 0, ignoreEos: true };

/** Four pages that no other prompt shares. */
const prompt = (i: number) => Array.from({ length: 4 * PAGE + 1 }, (_, j) => 5 + (((i + 1) * 31 + j * (i + 2)) % 200));
const read = async (model: Model, from: number, count: number) => {
  for (let i = from; i < from + count; i++) await model.complete(prompt(i), { ...greedy, maxTokens: 1 });
};
const advisorOf = (model: Model) => model.stats().eviction.advisor!;

it('ranks for a running model; without it, LRU goes on and is counted', async () => {
  const threads: Worker[] = [];
  const seen = (worker: Worker) => threads.push(worker);
  process.on('worker', seen);
  await using model = await loadTiny('graph');
  await new Promise(setImmediate);
  process.off('worker', seen);
  expect(model.stats().eviction).toMatchObject({ policy: 'graph', advisor: { ranked: 0 } });
  // The thread takes a moment to start.
  await expect.poll(() => advisorOf(model).cycleMs ?? 0, { timeout: 20_000, interval: 20 }).toBeGreaterThan(0);
  await read(model, 0, 12);
  const cached = model.stats().cachedLeaves;
  await expect
    .poll(
      async () => {
        await read(model, 12, 12);
        return advisorOf(model).ranked;
      },
      { timeout: 20_000 },
    )
    .toBeGreaterThan(cached);
  expect(advisorOf(model).lostEvents).toBe(0);

  await threads.at(-1)!.terminate();
  // Its last ranking grows old.
  await expect.poll(() => advisorOf(model).ageMs ?? 0, { timeout: 60_000, interval: 50 }).toBeGreaterThan(2000);
  const before = model.stats();
  await read(model, 24, 8);
  const after = model.stats();
  expect(after.evictions).toBeGreaterThan(before.evictions);
  expect(after.eviction.advisor!.stale).toBeGreaterThan(before.eviction.advisor!.stale);
  expect(after.eviction.advisor!.ranked).toBe(before.eviction.advisor!.ranked);
});

it('knows who wrote what is cached, and what the tiers have; a system message stays cached', async () => {
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
  await expect
    .poll(() => advisorOf(model), { timeout: 20_000, interval: 50 })
    .toMatchObject({
      cachedBySource: { system: systemPages, user: expect.toSatisfy(isPositive) },
      stored: expect.toSatisfy(isPositive),
    });
});

it.each(['fifo', 'lru', 'lfu', 'lfu-remembered', 's3fifo', 'graph'] as const)(
  '%s gives the same text',
  async eviction => {
    await using model = await loadTiny(eviction);
    expect(model.stats().eviction.policy).toBe(eviction);
    await read(model, 0, 12);
    expect(model.stats().evictions).toBeGreaterThan(0);
    const again = await model.complete(prompt(0), { ...greedy, maxTokens: 40 });
    await using fresh = await loadTiny('lru');
    expect(again.ids).toEqual((await fresh.complete(prompt(0), { ...greedy, maxTokens: 40 })).ids);
  },
);

it('names the policies if there is no such one', async () => {
  await expect(loadModel(tiny, { eviction: 'mru' as never })).rejects.toThrow(
    "eviction must be 'fifo' or 'lru' or 'lfu' or 'lfu-remembered' or 's3fifo' or 'graph'",
  );
});

/**
 * What the advisor costs, in CPU time, which does not depend on what else runs on the machine: its thread's, and the
 * engine's for writing events and reading rankings.
 */
describe.skipIf(process.platform !== 'linux')('the advisor takes little from decoding', () => {
  const ROUNDS = 4;
  const TOKENS = 256;
  const threads = () => new Set(readdirSync('/proc/self/task'));
  /** CPU time of a thread so far. */
  const threadMs = (id: string) => Number(readFileSync(`/proc/self/task/${id}/schedstat`, 'utf8').split(' ')[0]) / 1e6;

  /** The CPU time of decoding with an advisor, and of the threads that were started for it. */
  async function measureDecoding(startMore?: () => Promise<unknown>) {
    // Threads that every model starts are running before.
    await using plain = await loadMimir('lru');
    await read(plain, 0, 1);
    const others = threads();
    await using model = await loadMimir('graph');
    await startMore?.();
    await expect.poll(() => advisorOf(model).cycleMs ?? 0, { timeout: 20_000, interval: 20 }).toBeGreaterThan(0);
    await read(model, 0, 8);
    const started = [...threads()].filter(id => !others.has(id));
    const sum = () => started.reduce((ms, id) => ms + threadMs(id), 0);
    const before = { advisor: sum(), process: process.cpuUsage(), evictions: model.stats().evictions };
    for (let i = 0; i < ROUNDS; i++) await model.complete(prompt(8 + i), { ...greedy, maxTokens: TOKENS });
    const used = process.cpuUsage(before.process);
    const advisorMs = sum() - before.advisor;
    const evictions = model.stats().evictions - before.evictions;
    return { threads: started.length, advisorMs, decodeMs: (used.user + used.system) / 1000 - advisorMs, evictions };
  }

  /** CPU time that one leaf takes in the engine: it is cached, becomes idle and is evicted. */
  function measureLeafMs(): number {
    const memory = createSharedMemory();
    const policy = createAdvisedPolicy<Evictable & { lastUsed: number }>(memory);
    const cycle = createAdvisorCycle(memory);
    const [rounds, batch] = [200, 100];
    let ms = 0;
    for (let round = 0; round < rounds; round++) {
      cycle.run();
      const started = process.cpuUsage();
      for (let i = 0; i < batch; i++) {
        const key = round * batch + i;
        const leaf = { key, lastUsed: key, uses: 1 };
        policy.use!(leaf);
        policy.idle!(leaf);
        policy.add(leaf);
        if (round > 0) policy.remove!(policy.next()!);
      }
      const { user, system } = process.cpuUsage(started);
      ms += (user + system) / 1000;
    }
    return ms / (rounds * batch);
  }

  itAll('less than 3 % of its CPU time', { timeout: 600_000 }, async () => {
    let share = Number.POSITIVE_INFINITY;
    // Other processes on the machine only add to it (caches, page faults): measured again if it was too much.
    for (let tries = 0; share >= MAX_SHARE && tries < 4; tries++) {
      const { threads, advisorMs, decodeMs, evictions } = await measureDecoding();
      const engineMs = evictions * measureLeafMs();
      console.log(
        `${decodeMs.toFixed(0)} ms of decoding, ${evictions} evictions: ` +
          `${advisorMs.toFixed(1)} ms in the advisor, ${engineMs.toFixed(1)} ms in the engine`,
      );
      expect([threads, evictions > 0]).toEqual([1, true]);
      share = (advisorMs + engineMs) / decodeMs;
    }
    expect(share).toBeLessThan(MAX_SHARE);
  });

  itAll('and an advisor that takes a tenth of a core is noticed', { timeout: 300_000 }, async () => {
    const slow = `const pause = new Int32Array(new SharedArrayBuffer(4));
      for (;;) {
        for (const end = Date.now() + 50; Date.now() < end; );
        Atomics.wait(pause, 0, 0, 450);
      }`;
    const workers: Worker[] = [];
    const { advisorMs, decodeMs } = await measureDecoding(async () => workers.push(new Worker(slow, { eval: true })));
    await workers[0].terminate();
    expect(advisorMs / decodeMs).toBeGreaterThan(MAX_SHARE);
  });
});
