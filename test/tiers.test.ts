/**
 * Tiers lose nothing: an answer whose pages come from host memory, disk or Redis, in this process or another, has the same
 * tokens and the same log probabilities, bit for bit, as one that was computed.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LoadOptions, loadModel, type Model, type Result } from '../src/index.ts';
import { planBytes } from '../src/plan/plan.ts';
import { createHostStore } from '../src/store/host-store.ts';
import { writeGguf, writeTempModel } from './support/gguf-writer.ts';
import { ALL_CASES, itAll, matrix } from './support/matrix.ts';
import { mimir } from './support/mimir.ts';
import { type RedisServer, startRedis } from './support/redis-server.ts';
import { describeWithRedis } from './support/redis-suite.ts';
import { tinyModel } from './support/tiny-model.ts';
import { traceOf } from './support/trace-of.ts';
import { describeGpu } from './webgpu/gpu.ts';

const tinySpec = tinyModel({ tied: false, headDim: 32 });
const tiny = new Blob([writeGguf(tinySpec)]);
const PAGE = 16;
/** Every length modulo the page, or the ends of a page. */
const LENGTHS = ALL_CASES
  ? Array.from({ length: PAGE }, (_, i) => 3 * PAGE + i)
  : [3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 1];

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-tiers-'));
});
afterAll(() => rm(folder, { recursive: true }));

const load = (kv: string, options: LoadOptions = {}, input = ['mead2', 'oaken'].includes(kv) ? mimir : tiny) =>
  loadModel(input, {
    ...{ kv, pageTokens: PAGE, context: 512, device: 'wasm', threads: 1 },
    ...options,
  });
const greedy = { temperature: 0, ignoreEos: true, logprobs: 0, maxTokens: 5 };
const promptOf = (length: number) => Array.from({ length }, (_, i) => (i * i * 31 + i * 17 + length * 101 + 7) % 256);
const wholePages = (length: number) => Math.floor((length - 1) / PAGE) * PAGE;
const hostStore = () => createHostStore({ capacity: 2 ** 28 });

/** Nothing is held but pages that are kept for later prompts. */
function expectReleased(model: Model): void {
  const { sharedLeaves, idleSequences, used, cachedBytes } = model.stats();
  expect({ sharedLeaves, idleSequences, held: used - cachedBytes }).toEqual({
    sharedLeaves: 0,
    idleSequences: 0,
    held: 0,
  });
}

/** Expects the answer of a model that has computed nothing. */
async function expectRestored(model: Model, length: number, computed: Result): Promise<void> {
  const answer = await model.complete(promptOf(length), greedy);
  expect(answer.usage.reusedTokens).toBe(wholePages(length));
  expect(traceOf(answer)).toEqual(traceOf(computed));
  expectReleased(model);
}

describeWithRedis('the same text from each tier', () => {
  let redis: RedisServer;
  beforeAll(async () => {
    redis = await startRedis();
  });
  afterAll(() => redis.stop());

  const CASES: [string, string[]][] = [
    ['tq4', ['host', 'disk', 'redis']],
    ['f16', ['host']],
    ['mead2', ['disk']],
    ['oaken', ['redis']],
  ];
  const reasons = { tq4: 'every tier', mead2: 'learned codecs' };
  it.each(matrix(CASES, reasons, ([kv]) => kv))('%s', { timeout: 300_000 }, async (kv, names) => {
    const host = hostStore();
    const disk = { type: 'disk', path: join(folder, kv), capacity: 2 ** 26 } as const;
    const remote = { type: 'redis', urls: [redis.url], cluster: false } as const;
    const computed = new Map<number, Result>();
    {
      await using model = await load(kv, { tiers: [host, disk, remote] });
      for (const length of LENGTHS) computed.set(length, await model.complete(promptOf(length), greedy));
      for (const { usage } of computed.values()) expect(usage.reusedTokens).toBe(0);
      expectReleased(model);
    }
    const tiers = Object.entries({ host, disk, redis: remote });
    for (const [i, [name, tier]] of tiers.entries())
      for (const [j, [length, expected]] of [...computed].entries()) {
        // The lengths take turns, or each tier gets all of them.
        const isTurn = i === j % tiers.length && (ALL_CASES || names.includes(name));
        if (!isTurn && !(ALL_CASES && kv === 'tq4')) continue;
        await using model = await load(kv, { tiers: [tier] });
        await expectRestored(model, length, expected);
        expect(model.stats().tiers[0]).toMatchObject({ errors: 0, damaged: 0, skipped: 0 });
      }
  });

  it('in another process, from Redis', async () => {
    const file = await writeTempModel(tinySpec);
    const options = { kv: 'tq4', pageTokens: PAGE, context: 512, device: 'wasm', tiers: `redis=${redis.url}` } as const;
    let computed: Result;
    {
      await using model = await loadModel(file, { ...options, threads: 1 });
      computed = await model.complete(promptOf(60), greedy);
    }
    const script = join(folder, 'restore.mjs');
    await writeFile(
      script,
      `import { loadModel } from ${JSON.stringify(new URL('../dist/index.js', import.meta.url).href)};
      const model = await loadModel(${JSON.stringify(file)}, ${JSON.stringify(options)});
      console.log(JSON.stringify(await model.complete(${JSON.stringify(promptOf(60))}, ${JSON.stringify(greedy)})));
      await model.dispose();`,
    );
    const { stdout } = await promisify(execFile)(process.execPath, [script]);
    const answer: Result = JSON.parse(stdout);
    expect(answer.usage.reusedTokens).toBe(48);
    expect(traceOf(answer)).toEqual(traceOf(computed));
  });
});

