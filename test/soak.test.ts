/**
 * Many short requests, 64 of them submitted at any time, in a cache that is always full: none is lost, the order is fair,
 * and memory stays flat. `npm run test:long` runs 10,000.
 */
import { expect, it } from 'vitest';
import { planBytes } from '../src/plan/plan.ts';
import { load, words } from './support/lifetimes.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';

const REQUESTS = LONG_CASES ? 10_000 : ALL_CASES ? 300 : 150;
const AT_ONCE = 64;
const MAX_SEQUENCES = 8;

it(`${REQUESTS} requests`, { timeout: LONG_CASES ? 3_600_000 : 120_000 }, async () => {
  await using roomy = await load('wasm', { prefillChunk: 64 });
  const kvMemory = MAX_SEQUENCES * planBytes(roomy.plan, 60);
  await using model = await load('wasm', { prefillChunk: 64, kvMemory, maxSequences: MAX_SEQUENCES });
  const tenants = ['', 'a', 'b'];
  const promptOf = (i: number) =>
    `${words.slice(0, (i * 13) % 60)}${i % 97} ${words.slice(i % 50, (i % 50) + (i % 31))}`;
  const optionsOf = (i: number) => ({ temperature: 0, ignoreEos: true, maxTokens: 1 + (i % 9) });
  /** Requests that were completed, in this order. */
  const order: number[] = [];
  const samples: { total: number; rss: number; waiting: number; used: number }[] = [];
  let submitted = 0;
  const submitNext = async () => {
    while (submitted < REQUESTS) {
      const i = submitted++;
      const { ids, finish } = await model.complete(promptOf(i), { ...optionsOf(i), tenant: tenants[i % 3] });
      expect([ids.length, finish]).toEqual([1 + (i % 9), 'length']);
      order.push(i);
      if (order.length % 25 !== 0) continue;
      const { waiting, used } = model.stats();
      samples.push({ total: model.memory().total, rss: process.memoryUsage.rss(), waiting, used });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, submitNext));

  expect([...order].sort((a, b) => a - b)).toEqual(Array.from({ length: REQUESTS }, (_, i) => i));
  // Within a tenant they end in the order of arrival, but for those that run at the same time or were preempted.
  for (const tenant of tenants.keys()) {
    const own = order.filter(i => i % 3 === tenant);
    const delays = own.map((i, at) => Math.abs((i - tenant) / 3 - at));
    expect(Math.max(...delays)).toBeLessThanOrEqual(2 * MAX_SEQUENCES);
  }
  const { capacity, evictions, waiting, running, sharedLeaves } = model.stats();
  expect({ waiting, running, sharedLeaves }).toEqual({ waiting: 0, running: 0, sharedLeaves: 0 });
  // The cache was full all the time, and many were waiting.
  expect(evictions).toBeGreaterThan(REQUESTS / 4);
  for (const { used, waiting } of samples.slice(1, -2)) {
    expect(used).toBeGreaterThan(0.75 * capacity);
    expect(waiting).toBeGreaterThan(AT_ONCE / 2);
  }
  // Once it is warm, nothing grows but what is cached, and that is bounded. The wasm device has a list of pages per sequence.
  const warm = samples.slice(samples.length >> 1);
  const fixed = warm.map(({ total, used }) => total - used);
  expect(Math.max(...fixed) - Math.min(...fixed)).toBeLessThan(0.3 * capacity);
  if (LONG_CASES) expect(warm.at(-1)!.rss - warm[0].rss).toBeLessThan(32 * 2 ** 20);
  // The answers are those that they get alone.
  for (let i = 0; i < REQUESTS; i += Math.floor(REQUESTS / 10)) {
    const { ids } = await roomy.complete(promptOf(i), { ...optionsOf(i), tenant: `${i}` });
    expect((await model.complete(promptOf(i), { ...optionsOf(i), tenant: tenants[i % 3] })).ids).toEqual(ids);
  }
});
