/**
 * Work items of the attention kernels, as words: built once per step and used by all layers. Rows are divided into batches,
 * to bound the buffer of partial states.
 */
import type { KvRun } from '../device.ts';
import { firstVisible, pagesOf, skippedTokens, visibleSinks } from '../visibility.ts';
import { PAGES_PER_WORKGROUP } from './kernels/four-subgroups/page-relative.ts';
import { F16_TOKENS_PER_ROUND } from './kernels/sources.ts';
import { F16_ITEM, PAGE_ITEM, QUERY_ITEM } from './kernels/work-items.ts';
import type { GpuBlock } from './pool.ts';
import { tailSlots } from './tensor.ts';

/** Items of the kernel for single rows, and of the kernel for tiles of rows. */
export interface WorkItems {
  singleRow: Range;
  rowTile: Range;
}

export interface Range {
  /** Offset in the table. */
  word: number;
  count: number;
}

export interface Batch {
  pages: WorkItems;
  /** Pages that need their own transformed queries. */
  pageQueries: Range;
  f16: WorkItems;
  rows: Range;
  pageStates: number;
  f16States: number;
}

export interface AttentionTable {
  words: Uint32Array;
  batches: Batch[];
}

interface ItemLists {
  singleRow: number[][];
  rowTile: number[][];
}

/** Tokens of tails and sinks per workgroup. */
const F16_SPLIT_TOKENS = 4 * F16_TOKENS_PER_ROUND;

/** Before all positions, also relative to the last page. */
const NO_WINDOW = -(2 ** 30);

interface TableOptions {
  /** Rows per item, for runs of several rows. */
  tile: number;
  /** The same for items of pages, and for single rows too: a multiple of `tile`. Default: `tile`. */
  pageTile?: number;
  pagesPerSplit: number;
  maxStates: number;
  layer: number;
}