describe('leaves', () => {
  it('of a prompt are found again after they were evicted', async () => {
    await using model = await load('tq4', { tiers: 'host=1GB', kvMemory: 300_000, maxSequences: 2 });
    const first = await model.complete(promptOf(200), greedy);
    for (let i = 0; i < 8; i++) await model.complete(promptOf(300 + i), greedy);
    expect(model.stats().evictions).toBeGreaterThan(0);
    const [{ hits }] = model.stats().tiers;
    // While others run, so that it waits in the queue, too.
    const others = [model.complete(promptOf(330), greedy), model.complete(promptOf(331), greedy)];
    const again = await model.complete(promptOf(200), greedy);
    await Promise.all(others);
    expect(traceOf(again)).toEqual(traceOf(first));
    expect(model.stats().tiers[0].hits).toBeGreaterThan(hits);
    expectReleased(model);
  });

  it('beyond the sinks are found, wherever these end', async () => {
    for (const kv of ALL_CASES ? ['tq4+sink0', 'tq4+sink16', 'tq4+sink40'] : ['tq4+sink20']) {
      const tiers = [hostStore()];
      let computed: Result;
      {
        await using model = await load(kv, { tiers });
        computed = await model.complete(promptOf(70), greedy);
      }
      await using model = await load(kv, { tiers });
      await expectRestored(model, 70, computed);
    }
  });

  it('are used as far as the chain goes', async () => {
    const tiers = [hostStore()];
    const prompt = promptOf(200);
    {
      await using model = await load('tq4', { tiers });
      await model.complete(prompt.slice(0, 100), greedy);
    }
    await using cold = await load('tq4');
    await using model = await load('tq4', { tiers });
    const answer = await model.complete(prompt, greedy);
    expect(answer.usage.reusedTokens).toBe(96);
    expect(traceOf(answer)).toEqual(traceOf(await cold.complete(prompt, greedy)));
  });

  it('of a slower tier are also put into the faster one', async () => {
    const [fast, slow] = [hostStore(), hostStore()];
    {
      await using model = await load('tq4', { tiers: [slow] });
      await model.complete(promptOf(100), greedy);
    }
    {
      await using model = await load('tq4', { tiers: [fast, slow] });
      expect((await model.complete(promptOf(100), greedy)).usage.reusedTokens).toBe(96);
    }
    // The sinks, and the pages of the prompt.
    expect(fast.stats.records).toBe(7);
    await using model = await load('tq4', { tiers: [fast] });
    expect((await model.complete(promptOf(100), greedy)).usage.reusedTokens).toBe(96);
  });

  it('are never shared by tenants, or by salts of one tenant', async () => {
    const tiers = [hostStore()];
    const reused = async (model: Model, owner: { tenant?: string; cacheSalt?: string }) =>
      (await model.complete(promptOf(50), { ...greedy, ...owner })).usage.reusedTokens;
    const others = [{}, { tenant: 'b' }, { tenant: 'a', cacheSalt: '' }, { tenant: '["a"]' }, { tenant: '["a","b"]' }];
    {
      await using model = await load('tq4', { tiers });
      for (const owner of [{ tenant: 'a' }, { tenant: 'a', cacheSalt: 'b' }])
        expect(await reused(model, owner)).toBe(0);
    }
    {
      await using model = await load('tq4', { tiers });
      for (const owner of others) expect(await reused(model, owner)).toBe(0);
    }
    await using model = await load('tq4', { tiers });
    expect(await reused(model, { tenant: 'a' })).toBe(48);
  });

  it('of another codec, page size or precision are never used', async () => {
    const tiers = [hostStore()];
    {
      await using model = await load('tq4', { tiers });
      await model.complete(promptOf(100), greedy);
    }
    for (const options of [{ kv: 'tq4+sink0' }, { pageTokens: 32 }, { precise: true }]) {
      await using model = await load(options.kv ?? 'tq4', { tiers, ...options });
      expect((await model.complete(promptOf(100), greedy)).usage.reusedTokens, JSON.stringify(options)).toBe(0);
    }
  });
});

