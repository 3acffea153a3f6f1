import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createMemory, MAX_REMEMBERED } from '../bench/trace/memory.ts';

it('remembers the newest keys', () => {
  const steps = fc.array(fc.record({ key: fc.nat(9), take: fc.boolean() }), { maxLength: 100 });
  fc.assert(
    fc.property(steps, fc.nat(4), (list, max) => {
      const memory = createMemory<string>(() => max);
      /** The reference: a list, oldest first. */
      let known: number[] = [];
      for (const { key, take } of list) {
        if (take) expect(memory.take(key)).toBe(known.includes(key) ? `${key}` : undefined);
        else memory.put(key, `${key}`);
        known = known.filter(other => other !== key);
        if (!take) known = [...known, key].slice(Math.max(0, known.length + 1 - max));
        expect(memory.size).toBe(known.length);
      }
    }),
  );
});

it('forgets a key as fast as it remembers one', () => {
  const memory = createMemory<true>();
  const time = (from: number) => {
    const started = performance.now();
    for (let key = from; key < from + MAX_REMEMBERED; key++) memory.put(key, true);
    return performance.now() - started;
  };
  const filling = time(0);
  expect(time(MAX_REMEMBERED)).toBeLessThan(20 * filling);
  expect(memory.size).toBe(MAX_REMEMBERED);
});
