import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createLru } from './eviction.ts';

interface Candidate {
  name: string;
  lastUsed: number;
}
const candidate = (name: string, lastUsed: number): Candidate => ({ name, lastUsed });

describe('the least recently used order', () => {
  it('has no next candidate while it is empty', () => {
    expect(createLru().next()).toBeUndefined();
  });

  it('returns candidates by their last use, each once', () => {
    const lru = createLru<Candidate>();
    for (const one of [candidate('b', 2), candidate('c', 3), candidate('a', 1)]) lru.add(one);
    expect([lru.next()?.name, lru.next()?.name, lru.next()?.name, lru.next()]).toEqual(['a', 'b', 'c', undefined]);
  });

  it('moves a candidate back when it is used and added again', () => {
    const lru = createLru<Candidate>();
    const a = candidate('a', 1);
    lru.add(a);
    lru.add(candidate('b', 2));
    a.lastUsed = 3;
    lru.add(a);
    expect([lru.next()?.name, lru.next()?.name, lru.next()]).toEqual(['b', 'a', undefined]);
  });

  it('skips a candidate that was used since and is still in use', () => {
    const lru = createLru<Candidate>();
    const a = candidate('a', 1);
    lru.add(a);
    a.lastUsed = 2;
    expect(lru.next()).toBeUndefined();
  });

  it('agrees with sorting, whatever was added and used', () => {
    const steps = fc.array(fc.oneof(fc.record({ use: fc.nat(9) }), fc.constant('next' as const)), { maxLength: 200 });
    fc.assert(
      fc.property(steps, list => {
        const lru = createLru<Candidate>();
        const all = Array.from({ length: 10 }, (_, i) => candidate(`${i}`, 0));
        let waiting: Candidate[] = [];
        let clock = 0;
        for (const step of list) {
          waiting.sort((a, b) => a.lastUsed - b.lastUsed);
          if (step === 'next') expect(lru.next()).toBe(waiting.shift());
          else {
            const used = all[step.use];
            used.lastUsed = ++clock;
            lru.add(used);
            waiting = [...waiting.filter(one => one !== used), used];
          }
        }
      }),
    );
  });

  it('forgets outdated entries when the same candidates are used over and over without any eviction', () => {
    const lru = createLru<Candidate>();
    let reads = 0;
    const all = Array.from({ length: 100 }, (_, i) => {
      let lastUsed = 0;
      return {
        name: `${i}`,
        get lastUsed() {
          reads++;
          return lastUsed;
        },
        set lastUsed(time) {
          lastUsed = time;
        },
      };
    });
    for (let clock = 1; clock <= 100_000; clock++) {
      const used = all[clock % all.length];
      used.lastUsed = clock;
      lru.add(used);
    }
    reads = 0;
    expect(all.map(() => lru.next()).sort((a, b) => Number(a?.name) - Number(b?.name))).toEqual(all);
    expect(lru.next()).toBeUndefined();
    expect(reads).toBeLessThan(10_000);
  });
});
