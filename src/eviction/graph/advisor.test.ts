import { describe, expect, it } from 'vitest';
import type { Evictable } from '../eviction.ts';
import { createAdvisedPolicy } from './advisor.ts';
import { createAdvisorCycle } from './advisor-cycle.ts';
import { BATCH, createSharedMemory, EVENT, MAX_EVENTS, openAdvisorSide, openCacheSide } from './shared-memory.ts';

/** A policy and the cycle of its advisor, in one thread, with a clock that the test moves. */
function createAdvised() {
  const memory = createSharedMemory();
  const clock = { now: Date.now() };
  const policy = createAdvisedPolicy<Evictable>(memory, () => clock.now);
  const leaves = new Map<number, Evictable & { lastUsed: number }>();
  let time = 0;
  return {
    memory,
    clock,
    policy,
    cycle: createAdvisorCycle(memory),
    /** Leaves without parents, used one after the other. */
    use(...keys: number[]) {
      for (const key of keys) {
        const leaf = leaves.get(key) ?? { key, lastUsed: 0, uses: 0 };
        leaves.set(key, leaf);
        policy.use!(leaf);
        leaf.lastUsed = ++time;
        policy.idle!(leaf);
        policy.add(leaf);
      }
    },
    evict() {
      const leaf = policy.next();
      if (leaf) policy.remove!(leaf);
      if (leaf) leaves.delete(leaf.key);
      return leaf?.key;
    },
  };
}

describe('a cache with an advisor', () => {
  it('evicts by LRU before the first ranking, and then by the rankings', () => {
    const { policy, cycle, use, evict } = createAdvised();
    use(1, 2, 3, 4);
    expect(evict()).toBe(1);
    expect(policy.stats).toEqual({ ranked: 0, stale: 1, usedUp: 0, lostEvents: 0 });
    cycle.run();
    expect([evict(), evict()]).toEqual([2, 3]);
    expect(policy.stats).toMatchObject({ ranked: 2, stale: 1 });
  });

  it('does not use a ranking that is older than two seconds', () => {
    const { policy, clock, cycle, use, evict } = createAdvised();
    use(1, 2, 3, 4);
    cycle.run();
    clock.now = Date.now() + 1500;
    expect(evict()).toBe(1);
    expect(policy.stats.ageMs).toBeGreaterThanOrEqual(1500);
    expect(policy.stats.ageMs).toBeLessThan(2000);
    clock.now += 1000;
    expect(evict()).toBe(2);
    expect(policy.stats).toMatchObject({ ranked: 1, stale: 1 });
    cycle.run();
    clock.now = Date.now();
    expect(evict()).toBe(3);
    expect(policy.stats).toMatchObject({ ranked: 2, stale: 1 });
  });

  it('skips what was used since the ranking was made, and goes on with LRU when it is used up', () => {
    const { policy, cycle, use, evict } = createAdvised();
    use(1, 2, 3);
    cycle.run();
    use(1, 4);
    expect([evict(), evict(), evict(), evict(), evict()]).toEqual([2, 3, 1, 4, undefined]);
    expect(policy.stats).toMatchObject({ ranked: 2, usedUp: 3 });
  });

  it('follows the graph: what comes back is kept, what comes once is not', () => {
    const advised = createAdvised();
    const held = new Set<number>();
    let hits = 0;
    for (let i = 0; i < 6000; i++) {
      // A loop over 60 leaves, in a cache of 40: LRU never hits.
      const key = i % 60;
      if (held.has(key)) hits++;
      else if (held.size === 40) held.delete(advised.evict()!);
      held.add(key);
      advised.use(key);
      if (i % 8 === 0) advised.cycle.run();
    }
    expect(hits / 6000).toBeGreaterThan(0.35);
    expect(advised.policy.stats).toMatchObject({ stale: 0, lostEvents: 0 });
  });

  it('goes on when events are lost, and tells the advisor what it has missed', () => {
    const { policy, cycle, use, evict } = createAdvised();
    use(1, 2);
    cycle.run();
    for (let i = 0; i < MAX_EVENTS; i++) use(3);
    expect(evict()).toBe(1);
    expect(policy.stats.lostEvents).toBeGreaterThan(MAX_EVENTS);
    // The advisor has not heard that 1 is gone, and ranks it again.
    while (!cycle.run());
    expect([evict(), evict(), evict()]).toEqual([2, 3, undefined]);
  });
});

describe('the shared memory', () => {
  it('passes on events in order, also around the end of the ring', () => {
    const memory = createSharedMemory();
    const [cache, advisor] = [openCacheSide(memory), openAdvisorSide(memory)];
    const count = 0.75 * MAX_EVENTS;
    let read = 0;
    let wrong = 0;
    for (let round = 0; round < 3; round++) {
      for (let i = 0; i < count; i++) cache.write(EVENT.use, round * count + i, -1);
      advisor.read(
        (kind, key, parent) => {
          if (kind !== EVENT.use || key !== read || parent !== -1) wrong++;
          read++;
        },
        () => false,
      );
    }
    expect([read, wrong]).toEqual([3 * count, 0]);
  });

  it('shows one whole ranking, the newest', () => {
    const memory = createSharedMemory();
    const [cache, advisor] = [openCacheSide(memory), openAdvisorSide(memory)];
    const publish = (from: number, count: number) =>
      advisor.publish(
        Array.from({ length: count }, (_, i) => ({ key: from + i, idleSince: i })),
        { stored: from, cachedBySource: [1, 2, 3, 4, 5, from] },
        from,
        1,
      );
    expect(cache.advance()).toBe(false);
    publish(1000, BATCH);
    expect([cache.advance(), cache.key, cache.advance(), cache.key]).toEqual([true, 1000, true, 1001]);
    publish(2000, 2);
    expect([cache.advance(), cache.key, cache.idleSince, cache.published]).toEqual([true, 2000, 0, 2000]);
    expect([cache.advance(), cache.key, cache.advance()]).toEqual([true, 2001, false]);
    expect([cache.stored, cache.cachedOf(1), cache.cachedOf(5)]).toEqual([2000, 2, 2000]);
  });
});
