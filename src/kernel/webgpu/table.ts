/**
 * Who attends to what, as words for the kernels: made once for the runs of a step and used by all layers. Rows are cut
 * into batches so that the partial states of one fit into a buffer of bounded size.
 */
import type { KvRun } from '../device.ts';
import { skippedTokens, visibleSinks } from '../visibility.ts';
import { HALF_TOKENS } from './kernels/sources.ts';
import { TURNED_PAGES } from './kernels/teams/turned.ts';
import type { GpuBlock } from './pool.ts';

/** Items of the kernel for one row, and of the one for several. */
export interface Items {
  one: Range;
  many: Range;
}

export interface Range {
  /** First word, from the start of the table. */
  word: number;
  count: number;
}

export interface Batch {
  pages: Items;
  /** Pages whose keys have queries of their own. */
  turned: Range;
  halves: Items;
  finish: Range;
  pageStates: number;
  halfStates: number;
}

export interface Table {
  words: Uint32Array;
  batches: Batch[];
}

interface Lists {
  one: number[][];
  many: number[][];
}

/** Tokens of tails and sinks that a workgroup takes. */
const SPAN = 4 * HALF_TOKENS;

/** Units of `split` pages, or of some tokens of f16, are a workgroup's. */
export function attendTable(runs: readonly KvRun[], tile: number, split: number, mostStates: number): Table {
  const words: number[] = [];
  const put = (rows: readonly (readonly number[])[]): Range => {
    const word = words.length;
    for (const row of rows) words.push(...row);
    return { word, count: rows.length };
  };
  const items = ({ one, many }: Lists): Items => ({ one: put(one), many: put(many) });
  const batches: Batch[] = [];
  let [pages, turned, halves, finish]: [Lists, number[][], Lists, number[][]] = [lists(), [], lists(), []];
  let [pageStates, halfStates] = [0, 0];
  const close = () => {
    if (finish.length === 0) return;
    batches.push({
      pages: items(pages),
      turned: put(turned),
      halves: items(halves),
      finish: put(finish),
      pageStates,
      halfStates,
    });
    [pages, turned, halves, finish] = [lists(), [], lists(), []];
    [pageStates, halfStates] = [0, 0];
  };

  for (const run of runs) {
    const { view, row, count, position, sealed } = run;
    const { pageTokens } = view.shape;
    const leaves = view.leaves.slice(0, sealed - view.firstLeaf).map(leaf => (leaf as GpuBlock).slot);
    const list = put([leaves]).word;
    const sealedTokens = sealed * pageTokens;
    const sinkCount = visibleSinks(sealed, view.shape);
    const skip = skippedTokens(view.firstLeaf * pageTokens, sealed, view.shape);
    const units = Math.ceil(leaves.length / split);
    // Rows of a run differ in how much of the tail they see, so each has the units that the last one has.
    const tailUnits = Math.ceil((position + count - sealedTokens) / SPAN);
    const sinkUnits = Math.ceil(sinkCount / SPAN);
    const halfUnits = tailUnits + sinkUnits;
    const step = count === 1 ? 1 : tile;
    for (let first = 0; first < count; first += step) {
      const n = Math.min(step, count - first);
      if (finish.length > 0 && pageStates + halfStates + n * (units + halfUnits) > mostStates) close();
      const [pageItems, halfItems] = step === 1 ? [pages.one, halves.one] : [pages.many, halves.many];
      for (let u = 0; u < units; u++) {
        const left = Math.max(0, skip - u * split * pageTokens);
        const pagesOf = Math.min(split, leaves.length - u * split);
        pageItems.push([
          row + first,
          n,
          list + u * split,
          pagesOf,
          left,
          pageStates + u,
          units,
          view.firstLeaf + u * split,
          0,
        ]);
      }
      for (let page = 0; page < leaves.length; page += TURNED_PAGES) {
        const pagesOf = Math.min(TURNED_PAGES, leaves.length - page);
        turned.push([row + first, n, pageStates * split + page, units * split, pagesOf, view.firstLeaf + page]);
      }
      const half = (sink: number, slot: number, u: number, from: number, end: number, at: number) => {
        const tokens = Math.min(SPAN, end + (sink ? 0 : n - 1) - from);
        const rounds = Math.max(0, Math.ceil(tokens / HALF_TOKENS));
        halfItems.push([row + first, n, sink, rounds, slot, halfStates + at + u, halfUnits, from, end]);
      };
      for (let u = 0; u < sinkUnits; u++) half(1, (view.sinkBlock as GpuBlock).slot, u, u * SPAN, sinkCount, 0);
      for (let u = 0; u < tailUnits; u++)
        half(0, (view.tail as GpuBlock).slot, u, sealedTokens + u * SPAN, position + first + 1, sinkUnits);
      for (let r = 0; r < n; r++) {
        finish.push([row + first + r, pageStates + r * units, units, halfStates + r * halfUnits, halfUnits]);
      }
      pageStates += n * units;
      halfStates += n * halfUnits;
    }
  }
  close();
  return { words: Uint32Array.from(words), batches };
}

const lists = (): Lists => ({ one: [], many: [] });
