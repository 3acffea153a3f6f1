import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { itAll } from '../../../test/support/matrix.ts';
import { createKvGraph, type KvGraph, type KvGraphOptions } from './kv-graph.ts';

/** A graph with a cache of `capacity` leaves around it, which evicts what the graph says. */
function createCache(capacity: number, options?: KvGraphOptions) {
  const graph = createKvGraph(options);
  const cached = new Set<number>();
  const evicted: number[] = [];
  const evict = () => {
    const key = graph.nextEviction()!;
    cached.delete(key);
    evicted.push(key);
    graph.noteMove(key, 'none');
  };
  return {
    graph,
    cached,
    evicted,
    evict,
    /** Reads a text of leaves, which name themselves: each is 10 times its parent plus a digit. */
    read(leaf: number) {
      const path = [...String(leaf)].map((_, i, digits) => Number(digits.slice(0, i + 1).join('')));
      path.forEach((key, i) => {
        if (!cached.has(key)) while (cached.size >= capacity) evict();
        cached.add(key);
        graph.noteUse(key, path[i - 1]);
      });
      for (const key of path.toReversed()) graph.noteIdle(key);
    },
  };
}

describe('what to evict', () => {
  it('starts with the least recently used leaf, children before their parents', () => {
    const { cached, evict, evicted, read } = createCache(10);
    for (const text of [12, 3, 14]) read(text);
    while (cached.size > 0) evict();
    expect(evicted).toEqual([12, 3, 14, 1]);
  });

  it('is by the end of the last use, as in LRU', () => {
    const graph = createKvGraph();
    for (const key of [1, 2]) graph.noteUse(key);
    graph.noteIdle(2);
    graph.noteUse(3);
    for (const key of [1, 3]) graph.noteIdle(key);
    expect([graph.nextEviction(), graph.nextEviction()]).toEqual([2, 1]);
  });

  it('is nothing that is in use, and nothing twice', () => {
    const graph = createKvGraph();
    graph.noteUse(1);
    graph.noteUse(2);
    graph.noteIdle(2);
    expect([graph.nextEviction(), graph.nextEviction()]).toEqual([2, undefined]);
    graph.noteUse(2);
    graph.noteIdle(2);
    expect(graph.nextEviction()).toBe(2);
  });

  it('is everything in the end, whatever was read, children before their parents', () => {
    const texts = fc.array(fc.integer({ min: 1, max: 5999 }), { maxLength: 120 });
    fc.assert(
      fc.property(texts, list => {
        const { cached, evict, evicted, read } = createCache(12);
        for (const text of list) read(text);
        const left = cached.size;
        while (cached.size > 0) evict();
        const last = evicted.slice(evicted.length - left);
        expect(new Set(last).size).toBe(left);
        for (const [i, key] of last.entries())
          expect(last.slice(i + 1).filter(later => String(later).startsWith(String(key)))).toEqual([]);
      }),
    );
  });

  it('keeps a prompt that conversations share, and not the conversations', () => {
    const cache = createCache(50);
    // A system prompt of three leaves, with a conversation after it every fifth time; texts that come once; one fits.
    for (let i = 0; i < 1500; i++) cache.read(i % 5 === 0 ? 111_0000 + (i % 9999) : 2_000_000 + i);
    for (let i = 0; i < 12; i++) cache.read(3_000_000 + i);
    expect([1, 11, 111].every(key => cache.cached.has(key))).toBe(true);
  });

  it('remembers as many leaves as allowed, besides those that are cached', () => {
    const { graph, read } = createCache(16, { maxRemembered: 100 });
    for (let i = 1; i < 2000; i++) read(i);
    expect(graph.size).toBeLessThanOrEqual(100 + 2 * 16);
    expect(graph.leaf(1999)).toMatchObject({ tier: 'device', uses: 1 });
    expect(graph.leaf(1500)).toBeUndefined();
  });
});

describe('a leaf', () => {
  it('knows its uses and tier', () => {
    const { graph, read } = createCache(4);
    read(12);
    read(1);
    graph.noteMove(12, 'stored');
    expect(graph.leaf(1)).toEqual({ key: 1, uses: 2, tier: 'device', importance: Number.NaN });
    expect(graph.leaf(12)).toMatchObject({ uses: 1, tier: 'stored' });
    read(12);
    expect(graph.leaf(12)).toMatchObject({ uses: 2, tier: 'device' });
    expect(graph.leaf(7)).toBeUndefined();
  });

  it('is important if it gets more attention than others, lately', () => {
    const { graph, read } = createCache(4);
    read(12);
    graph.noteAttention([1, 12], [0.3, 0.1]);
    expect(graph.leaf(1)?.importance).toBeCloseTo(1.5);
    expect(graph.leaf(12)?.importance).toBeCloseTo(0.5);
    for (let i = 0; i < 50; i++) graph.noteAttention([1, 12, 99], [0.1, 0.1, 0.1]);
    expect(graph.leaf(1)?.importance).toBeCloseTo(1, 2);
  });
});

