import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createHeap } from './heap.ts';

it('returns the first of its items, whatever was pushed, popped and filtered before', () => {
  const operation = fc.oneof(
    { weight: 4, arbitrary: fc.record({ push: fc.nat(50) }) },
    { weight: 3, arbitrary: fc.constant('pop' as const) },
    { weight: 1, arbitrary: fc.record({ keepBelow: fc.nat(50) }) },
  );
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 60 }), operations => {
      const heap = createHeap<number>((a, b) => a < b);
      let expected: number[] = [];
      for (const one of operations) {
        if (one === 'pop') {
          expect(heap.pop()).toBe(expected.shift());
        } else if ('push' in one) {
          heap.push(one.push);
          expected = [...expected, one.push].sort((a, b) => a - b);
        } else {
          heap.filter(item => item < one.keepBelow);
          expected = expected.filter(item => item < one.keepBelow);
        }
        expect(heap.size).toBe(expected.length);
      }
    }),
  );
});
