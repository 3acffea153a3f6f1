/**
 * Two engines in processes of their own share prefixes through a Redis Cluster of three nodes, one of which is killed while
 * they run. Every answer is that of a model without tiers.
 */
import { afterAll, beforeAll, expect } from 'vitest';
import { loadModel } from '../../src/index.ts';
import { type EngineProcess, startEngineProcess } from '../../src/worker/engine-process.ts';
import { itAll } from '../support/matrix.ts';
import { mimir } from '../support/mimir.ts';
import { type RedisServer, startCluster } from '../support/redis-server.ts';
import { describeWithRedis } from '../support/redis-suite.ts';

const options = { device: 'wasm', threads: 1, pageTokens: 16, context: 512 } as const;
const greedy = { temperature: 0, ignoreEos: true, maxTokens: 12 };
const PROMPT_TOKENS = 100;
/** Pages before the last token. */
const PAGES = 6;
const promptOf = (seed: number) =>
  Array.from({ length: PROMPT_TOKENS }, (_, i) => 10 + ((i * i * 31 + i * 17 + seed * 101) % 200));
const PROMPTS = Array.from({ length: 24 }, (_, seed) => promptOf(seed));

describeWithRedis('two engines and a Redis Cluster', () => {
  let nodes: RedisServer[] = [];
  let engines: EngineProcess[] = [];
  /** The answers without tiers. */
  const expected: number[][] = [];

  beforeAll(async () => {
    await using plain = await loadModel(mimir, options);
    for (const prompt of PROMPTS) expected.push((await plain.complete(prompt, greedy)).ids);
    nodes = await startCluster();
    const tiers = `redis-cluster=${nodes.map(({ url }) => url).join('|')}`;
    engines = [0, 1].map(() => startEngineProcess({ model: mimir, loadOptions: { ...options, tiers } }));
    await Promise.all(engines.map(engine => engine.ready()));
  }, 240_000);
  afterAll(async () => {
    for (const engine of engines) await engine.close();
    for (const node of nodes) await node.stop();
  });

  /** Asks an engine, and expects the answer without tiers. Returns how many tokens were reused. */
  const ask = async (engine: number, seed: number): Promise<number> => {
    const service = await engines[engine].ready();
    const { ids, usage } = await service.generate(PROMPTS[seed], greedy).result();
    expect(ids, `prompt ${seed} of engine ${engine}`).toEqual(expected[seed]);
    return usage.reusedTokens;
  };
  const tierOf = async (engine: number) => (await (await engines[engine].ready()).stats()).tiers[0];
  /** Waits until an engine has stored as many prompts. The sinks are part of each. */
  const stored = (engine: number, prompts: number) =>
    expect
      .poll(async () => (await tierOf(engine)).puts, { timeout: 30_000 })
      .toBeGreaterThanOrEqual(prompts * (PAGES + 1));

  itAll('share prefixes, and go on when a node is killed', { timeout: 240_000 }, async () => {
    for (let seed = 0; seed < 8; seed++) expect(await ask(0, seed)).toBe(0);
    await stored(0, 8);
    expect(await ask(1, 0)).toBe(PAGES * 16);
    expect(await ask(1, 8)).toBe(0);
    await stored(1, 1);
    expect(await ask(0, 8)).toBe(PAGES * 16);

    // Both have answers to write when the node dies.
    const running = [9, 10, 11].flatMap(seed => [ask(0, seed), ask(1, seed + 3)]);
    nodes[1].process.kill('SIGKILL');
    await Promise.all(running);

    // What the dead node had is computed again.
    const reused: number[] = [];
    for (const seed of [1, 2, 3, 4, 5, 6, 7]) reused.push(await ask(1, seed));
    expect(Math.min(...reused)).toBeLessThan(PAGES * 16);
    expect((await tierOf(1)).errors).toBeGreaterThan(0);

    // And the others go on: chains are shared up to the first record that would be on the dead one.
    const seeds = [15, 16, 17, 18, 19, 20, 21, 22, 23];
    for (const seed of seeds) expect(await ask(0, seed)).toBe(0);
    await expect.poll(async () => (await tierOf(0)).pendingBytes, { timeout: 30_000 }).toBe(0);
    const shared: number[] = [];
    for (const seed of seeds) shared.push(await ask(1, seed));
    expect(Math.max(...shared)).toBeGreaterThan(0);
  });
});
