import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createTracePolicy, tracePolicyNames } from '../bench/trace/policies.ts';
import { createPool } from '../src/cache/pool.ts';
import { createPrefixIndex, type PrefixEvent } from '../src/cache/prefix.ts';
import type { Leaf, PrefixNode } from '../src/cache/prefix-node.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';

/** Runs requests through an index; returns its events. `overlap` requests are in use at a time. */
function run(name: string, requests: readonly number[][], capacity: number, overlap = 1): PrefixEvent[] {
  const events: PrefixEvent[] = [];
  const pool = createPool(createJsDevice(), {
    capacity,
    reclaim: () => index.evict(),
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  const index = createPrefixIndex(() => pool, {
    pageTokens: 1,
    policy: createTracePolicy(name),
    onEvent: event => events.push(event),
  });
  const running: Leaf[][] = [];
  const end = () => {
    for (const leaf of running.shift()!.reverse()) pool.release(leaf);
  };
  for (const request of requests) {
    if (running.length === overlap) end();
    const path = index.find('', request, request.length);
    const held = path.map(({ leaf }) => pool.retain(leaf!));
    let node: PrefixNode | undefined = path.at(-1);
    for (const block of request.slice(path.length)) {
      const leaf = pool.allocate(1, [0]);
      held.push(leaf);
      node = index.insert(node ?? index.root(''), [block], leaf);
    }
    running.push(held);
    expect(request.every(block => held.some(({ node }) => node?.tokens[0] === block))).toBe(true);
  }
  while (running.length > 0) end();
  expect(index.size).toBe(pool.used);
  expect(index.size).toBeLessThanOrEqual(capacity);
  while (index.evict());
  expect(index.size).toBe(0);
  return events;
}

/** The tokens of what was evicted, in order. */
function evicted(events: readonly PrefixEvent[]): number[] {
  const tokens = new Map(events.flatMap(event => (event.type === 'stored' ? [[event.id, event.tokens[0]]] : [])));
  return events.flatMap(event => (event.type === 'removed' ? [tokens.get(event.id)!] : []));
}

const requestsOf = (blocks: number) =>
  fc.array(fc.array(fc.nat(blocks), { minLength: 1, maxLength: 5 }), { maxLength: 120 });

describe.each(tracePolicyNames.filter(name => name !== 'belady'))('the policy %s', name => {
  it('evicts only what nobody uses, and children before their parents', () => {
    fc.assert(
      fc.property(requestsOf(3), fc.integer({ min: 1, max: 3 }), (requests, overlap) => {
        const parents = new Map<number, number>();
        for (const event of run(name, requests, 16, overlap)) {
          if (event.type === 'stored') parents.set(event.id, event.parent);
          else {
            parents.delete(event.id);
            expect([...parents.values()]).not.toContain(event.id);
          }
        }
      }),
      { numRuns: 50 },
    );
  });

  it('gives the same order every time', () => {
    fc.assert(
      fc.property(requestsOf(4), requests => {
        expect(run(name, requests, 8)).toEqual(run(name, requests, 8));
      }),
      { numRuns: 20 },
    );
  });
});

it.each([
  // 1 is used twice, then 2, 3 and 4 come; three fit.
  { name: 'fifo', order: [1, 2, 3, 4] },
  { name: 'lru', order: [1, 2, 3, 4] },
  { name: 'lfu', order: [2, 3, 4, 1] },
  { name: 's3fifo', order: [1, 2, 3, 4] },
  { name: 'graph', order: [1, 2, 3, 4] },
])('$name evicts $order', ({ name, order }) => {
  expect(evicted(run(name, [[1], [1], [2], [3], [4]], 3))).toEqual(order);
});

it('lfu with remembered counts knows a leaf that comes back', () => {
  const requests = [[1], [1], [1], [2], [2], [2], [2], [3], [3], [3], [3], [1], [4]];
  // 1 was evicted after three uses and is used again: now it is worth as much as 2 and 3, and more recent.
  expect(evicted(run('lfu-remembered', requests, 2)).slice(0, 3)).toEqual([1, 2, 3]);
  expect(evicted(run('lfu', requests, 2)).slice(0, 3)).toEqual([1, 2, 1]);
});

it('rejects an unknown name and suggests one', () => {
  expect(() => createTracePolicy('s3-fifo')).toThrow('Unknown eviction policy "s3-fifo". Did you mean s3fifo?');
});
