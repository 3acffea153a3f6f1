import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createTopK } from './top-k.ts';

it('equals the start of a full sort; the lower id wins ties', () => {
  const select = createTopK();
  const value = fc.oneof(fc.constantFrom(0, 1, 2, -Infinity), fc.float({ noNaN: true }));
  fc.assert(
    fc.property(fc.array(value, { maxLength: 100 }), fc.constantFrom(1, 30), fc.nat(1000), (list, times, n) => {
      const values = Float32Array.from(new Array(times).fill(list).flat());
      const { ids, count } = select(values, n);
      const sorted = Array.from(values.keys()).sort((a, b) => values[b]! - values[a]! || a - b);
      // -Infinity minus itself is NaN, which the comparison above reads as equal: the lower id, as it should be.
      expect([...ids.subarray(0, count)]).toEqual(sorted.slice(0, n));
    }),
  );
});
