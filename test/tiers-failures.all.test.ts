/** A tier that is down, slow, wrong or forgetful costs time, never an answer, and the statistics say so. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LoadOptions, loadModel, type Result } from '../src/index.ts';
import { createApp } from '../src/server/app.ts';
import { createHostStore } from '../src/store/host-store.ts';
import type { LeafStore } from '../src/store/leaf-store.ts';
import { startEngineProcess } from '../src/worker/engine-process.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { freePort, type RedisServer, startRedis } from './support/redis-server.ts';
import { describeWithRedis } from './support/redis-suite.ts';
import { tinyModel } from './support/tiny-model.ts';

const file = writeGguf(tinyModel({ tied: false }));
const load = (options: LoadOptions) =>
  loadModel(new Blob([file]), { pageTokens: 16, context: 512, device: 'wasm', threads: 1, ...options });
const greedy = { temperature: 0, ignoreEos: true, maxTokens: 8 };
const promptOf = (seed: number) => Array.from({ length: 100 }, (_, i) => (i * i * 31 + i * 17 + seed * 101) % 256);

/** The answers without tiers. */
let expected: Result[];
beforeAll(async () => {
  await using model = await load({});
  expected = [await model.complete(promptOf(0), greedy), await model.complete(promptOf(1), greedy)];
});

/** Stores the pages of prompt 0. */
async function store(tiers: LoadOptions['tiers']): Promise<void> {
  await using model = await load({ tiers });
  expect((await model.complete(promptOf(0), greedy)).ids).toEqual(expected[0].ids);
}

/** Asks a new model, which goes on answering. Returns the reused tokens of its first answer, and its tiers. */
async function ask(tiers: LoadOptions['tiers']) {
  await using model = await load({ tiers });
  const { ids, usage } = await model.complete(promptOf(0), greedy);
  expect(ids).toEqual(expected[0].ids);
  expect((await model.complete(promptOf(1), greedy)).ids).toEqual(expected[1].ids);
  const { tiers: stats, sharedLeaves, used, cachedBytes } = model.stats();
  expect([sharedLeaves, used - cachedBytes]).toEqual([0, 0]);
  return { reused: usage.reusedTokens, stats };
}

/** A host store whose methods are replaced. */
const brokenStore = (broken: Partial<LeafStore>): LeafStore => {
  const store = createHostStore({ capacity: 2 ** 26 });
  return {
    ...store,
    get stats() {
      return store.stats;
    },
    ...broken,
  };
};

describeWithRedis('a remote tier', () => {
  let redis: RedisServer;
  beforeAll(async () => {
    redis = await startRedis('--maxmemory', '100mb', '--maxmemory-policy', 'allkeys-lru');
  });
  afterAll(() => redis.stop());
  const tiers = () => `redis=${redis.url}`;

  it('that is down', async () => {
    const { reused, stats } = await ask(`redis=redis://127.0.0.1:${await freePort()}`);
    expect(reused).toBe(0);
    expect(stats[0]).toMatchObject({ name: 'redis', hits: 0, lastError: expect.stringContaining('does not answer') });
    expect(stats[0].errors).toBeGreaterThan(0);
  });

  it('that dies while the model runs', async () => {
    const mortal = await startRedis();
    await using model = await load({ tiers: `redis=${mortal.url}` });
    await model.complete(promptOf(0), greedy);
    await mortal.stop();
    expect((await model.complete(promptOf(1), greedy)).ids).toEqual(expected[1].ids);
  });

  it('that answers garbage', async () => {
    await store(tiers());
    await redis.command('eval', "for _, k in ipairs(redis.call('keys', '*')) do redis.call('set', k, 'kvrc') end", '0');
    const { reused, stats } = await ask(tiers());
    expect(reused).toBe(0);
    expect(stats[0]).toMatchObject({ hits: 0, damaged: 1 });
  });

  it('that has evicted everything', async () => {
    await store(tiers());
    await redis.command('flushall');
    const { reused, stats } = await ask(tiers());
    expect(reused).toBe(0);
    expect(stats[0]).toMatchObject({ hits: 0, errors: 0 });
  });
});

