/**
 * Attention of many rows on dequantized pages, up to 16 rows at a time. Takes the arguments of `attendPages` and gives
 * bit-identical results. The last one to three rows are attended one by one.
 */
import { f32, f32x4, type I32, i32, index, v128 } from '../emit.ts';
import { fieldOffsets } from '../fields.ts';
import type { Kernel } from '../module.ts';
import { type AttentionShape, pageLoop, type ThreadScratch } from './attend.ts';
import {
  packKeyBlocks,
  packValueBlocks,
  scoreTiles,
  sumTiles,
  TILE_QUERIES,
  TILE_SCRATCH,
  tileVectors,
} from './attention-tiles.ts';
import type { DequantizedKeys, DequantizedValues } from './dequantized.ts';
import { onlineSoftmax, SOFTMAX_SCRATCH, stateBytes } from './online-softmax.ts';

/** Rows whose queries fill whole tiles for any group size. */
const TILE_ROWS = TILE_QUERIES;
/** Max rows per pass over a page. The page does not fit into the L1 cache, so passes are expensive. */
const MAX_ROWS = 16;

/** A thread's scratch. */
function scratchLayout({ group, pageTokens }: AttentionShape, keyDims: number, valueDims: number) {
  const count = MAX_ROWS * group;
  return fieldOffsets({
    keyBlocks: 4 * pageTokens * keyDims,
    valueBlocks: 4 * pageTokens * valueDims,
    queries: 4 * count * keyDims,
    scores: 4 * count * pageTokens,
    constants: 4 * count,
    stateTable: 8 * count,
    tileSums: TILE_SCRATCH,
    softmax: SOFTMAX_SCRATCH,
  });
}

export const tiledScratch = (shape: AttentionShape, keyDims: number, valueDims: number): number =>
  scratchLayout(shape, keyDims, valueDims).bytes;

/** Vectors per tile; undefined if pages do not fit into blocks. */
export const vectorsOfTiles = ({ wide, pageTokens }: AttentionShape, keyDims: number, valueDims: number) =>
  tileVectors(wide, pageTokens, keyDims, valueDims);

export function attendPagesTiled(
  name: string,
  shape: AttentionShape,
  keys: DequantizedKeys,
  values: DequantizedValues,
  threadScratch: ThreadScratch,
  multiRowOffset: number,
  vectors: number,
) {
  const { group, pageTokens, relaxed } = shape;
  const keyPage = { tokens: pageTokens, dims: keys.codedDim, vectors };
  const valuePage = { tokens: pageTokens, dims: values.codedDim, vectors };
  const stateStride = stateBytes(values.codedDim);
  const offsets = scratchLayout(shape, keys.codedDim, values.codedDim);
  return pageLoop(name, shape, keys, values, threadScratch, (k, oneRow, rows) => {
    const multiRow = k.i32(i32.add(oneRow, multiRowOffset));
    const at = (offset: number) => k.i32(i32.add(multiRow, offset));
    const [keyBlocks, valueBlocks, queries, scores] = [
      offsets.keyBlocks,
      offsets.valueBlocks,
      offsets.queries,
      offsets.scores,
    ].map(at);
    const [constants, stateTable] = [offsets.constants, offsets.stateTable].map(at);
    const [tileSums, softmaxScratch] = [offsets.tileSums, offsets.softmax].map(at);
    const tiledRows = k.i32(i32.and(rows, -TILE_ROWS));
    return page => {
      const { rope, finishScores, stateOf, queryOf } = page;
      const state = k.i32();
      packKeyBlocks(k, keyPage, i32.add(oneRow, keys.floatsOffset), keyBlocks);
      packValueBlocks(k, valuePage, i32.add(oneRow, values.floatsOffset), valueBlocks);

      k.for(0, tiledRows, MAX_ROWS, row => {
        const left = k.i32(i32.sub(tiledRows, row));
        const passRows = k.i32(i32.min(left, MAX_ROWS));
        const count = k.i32(i32.mul(passRows, group));
        k.for(0, passRows, 1, r => {
          const rowIndex = k.i32(i32.add(row, r));
          const to = k.i32(index(queries, 4 * group * keys.codedDim, r));
          const rowConstants = k.i32(index(constants, 4 * group, r));
          keys.gatherQueries(k, page.keys, k.i32(queryOf(rowIndex)), rope, to, rowConstants);
          k.set(state, stateOf(rowIndex));
          const entry = k.i32(index(stateTable, 8 * group, r));
          for (let g = 0; g < group; g++) k.do(i32.store(entry, i32.add(state, g * stateStride), 8 * g));
        });
        scoreTiles(k, relaxed, keyPage, keyBlocks, queries, count, scores, tileSums);
        k.for(0, count, 1, q => {
          const queryScores = k.i32(index(scores, 4 * pageTokens, q));
          if (keys.hasConstants) addConstant(k, pageTokens, queryScores, index(constants, 4, q));
          finishScores(k.i32(i32.add(row, i32.divU(q, group))), queryScores, 1);
          const entry = k.i32(index(stateTable, 8, q));
          k.do(
            f32.store(entry, onlineSoftmax(k, queryScores, pageTokens, i32.load(entry), relaxed, softmaxScratch), 4),
          );
        });
        sumTiles(k, relaxed, valuePage, valueBlocks, scores, count, stateTable);
      });
      k.for(tiledRows, rows, 1, row => {
        k.set(state, stateOf(row));
        keys.scorePage(k, page.keys, k.i32(queryOf(row)), oneRow, rope);
        finishScores(row, oneRow, group);
        values.accumulatePage(k, page.values, oneRow, state);
      });
    };
  });
}

function addConstant(k: Kernel, tokens: number, scores: I32, from: I32): void {
  const constant = k.v128(v128.load32Splat(from));
  k.for(0, 4 * tokens, 16, i => {
    const at = k.i32(i32.add(scores, i));
    k.do(v128.store(at, f32x4.add(v128.load(at), constant)));
  });
}
