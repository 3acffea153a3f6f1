import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { itAll } from '../../../test/matrix.ts';
import { createKvGraph, type KvGraph, type KvGraphOptions } from './kv-graph.ts';

/** A graph with a cache of `capacity` leaves around it, which evicts what the graph says. */
function createCache(capacity: number, options?: KvGraphOptions) {
  const graph = createKvGraph(options);
  const cached = new Set<number>();
  const evicted: number[] = [];
  let time = 0;
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
        graph.noteUse(key, path[i - 1] ?? -1);
      });
      for (const key of path.toReversed()) graph.noteIdle(key, ++time);
    },
  };
}

const texts = fc.array(fc.integer({ min: 1, max: 5999 }), { maxLength: 120 });

describe('what to evict', () => {
  it('is suggested in the order in which it would be evicted, and suggesting changes nothing', () => {
    fc.assert(
      fc.property(texts, fc.nat(20), (list, count) => {
        const [one, other] = [createCache(12), createCache(12)];
        for (const text of list) {
          other.graph.suggestEviction(count);
          one.read(text);
          other.read(text);
        }
        expect(other.evicted).toEqual(one.evicted);
        const suggested = one.graph.suggestEviction(count).map(({ key }) => key);
        const { length } = one.evicted;
        for (let left = Math.min(count, one.cached.size); left > 0; left--) one.evict();
        expect(suggested).toEqual(one.evicted.slice(length));
      }),
    );
  });

  it('starts with the least recently used leaf, children before their parents', () => {
    const { graph, read } = createCache(10);
    for (const text of [12, 3, 14]) read(text);
    expect(graph.suggestEviction(9).map(({ key }) => key)).toEqual([12, 3, 14, 1]);
  });

  it('is nothing that is in use', () => {
    const graph = createKvGraph();
    graph.noteUse(1, -1);
    graph.noteUse(2, -1);
    graph.noteIdle(2, 1);
    expect(graph.suggestEviction(9)).toEqual([{ key: 2, idleSince: 1 }]);
    expect([graph.nextEviction(), graph.nextEviction()]).toEqual([2, undefined]);
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
  it('knows its uses, source and tier', () => {
    const { graph, read } = createCache(4);
    read(12);
    read(1);
    graph.noteSource(1, 'system');
    graph.noteMove(12, 'stored');
    expect(graph.leaf(1)).toMatchObject({ uses: 2, source: 'system', tier: 'device' });
    expect(graph.leaf(12)).toMatchObject({ uses: 1, source: 'unknown', tier: 'stored' });
    expect([...Array.from(graph.cachedBySource), graph.stored]).toEqual([0, 1, 0, 0, 0, 0, 1]);
    read(12);
    expect([...Array.from(graph.cachedBySource), graph.stored]).toEqual([1, 1, 0, 0, 0, 0, 0]);
    expect(graph.leaf(7)).toBeUndefined();
  });

  it('is important if it gets more attention than others, lately', () => {
    const { graph, read } = createCache(4);
    read(12);
    graph.noteAttention([1, 12], [0.3, 0.1]);
    expect([graph.leaf(1)?.importance, graph.leaf(12)?.importance]).toEqual([1.5, 0.5]);
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

itAll('has room for a million leaves', () => {
  const count = 2 ** 20;
  const before = process.memoryUsage();
  const graph = createKvGraph();
  const started = performance.now();
  for (let i = 0; i < count; i++) {
    graph.noteUse(i, i % 64 === 0 ? -1 : i - 1);
    graph.noteIdle(i, i);
  }
  const filled = performance.now();
  for (let i = 0; i < 100_000; i++) {
    const key = graph.nextEviction()!;
    graph.noteMove(key, 'none');
    graph.noteUse(key, key % 64 === 0 ? -1 : key - 1);
    graph.noteIdle(key, count + i);
  }
  const turned = performance.now();
  expect(graph.suggestEviction(256)).toHaveLength(256);
  const [cycle, after] = [performance.now() - turned, process.memoryUsage()];
  const bytes = (after.heapUsed + after.arrayBuffers - before.heapUsed - before.arrayBuffers) / count;
  console.log(
    `${bytes.toFixed(0)} bytes per leaf; ${((1000 * (filled - started)) / count).toFixed(1)} us per new leaf, ` +
      `${((turned - filled) / 100).toFixed(1)} us per eviction and use, ${cycle.toFixed(1)} ms per 256 suggestions`,
  );
  expect(bytes).toBeLessThan(512);
  // A busy machine may be ten times slower than a quiet one.
  expect(cycle).toBeLessThan(500);
});