describe('a tier', () => {
  it('that works', async () => {
    const tiers = [brokenStore({})];
    await store(tiers);
    const { reused, stats } = await ask(tiers);
    expect(reused).toBe(96);
    expect(stats).toMatchObject([{ name: 'host', hits: 7, errors: 0, skipped: 0 }]);
  });

  it('that hangs: a reader who leaves does not wait for it', async () => {
    const hanging = brokenStore({
      // biome-ignore lint/correctness/useYield: it finds nothing.
      async *get() {
        await delay(60_000, undefined, { ref: false });
      },
    });
    await using model = await load({ tiers: [hanging] });
    const stream = model.generate(promptOf(0), greedy);
    const first = stream.next();
    await delay(50);
    const left = performance.now();
    await stream.return();
    expect(performance.now() - left).toBeLessThan(1000);
    await first;
  });

  it('that is slow: the answer does not wait for it', async () => {
    const slow = brokenStore({
      // biome-ignore lint/correctness/useYield: it finds nothing.
      async *get() {
        await delay(20_000, undefined, { ref: false });
      },
    });
    await using model = await load({ tiers: [slow] });
    const start = performance.now();
    expect((await model.complete(promptOf(0), greedy)).ids).toEqual(expected[0].ids);
    // Two seconds: it did not know yet how fast it computes. Now it does.
    const known = performance.now();
    expect((await model.complete(promptOf(1), greedy)).ids).toEqual(expected[1].ids);
    expect([known - start < 10_000, performance.now() - known < 10_000]).toEqual([true, true]);
  });

  it('that fails', async () => {
    const failing = brokenStore({
      put: () => Promise.reject(new Error('no')),
      // biome-ignore lint/correctness/useYield: it fails before.
      async *get() {
        throw new Error('no');
      },
    });
    expect((await ask([failing])).reused).toBe(0);
  });

  it('whose leaves do not have the size of a leaf', async () => {
    const wrong = brokenStore({
      async *get(chain) {
        for (const _ of chain) yield new Uint8Array(7);
      },
    });
    expect((await ask([wrong])).reused).toBe(0);
  });

  it('that is small, and has lost the beginning of the chain', async () => {
    const tiers = [createHostStore({ capacity: 4000 })];
    await store(tiers);
    const { reused, stats } = await ask(tiers);
    expect(reused).toBe(0);
    expect(stats[0].evictions).toBeGreaterThan(0);
  });
});

describe('the engine of a server', () => {
  const directory = mkdtempSync(join(tmpdir(), 'kvasir-tiers-'));
  afterAll(() => rmSync(directory, { recursive: true }));

  it('that is killed finds its pages again: the next request has cached tokens', { timeout: 120_000 }, async () => {
    const path = join(directory, 'tiny.gguf');
    writeFileSync(path, file);
    const engine = startEngineProcess({
      model: path,
      loadOptions: { device: 'wasm', threads: 1, pageTokens: 16, tiers: `disk=${join(directory, 'disk')}:64MB` },
    });
    const app = createApp({ backend: engine, names: ['tiny'] });
    try {
      const service = await engine.ready();
      const request = () =>
        app.fetch(
          new Request('http://localhost/v1/completions', {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify({
              prompt: 'Odin drank the mead of poetry. '.repeat(4),
              max_tokens: 8,
              temperature: 0,
            }),
          }),
        );
      const first = (await (await request()).json()) as Answer;
      expect(first.usage.prompt_tokens_details.cached_tokens).toBe(0);
      while ((await service.stats()).tiers[0].puts < 7) await delay(10);
      process.kill(engine.pid!, 'SIGKILL');
      let response = await request();
      // Clients are told to try again.
      for (; response.status !== 200; response = await request()) {
        expect([response.status, response.headers.get('retry-after')]).toEqual([503, '5']);
        await delay(50);
      }
      const second = (await response.json()) as Answer;
      expect(second.usage.prompt_tokens_details.cached_tokens).toBe(112);
      expect(second.choices[0].text).toBe(first.choices[0].text);
      expect(engine.restarts).toBe(1);
      const metrics = await (await app.fetch(new Request('http://localhost/metrics'))).text();
      // The sinks and seven pages.
      expect(metrics).toMatch(/^kvasir_tier_hits_total\{tier="disk",model_name="tiny"\} 8$/m);
    } finally {
      await engine.close();
    }
  });
});

interface Answer {
  choices: { text: string }[];
  usage: { prompt_tokens_details: { cached_tokens: number } };
}
