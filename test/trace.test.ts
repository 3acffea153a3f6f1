/** Eviction policies on request traces. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { comparePolicies } from '../bench/trace/compare.ts';
import { tracePlot } from '../bench/trace/plot.ts';
import { readTrace } from '../bench/trace/read.ts';
import { replayTrace } from '../bench/trace/replay.ts';
import { benchTrace } from '../bench/trace.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';
import { describeWithFile } from './support/shared.ts';
import { traces } from './support/traces.ts';

/** The share of the LRU -> Belady gap that the graph policy may lose to LRU. */
const MAX_LOSS = 0.02;
/** Gaps of a smaller part of all blocks are not judged. */
const MIN_GAP = 0.005;
const RIVALS = ['fifo', 'lfu', 'lfu-remembered', 's3fifo'];

describe('a replay', () => {
  const loop = Array.from({ length: 40 }, (_, i) => ({ blocks: [i % 4] }));

  it('counts hits and evictions', () => {
    // LRU always evicts what comes next; Belady keeps two of three and hits them.
    expect(replayTrace(loop, 3, 'lru')).toMatchObject({ hits: 0, blocks: 40, evictions: 37, hitRate: 0 });
    expect(replayTrace(loop, 4, 'lru')).toMatchObject({ hits: 36, evictions: 0 });
    expect(replayTrace(loop, 3, 'belady')).toMatchObject({ hits: 24, evictions: 13 });
  });

  it('finds prefixes only', () => {
    const trace = [{ blocks: [1, 2] }, { blocks: [2, 1] }, { blocks: [1, 2, 3] }];
    expect(replayTrace(trace, 8, 'lru')).toMatchObject({ hits: 2, blocks: 7 });
  });

  it('rejects a capacity that does not hold a request', () => {
    expect(() => replayTrace([{ blocks: [1, 2, 3] }], 2, 'lru')).toThrow('which has 3. Raise --capacity.');
  });

  it('is compared with LRU and Belady', () => {
    const rows = comparePolicies(loop, [3, 4], ['belady', 'fifo', 'lru']);
    expect(rows.map(({ capacity, policy, gapClosed }) => [capacity, policy, gapClosed])).toEqual([
      [3, 'belady', 1],
      [3, 'fifo', 0],
      [3, 'lru', 0],
      [4, 'belady', null],
      [4, 'fifo', null],
      [4, 'lru', null],
    ]);
    expect(tracePlot(rows, { title: 'a < b', subtitle: '' })).toContain('60.0 %');
  });
});

it('reads traces, and says which line is wrong', () => {
  expect(readTrace('{"timestamp": 0, "hash_ids": [0, 1]}\n\n{"hash_ids": []}\n')).toEqual([
    { blocks: [0, 1] },
    { blocks: [] },
  ]);
  for (const line of ['{', 'null', '{"hash_ids": 1}', '{"hash_ids": ["a"]}'])
    expect(() => readTrace(`{"hash_ids": []}\n${line}`)).toThrow('Line 2 of the trace is not a request.');
});