describe('a cache that others fill', () => {
  it('takes no more than its capacity, and restores when there is room', async () => {
    const tiers = [hostStore()];
    const prompt = promptOf(150);
    await using roomy = await load('tq4', { tiers }, mimir);
    const computed = await roomy.complete(prompt, greedy);
    await roomy.dispose();
    const kvMemory = planBytes(roomy.plan, 250) + planBytes(roomy.plan, 20);
    await using model = await load('tq4', { tiers, kvMemory, maxSequences: 4 }, mimir);
    const older = model.complete(promptOf(200), { ...greedy, maxTokens: 40 });
    // It comes when the pages of the older one fill the cache, which then takes its own.
    const running = () => model.stats().running > 0 && model.stats().used > kvMemory / 2;
    while (!running()) await new Promise(resolve => setTimeout(resolve, 1));
    const younger = model.complete(prompt, greedy);
    await older;
    expect(model.stats().used).toBeLessThanOrEqual(kvMemory);
    const answer = await younger;
    expect(traceOf(answer)).toEqual(traceOf(computed));
    expect(answer.usage.reusedTokens).toBe(144);
    expectReleased(model);
  });
});

describe('eight conversations in a cache for two', () => {
  const talk = async (model: Model, i: number) => {
    await using conversation = model.conversation({ system: 'Answer from the text.', tenant: i % 2 ? 'other' : '' });
    const traces: string[] = [];
    for (const turn of [`House ${i} has ${'a red door, '.repeat(i + 2)}and no window.`, 'Which door?', 'Why?'])
      traces.push(...traceOf(await conversation.send(turn, greedy).result()));
    return traces;
  };
  const all = <T>(work: (i: number) => Promise<T>) => Promise.all(Array.from({ length: 8 }, (_, i) => work(i)));

  it.each(ALL_CASES ? ['f16', 'tq4'] : ['tq4'])('%s: each gets the answers that it gets alone', async kv => {
    await using roomy = await load(kv);
    const alone: string[][] = [];
    for (let i = 0; i < 8; i++) alone.push(await talk(roomy, i));
    const kvMemory = 2 * planBytes(roomy.plan, 260);
    await using model = await load(kv, { tiers: 'host=1GB', kvMemory, maxSequences: 4 });
    for (let round = 0; round < 2; round++) expect(await all(i => talk(model, i))).toEqual(alone);
    const { evictions, used, capacity, tiers } = model.stats();
    expect([evictions > 0, used <= capacity, tiers[0].hits > 0]).toEqual([true, true, true]);
    expectReleased(model);
  });
});

describeGpu('on a GPU', () => {
  itAll('the same text from host memory', { timeout: 300_000 }, async () => {
    const tiers = [hostStore()];
    const onGpu = () => load('tq4', { device: 'webgpu', tiers });
    await using first = await onGpu();
    const computed = await first.complete(promptOf(60), greedy);
    await first.dispose();
    await using model = await onGpu();
    await expectRestored(model, 60, computed);
  });
});

describe('notices', () => {
  it('a recent window uses no tiers', async () => {
    await using model = await load('tq4+recent32', { tiers: [hostStore()] });
    expect(model.notices.join()).toContain('The tiers are not used: with a recent window of 32 tokens');
    expect(model.stats().tiers).toEqual([]);
  });

  it('a conversation that has slid stores no further pages', async () => {
    const store = hostStore();
    await using model = await load('tq4', { tiers: [store], context: 64, overflow: 'slide' });
    expect(model.notices.join()).toContain('have dropped their oldest tokens are not stored');
    await model.complete(promptOf(200), greedy);
    await model.dispose();
    // The sinks and the pages before the context was full.
    expect(store.stats.records).toBeLessThanOrEqual(1 + 64 / PAGE);
  });
});
