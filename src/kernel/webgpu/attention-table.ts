/**
 * Work items of the attention kernels, as words: built once per step and used by all layers. Rows are divided into batches,
 * to bound the buffer of partial states.
 */
import type { KvRun } from '../device.ts';
import { skippedTokens, visibleSinks } from '../visibility.ts';
import { PAGES_PER_WORKGROUP } from './kernels/four-subgroups/page-relative.ts';
import { F16_TOKENS_PER_ROUND } from './kernels/sources.ts';
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

/** An item is one workgroup: a row or tile of rows, and `split` pages or F16_SPLIT_TOKENS f16 tokens. */
export function buildAttentionTable(
  runs: readonly KvRun[],
  tile: number,
  split: number,
  maxStates: number,
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
    const { pageTokens } = view.shape;
    const leaves = view.leaves.slice(0, sealedPages - view.firstLeaf).map(leaf => (leaf as GpuBlock).slot);
    const list = put([leaves]).word;
    const tail = put([tailSlots(view)]).word;
    const sealedTokens = sealedPages * pageTokens;
    const sinkCount = visibleSinks(sealedPages, view.shape);
    const skip = skippedTokens(view.firstLeaf * pageTokens, sealedPages, view.shape);
    const pageSplits = Math.ceil(leaves.length / split);
    // Rows of a run see different amounts of the tail; all get as many splits as the last row.
    const tailSplits = Math.ceil((position + count - sealedTokens) / F16_SPLIT_TOKENS);
    const sinkSplits = Math.ceil(sinkCount / F16_SPLIT_TOKENS);
    const f16Splits = tailSplits + sinkSplits;
    const step = count === 1 ? 1 : tile;
    for (let first = 0; first < count; first += step) {
      const n = Math.min(step, count - first);
      if (rows.length > 0 && pageStates + f16States + n * (pageSplits + f16Splits) > maxStates) endBatch();
      const [pageItems, f16Items] = step === 1 ? [pages.singleRow, f16.singleRow] : [pages.rowTile, f16.rowTile];
      for (let u = 0; u < pageSplits; u++) {
        const skipped = Math.max(0, skip - u * split * pageTokens);
        const pageCount = Math.min(split, leaves.length - u * split);
        pageItems.push([
          row + first,
          n,
          list + u * split,
          pageCount,
          skipped,
          pageStates + u,
          pageSplits,
          view.firstLeaf + u * split,
          0,
        ]);
      }
      for (let page = 0; page < leaves.length; page += PAGES_PER_WORKGROUP) {
        const pageCount = Math.min(PAGES_PER_WORKGROUP, leaves.length - page);
        pageQueries.push([
          row + first,
          n,
          pageStates * split + page,
          pageSplits * split,
          pageCount,
          view.firstLeaf + page,
        ]);
      }
      const addF16 = (sink: number, slot: number, u: number, from: number, end: number, at: number) => {
        const tokens = Math.min(F16_SPLIT_TOKENS, end + (sink ? 0 : n - 1) - from);
        const rounds = Math.max(0, Math.ceil(tokens / F16_TOKENS_PER_ROUND));
        f16Items.push([row + first, n, sink, rounds, slot, f16States + at + u, f16Splits, from, end]);
      };
      for (let u = 0; u < sinkSplits; u++)
        addF16(1, (view.sinkBlock as GpuBlock).slot, u, u * F16_SPLIT_TOKENS, sinkCount, 0);
      for (let u = 0; u < tailSplits; u++)
        addF16(0, tail, u, sealedTokens + u * F16_SPLIT_TOKENS, position + first + 1, sinkSplits);
      for (let r = 0; r < n; r++) {
        rows.push([row + first + r, pageStates + r * pageSplits, pageSplits, f16States + r * f16Splits, f16Splits]);
      }
      pageStates += n * pageSplits;
      f16States += n * f16Splits;
    }
  }
  endBatch();
  return { words: Uint32Array.from(words), batches };
}

const lists = (): ItemLists => ({ singleRow: [], rowTile: [] });