describe('npm run bench -- trace', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-trace-'));
  afterAll(() => rmSync(folder, { recursive: true }));
  const [trace, svg] = [join(folder, 'loop.jsonl'), join(folder, 'plot.svg')];
  writeFileSync(trace, Array.from({ length: 40 }, (_, i) => `{"hash_ids": [${i % 4}]}\n`).join(''));
  const options = { trace, capacity: '3', policies: 'lru,lfu,belady', json: false };
  const printed = async (more: Partial<Parameters<typeof benchTrace>[0]>): Promise<string> => {
    const log = vi.spyOn(console, 'log').mockImplementation(() => {});
    try {
      await benchTrace({ ...options, ...more });
      return log.mock.calls.join('\n');
    } finally {
      log.mockRestore();
    }
  };

  it('prints a table or JSON, and writes a plot', async () => {
    const table = await printed({ svg });
    expect(table.replaceAll(/ +[\d.]+ +[\d.]+$/gm, '').split('\n')).toEqual([
      '40 requests, 40 blocks',
      expect.stringMatching(
        /^capacity {2}policy {2}hit rate % {2}hits {2}evictions {2}gap closed % {2}us\/request {2}us\/eviction$/,
      ),
      expect.stringMatching(/^[- ]+$/),
      '       3  lru           0.00     0         37          0.00',
      '       3  lfu           0.00     0         37          0.00',
      '       3  belady       60.00    24         13        100.00',
      '',
      expect.stringMatching(/^gap closed: 0 is LRU, 100 is Belady/),
    ]);
    expect(readFileSync(svg, 'utf8')).toContain('60.0 %');
    const rows = JSON.parse(await printed({ json: true }));
    expect(rows[2]).toMatchObject({ capacity: 3, policy: 'belady', hits: 24, hitRate: 0.6, gapClosed: 1 });
    expect(JSON.parse(await printed({ json: true, requests: '5' }))[0]).toMatchObject({ blocks: 5 });
  });

  it('counts what each kind of edges suggests to prefetch', async () => {
    const [temporal, prefix] = JSON.parse(await printed({ edges: 'temporal,prefix_share', json: true }));
    // A loop: what follows is what was evicted longest ago.
    expect(temporal).toEqual({
      capacity: 3,
      edges: 'temporal',
      suggested: expect.any(Number),
      used: expect.any(Number),
    });
    expect(temporal.used / temporal.suggested).toBeGreaterThan(0.9);
    expect(prefix).toMatchObject({ suggested: 0, used: 0 });
    expect(await printed({ edges: 'temporal' })).toMatch(/^capacity {2}edges +suggested {2}used\n/);
  });

  it('rejects what it does not know', async () => {
    await expect(printed({ policies: 'lruu' })).rejects.toThrow('Did you mean lru?');
    await expect(printed({ edges: 'likes' })).rejects.toThrow('Unknown kind of edges "likes". Kinds: prefix_share,');
    await expect(printed({ trace: 'nowhere' })).rejects.toThrow(/Cannot read the trace "nowhere".* Synthetic traces: /);
    await expect(printed({ capacity: undefined })).rejects.toThrow('trace needs a file and --capacity');
  });
});

/**
 * Every kind of trace, from the first requests, before anything is learned, to thousands. A gap of less than 0.5 % of the
 * blocks is not judged: 2 % of it would be a hit or less.
 */
describe.each(Object.entries(traces))('the graph policy on %s', (_name, create) => {
  const lengths = LONG_CASES ? [200, 400, 1000, 4000] : [200, 400];
  const capacities = ALL_CASES ? [100, 300, 1000] : [300];
  const seeds = LONG_CASES ? [0, 100, 200, 300, 400] : [0];
  const cases = lengths.flatMap(requests => seeds.map(seed => [requests, seed]));
  it.each(cases)('does not fall below LRU within %i requests (seed %i)', { timeout: 120_000 }, (requests, seed) => {
    const trace = create(requests, seed);
    const longest = Math.max(...trace.map(({ blocks }) => blocks.length));
    for (const capacity of capacities.filter(blocks => blocks >= longest)) {
      const [graph, lru, belady] = comparePolicies(trace, [capacity], ['graph', 'lru', 'belady']);
      if (belady.hitRate - lru.hitRate < MIN_GAP) continue;
      expect(graph.gapClosed, `${capacity} blocks`).toBeGreaterThanOrEqual(-MAX_LOSS);
    }
  });
});

it.each([
  ['popularity that drifts', 300],
  ['zipf over prompts that are replaced now and then', 300],
])('the graph policy goes back to LRU when requests change: %s', { timeout: 120_000 }, (name, capacity) => {
  // With this seed, another policy is far ahead of LRU at first, and behind it later.
  const [graph] = comparePolicies(traces[name](4000, 7), [capacity], ['graph']);
  expect(graph.gapClosed).toBeGreaterThanOrEqual(-MAX_LOSS);
});

describeWithFile('data/traces/mooncake-conversation.jsonl', 'the graph policy on real conversations', path => {
  it.runIf(ALL_CASES).each(
    LONG_CASES
      ? [
          [1000, 0.25],
          [3000, 0.25],
          [10_000, 0],
        ]
      : [[1000, 0.25]],
  )('at %i blocks closes %d of the gap and is level with its rivals', { timeout: 600_000 }, (capacity, closed) => {
    const trace = readTrace(readFileSync(path, 'utf8'));
    const [graph, ...rivals] = comparePolicies(trace, [capacity], ['graph', ...(LONG_CASES ? RIVALS : ['s3fifo'])]);
    expect(graph.gapClosed).toBeGreaterThanOrEqual(closed);
    for (const rival of rivals) expect(graph.gapClosed).toBeGreaterThanOrEqual(rival.gapClosed!);
  });
});