/** An item is one workgroup: a row or tile of rows, and a split of pages or F16_SPLIT_TOKENS f16 tokens. */
export function buildAttentionTable(
  runs: readonly KvRun[],
  { tile, pageTile, pagesPerSplit: split, maxStates, layer }: TableOptions,
): AttentionTable {
  const words: number[] = [];
  const put = (lines: readonly (readonly number[])[]): Range => {
    const word = words.length;
    for (const line of lines) words.push(...line);
    return { word, count: lines.length };
  };
  const items = ({ singleRow, rowTile }: ItemLists): WorkItems => ({
    singleRow: put(singleRow),
    rowTile: put(rowTile),
  });
  const batches: Batch[] = [];
  let [pages, pageQueries, f16, rows]: [ItemLists, number[][], ItemLists, number[][]] = [lists(), [], lists(), []];
  let [pageStates, f16States] = [0, 0];
  const endBatch = () => {
    if (rows.length === 0) return;
    batches.push({
      pages: items(pages),
      pageQueries: put(pageQueries),
      f16: items(f16),
      rows: put(rows),
      pageStates,
      f16States,
    });
    [pages, pageQueries, f16, rows] = [lists(), [], lists(), []];
    [pageStates, f16States] = [0, 0];
  };

  for (const run of runs) {
    const { view, row, count, position, sealedPages } = run;
    const { pageTokens, layers } = view.shape;
    const { window } = layers[layer];
    const pageCount = sealedPages - view.firstLeaf;
    /** How many of the pages are before the window of row r. */
    const unreadPages = (r: number) => {
      const first = Math.floor(firstVisible(position + r, window) / pageTokens);
      return Math.min(pageCount, Math.max(0, first - view.firstLeaf));
    };
    // A split that begins before all windows has another page there, which is masked.
    const slots = pagesOf(view, layer)
      .slice(unreadPages(0), pageCount)
      .map(page => (page as GpuBlock).slot);
    const list = put([[...Array<number>(unreadPages(0)).fill(slots[0]), ...slots]]).word;
    const tail = put([tailSlots(view)]).word;
    const sealedTokens = sealedPages * pageTokens;
    const sinkCount = visibleSinks(sealedPages, view.shape);
    const skip = skippedTokens(view.firstLeaf * pageTokens, sealedPages, view.shape);
    /** Splits begin at the same pages for all rows, so that a row's sums do not depend on its tile. */
    const splitsOf = (unread: number) =>
      unread < pageCount ? Math.ceil(pageCount / split) - Math.floor(unread / split) : 0;
    // Rows of a run see different amounts of the tail; all get as many splits as the last row.
    const tailSplits = Math.ceil((position + count - sealedTokens) / F16_SPLIT_TOKENS);
    const sinkSplits = Math.ceil(sinkCount / F16_SPLIT_TOKENS);
    const f16Splits = tailSplits + sinkSplits;
    const f16Step = count === 1 ? 1 : tile;
    const step = pageTile ?? f16Step;
    for (let first = 0, n = 0; first < count; first += n) {
      const unread = unreadPages(first);
      const pageSplits = splitsOf(unread);
      const room = f16Step * Math.max(1, Math.floor(maxStates / (pageSplits + f16Splits) / f16Step));
      n = Math.min(step, room, count - first);
      const firstPage = split * Math.floor(unread / split);
      const windowStart = window ? position + first + 1 - window : NO_WINDOW;
      if (rows.length > 0 && pageStates + f16States + n * (pageSplits + f16Splits) > maxStates) endBatch();
      const pageItems = step === 1 ? pages.singleRow : pages.rowTile;
      const f16Items = f16Step === 1 ? f16.singleRow : f16.rowTile;
      for (let u = 0; u < pageSplits; u++) {
        const page = firstPage + u * split;
        const start = (view.firstLeaf + page) * pageTokens;
        pageItems.push(
          PAGE_ITEM.write({
            row: row + first,
            rows: n,
            slots: list + page,
            rounds: Math.min(split, pageCount - page),
            skippedTokens: Math.max(0, skip - page * pageTokens),
            firstState: pageStates + u,
            stateStride: pageSplits,
            firstPage: view.firstLeaf + page,
            firstRound: Math.max(0, unread - page),
            windowStart: windowStart - start,
          }),
        );
      }
      for (let page = firstPage; pageSplits > 0 && page < pageCount; page += PAGES_PER_WORKGROUP)
        pageQueries.push(
          QUERY_ITEM.write({
            row: row + first,
            rows: n,
            target: pageStates * split + page - firstPage,
            targetStride: pageSplits * split,
            pages: Math.min(PAGES_PER_WORKGROUP, pageCount - page),
            firstPage: view.firstLeaf + page,
          }),
        );
      for (let part = 0; part < n; part += f16Step) {
        const partRows = Math.min(f16Step, n - part);
        const partStart = windowStart + part;
        const seen = position + first + part + 1;
        const addF16 = (sink: number, slot: number, u: number, from: number, end: number, at: number) => {
          const tokens = Math.min(F16_SPLIT_TOKENS, end + (sink ? 0 : partRows - 1) - from);
          const isVisible = from + tokens > partStart;
          const rounds = isVisible ? Math.max(0, Math.ceil(tokens / F16_TOKENS_PER_ROUND)) : 0;
          f16Items.push(
            F16_ITEM.write({
              row: row + first + part,
              rows: partRows,
              isSinks: sink,
              rounds,
              slots: slot,
              firstState: f16States + part * f16Splits + at + u,
              stateStride: f16Splits,
              firstToken: from,
              endToken: end,
              windowStart: partStart,
            }),
          );
        };
        for (let u = 0; u < sinkSplits; u++)
          addF16(1, (view.sinkBlock as GpuBlock).slot, u, u * F16_SPLIT_TOKENS, sinkCount, 0);
        for (let u = 0; u < tailSplits; u++) addF16(0, tail, u, sealedTokens + u * F16_SPLIT_TOKENS, seen, sinkSplits);
      }
      for (let r = 0; r < n; r++) {
        const ownSplits = splitsOf(unreadPages(first + r));
        const firstState = pageStates + (r + 1) * pageSplits - ownSplits;
        rows.push([row + first + r, firstState, ownSplits, f16States + r * f16Splits, f16Splits]);
      }
      pageStates += n * pageSplits;
      f16States += n * f16Splits;
    }
  }
  endBatch();
  return { words: Uint32Array.from(words), batches };
}

const lists = (): ItemLists => ({ singleRow: [], rowTile: [] });
