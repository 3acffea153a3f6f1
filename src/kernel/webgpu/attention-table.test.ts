import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { KvRun } from '../device.ts';
import { buildAttentionTable, type Range } from './attention-table.ts';
import { F16_ITEM, PAGE_ITEM } from './kernels/work-items.ts';

const PAGE_TOKENS = 32;
const [SPLIT, MAX_STATES] = [4, 40];

/** A sequence of `pages` sealed pages; blocks are their slots. */
function runOf(row: number, { pages, count, window }: { pages: number; count: number; window?: number }): KvRun {
  const block = (slot: number) => ({ slot, pool: { hasMemory: () => true } });
  const view = {
    shape: { pageTokens: PAGE_TOKENS, sinks: 4, tailTokens: 64, layers: [{ window }] },
    leaves: Array.from({ length: pages }, (_, i) => block(i)),
    firstLeaf: 0,
    tail: [block(7), block(8), block(9), block(10)],
    sinkBlock: block(11),
  };
  return { view, row, count, position: pages * PAGE_TOKENS + 3, sealedPages: pages } as unknown as KvRun;
}

const someRuns = fc
  .array(
    fc.record({
      pages: fc.integer({ min: 0, max: 11 }),
      count: fc.integer({ min: 1, max: 29 }),
      window: fc.option(fc.integer({ min: 1, max: 200 }), { nil: undefined }),
    }),
    { minLength: 1, maxLength: 3 },
  )
  .map(shapes => {
    let row = 0;
    return shapes.map(shape => {
      const run = runOf(row, shape);
      row += shape.count;
      return run;
    });
  });

it.each([
  ['decoded rows', { tile: 2 }],
  ['rows of prompts, whose pages have larger tiles', { tile: 2, pageTile: 10 }],
])('%s: each state of a row is written by one item, and a batch has room for its states', (_, tiles) => {
  fc.assert(
    fc.property(someRuns, runs => {
      const { words, batches } = buildAttentionTable(runs, {
        ...tiles,
        pagesPerSplit: SPLIT,
        maxStates: MAX_STATES,
        layer: 0,
      });
      const lines = ({ word, count }: Range, size: number) =>
        Array.from({ length: count }, (_, n) => words.subarray(word + n * size, word + (n + 1) * size));
      const seen: number[] = [];
      for (const { pages, f16, rows, pageStates, f16States } of batches) {
        const writers = (kinds: Range[], { words: size }: { words: number }, first: number, stride: number) => {
          const rowsOfStates = new Map<number, number>();
          for (const item of kinds.flatMap(kind => lines(kind, size)))
            for (let r = 0; r < item[1]; r++) {
              const state = item[first] + r * item[stride];
              expect(rowsOfStates.has(state)).toBe(false);
              rowsOfStates.set(state, item[0] + r);
            }
          return rowsOfStates;
        };
        const ofPages = writers([pages.singleRow, pages.rowTile], PAGE_ITEM, 5, 6);
        const ofF16 = writers([f16.singleRow, f16.rowTile], F16_ITEM, 5, 6);
        const all = lines(rows, 5);
        for (const [row, firstPage, pageSplits, firstF16, f16Splits] of all) {
          seen.push(row);
          for (let u = 0; u < pageSplits; u++) expect(ofPages.get(firstPage + u)).toBe(row);
          for (let u = 0; u < f16Splits; u++) expect(ofF16.get(firstF16 + u)).toBe(row);
        }
        expect(Math.max(-1, ...ofPages.keys())).toBeLessThan(pageStates);
        expect(Math.max(-1, ...ofF16.keys())).toBeLessThan(f16States);
        if (all.length > tiles.tile) expect(pageStates + f16States).toBeLessThanOrEqual(MAX_STATES);
      }
      expect(seen).toEqual(runs.flatMap(({ row, count }) => Array.from({ length: count }, (_, i) => row + i)));
    }),
  );
});
