import fc from 'fast-check';
import { expect, it } from 'vitest';
import { packedPages, sealedPagesAt, sealPosition, skippedTokens, tailCapacity, visibleSinks } from './visibility.ts';

const shapes = fc.record({
  pageTokens: fc.constantFrom(1, 3, 16, 128),
  recent: fc.nat(300),
  sinks: fc.nat(300),
});

it('position n is read from codes if n >= sinks and n < floor((t - recent) / P) P, else from f16', () => {
  fc.assert(
    fc.property(shapes, fc.nat(1000), fc.nat(1000), (shape, t, back) => {
      const { pageTokens, recent, sinks } = shape;
      const n = Math.max(0, t - back);
      const rule = n >= sinks && n < Math.floor((t - recent) / pageTokens) * pageTokens;
      const sealed = sealedPagesAt(t, shape);
      const page = Math.floor(n / pageTokens);
      const skipped = n - page * pageTokens < skippedTokens(page * pageTokens, sealed, shape);
      expect(page < sealed && !skipped).toBe(rule);
      // Each position is read exactly once: from codes, from the sink block, or from the tail.
      const fromSinks = n < visibleSinks(sealed, shape);
      const fromTail = n >= sealed * pageTokens;
      expect([rule, fromSinks, fromTail].filter(Boolean)).toHaveLength(1);
      expect(t - sealed * pageTokens).toBeLessThan(tailCapacity(shape));
    }),
    { numRuns: 2000 },
  );
});

it('a page is sealed just before the first position that reads it from codes', () => {
  fc.assert(
    fc.property(shapes, fc.integer({ min: 1, max: 50 }), (shape, pages) => {
      const position = sealPosition(pages, shape);
      expect([sealedPagesAt(position - 1, shape), sealedPagesAt(position, shape)]).toEqual([pages - 1, pages]);
      expect(packedPages(position, shape)).toBe(pages - 1);
      expect(packedPages(position + 1, shape)).toBe(pages);
    }),
  );
});