describe('an edge', () => {
  const ends = (graph: KvGraph, key: number, kind: Parameters<KvGraph['edges']>[1]) =>
    graph.edges(key, kind).map(({ to }) => to);

  it('goes to the leaf after it in a text, the most used first', () => {
    const { graph, read } = createCache(9, { edges: ['prefix_share'] });
    for (const text of [12, 13, 13]) read(text);
    expect(graph.edges(1, 'prefix_share')).toEqual([
      { to: 13, weight: 2 },
      { to: 12, weight: 1 },
    ]);
  });

  it('of the other kinds is kept on demand', () => {
    const { graph, read } = createCache(9, { edges: ['temporal', 'co_attend', 'semantic', 'spill_link'] });
    for (const text of [1, 2, 3]) read(text);
    expect([ends(graph, 1, 'temporal'), ends(graph, 2, 'temporal')]).toEqual([[2], [3]]);
    graph.noteAttention([1, 2, 3], [0.5, 0.1, 0.4]);
    expect([ends(graph, 1, 'co_attend'), ends(graph, 3, 'co_attend')]).toEqual([[3], [1]]);
    for (const key of [1, 2, 3]) graph.noteEmbedding(key, [1, key === 2 ? -5 : 5, 0.1 * key]);
    expect([ends(graph, 1, 'semantic'), ends(graph, 2, 'semantic')]).toEqual([[3], []]);
    for (const key of [3, 1]) graph.noteMove(key, 'stored');
    expect(ends(graph, 3, 'spill_link')).toEqual([1]);
    expect(ends(createCache(1).graph, 3, 'temporal')).toEqual([]);
  });

  it('that is frequent stays among many that are not', () => {
    const { graph, read } = createCache(50, { edges: ['prefix_share'] });
    for (let i = 0; i < 300; i++) read(i % 3 === 0 ? 17 : 100 + (i % 97));
    expect(ends(graph, 1, 'prefix_share')).toContain(17);
  });
});

it('leaves in lower tiers are fetched ahead along the edges, likeliest first', () => {
  const { graph, read } = createCache(20, { edges: ['prefix_share'] });
  for (const text of [123, 123, 124, 13]) read(text);
  for (const key of [123, 124, 12, 13]) graph.noteMove(key, 'stored');
  expect(graph.suggestPrefetch([1], 9)).toEqual([12, 13, 123, 124]);
  expect(graph.suggestPrefetch([1], 1)).toEqual([12]);
  graph.noteMove(13, 'none');
  read(12);
  expect(graph.suggestPrefetch([1], 9)).toEqual([123, 124]);
  expect(graph.suggestPrefetch([99], 9)).toEqual([]);
});

itAll('has room for a million leaves', { timeout: 600_000 }, () => {
  const count = 2 ** 20;
  const before = process.memoryUsage();
  const graph = createKvGraph();
  const started = process.cpuUsage();
  for (let i = 0; i < count; i++) {
    graph.noteUse(i, i % 64 === 0 ? undefined : i - 1);
    graph.noteIdle(i);
  }
  const filled = process.cpuUsage(started);
  const turns = 100_000;
  for (let i = 0; i < turns; i++) {
    const key = graph.nextEviction()!;
    graph.noteMove(key, 'none');
    graph.noteUse(key, key % 64 === 0 ? undefined : key - 1);
    graph.noteIdle(key);
  }
  const turned = process.cpuUsage(started);
  const after = process.memoryUsage();
  const bytes = (after.heapUsed + after.arrayBuffers - before.heapUsed - before.arrayBuffers) / count;
  console.log(
    `${bytes.toFixed(0)} bytes per leaf; ${(filled.user / count).toFixed(1)} us of CPU time per new leaf, ` +
      `${((turned.user - filled.user) / turns).toFixed(1)} us per eviction and use`,
  );
  expect(bytes).toBeLessThan(512);
  // A step that took time in proportion to the number of leaves would take milliseconds.
  expect((turned.user - filled.user) / turns).toBeLessThan(1000);
});
