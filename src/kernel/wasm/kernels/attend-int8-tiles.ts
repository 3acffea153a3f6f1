/**
 * Attention of many rows on pages of integers, up to 16 rows at a time: a page's codes are read once for all of them. Takes
 * the arguments of `attendPages` and gives bit-identical results. The last one to three rows are attended one by one.
 */
import { f32, f32x4, type I32, i32, index } from '../emit.ts';
import { fieldOffsets } from '../fields.ts';
import type { Kernel } from '../module.ts';
import {
  type AttentionShape,
  type KeyEmitter,
  type PageArgs,
  pageLoop,
  type ThreadScratch,
  type ValueEmitter,
} from './attend.ts';
import { TILE_QUERIES } from './attention-tiles.ts';
import type { StateUpdate } from './column-sums.ts';
import { FACTOR_BYTES, ONES_BYTES, scoreInt8Tiles, sumInt8Tiles, UPDATE_BYTES, writeOnes } from './int8-tiles.ts';
import { stateBytes } from './online-softmax.ts';

/** Keys that are integers times a norm per token. */
export interface Int8Keys extends KeyEmitter {
  readonly int8: {
    /** Vectors of 16 dims whose products are added in 16 bits. */
    run: number;
    /** Writes a page's integers as a tile, and its norms, [token] f32. */
    pack(k: Kernel, page: PageArgs, tile: I32, norms: I32): void;
    /** Copies a group's queries, [head][dim] int8, and FACTOR_BYTES for each. */
    copyQueries(k: Kernel, query: I32, queries: I32, factors: I32): void;
    /** Adds what the mean of a page contributes to a group's scores. */
    addMeanScores(k: Kernel, page: PageArgs, query: I32, scores: I32): void;
  };
}

/** Values that are integers times a factor per token. */
export interface Int8Values extends ValueEmitter {
  readonly int8: {
    /** Vectors of 16 tokens whose products are added in 16 bits. */
    run: number;
    /** Whether the integers have a sign; the probabilities have none. */
    signed: boolean;
    /** Whether updates have an offset. */
    centered: boolean;
    pack(k: Kernel, page: PageArgs, tile: I32): void;
    /** Turns a group's scores into bytes, [head][token], and adds them to the states but for the sums. */
    weigh(k: Kernel, page: PageArgs, scores: I32, state: I32, probabilities: I32): StateUpdate[];
  };
}

export const hasInt8Keys = (keys: KeyEmitter): keys is Int8Keys => 'int8' in keys;
export const hasInt8Values = (values: ValueEmitter): values is Int8Values => 'int8' in values;

/** Rows whose queries fill whole tiles for any group size. */
const TILE_ROWS = TILE_QUERIES;
const MAX_ROWS = 16;

/** A thread's scratch. */
function scratchLayout({ group, pageTokens, headDim }: AttentionShape) {
  const count = MAX_ROWS * group;
  return fieldOffsets({
    keyTile: pageTokens * headDim,
    valueTile: pageTokens * headDim,
    norms: 4 * pageTokens,
    queries: count * headDim,
    factors: FACTOR_BYTES * count,
    scores: 4 * count * pageTokens,
    probabilities: count * pageTokens,
    updates: UPDATE_BYTES * count,
    ones: ONES_BYTES,
  });
}

export const int8TileScratch = (shape: AttentionShape): number => scratchLayout(shape).bytes;

/** Tiles are eight tokens or dims wide. They pay where four products are one instruction, or where V8 joins vectors. */
export const fitsInt8Tiles = ({ pageTokens, headDim, relaxed, dotAdd, wide }: AttentionShape): boolean =>
  (dotAdd || (relaxed && wide)) && pageTokens % 16 === 0 && headDim % 16 === 0;

export function attendPagesInt8Tiles(
  name: string,
  shape: AttentionShape,
  keys: Int8Keys,
  values: Int8Values,
  threadScratch: ThreadScratch,
  multiRowOffset: number,
) {
  const { group, pageTokens, headDim } = shape;
  const offsets = scratchLayout(shape);
  const stateStride = stateBytes(headDim);
  return pageLoop(name, shape, keys, values, threadScratch, (k, oneRow, rows) => {
    const multiRow = k.i32(i32.add(oneRow, multiRowOffset));
    const at = (offset: number) => k.i32(i32.add(multiRow, offset));
    const [keyTile, valueTile, norms] = [offsets.keyTile, offsets.valueTile, offsets.norms].map(at);
    const [queries, factors, scores] = [offsets.queries, offsets.factors, offsets.scores].map(at);
    const [probabilities, updates] = [offsets.probabilities, offsets.updates].map(at);
    const tiles = { ...shape, tokens: pageTokens, dims: headDim, ones: at(offsets.ones) };
    writeOnes(k, tiles.ones);
    const tiledRows = k.i32(i32.and(rows, -TILE_ROWS));
    return page => {
      const { rope, finishScores, stateOf, queryOf } = page;
      const state = k.i32();
      keys.int8.pack(k, page.keys, keyTile, norms);
      values.int8.pack(k, page.values, valueTile);
      k.for(0, tiledRows, MAX_ROWS, row => {
        const left = k.i32(i32.sub(tiledRows, row));
        const passRows = k.i32(i32.min(left, MAX_ROWS));
        const count = k.i32(i32.mul(passRows, group));
        k.for(0, passRows, 1, r => {
          const query = k.i32(queryOf(i32.add(row, r)));
          const to = k.i32(index(queries, group * headDim, r));
          keys.int8.copyQueries(k, query, to, k.i32(index(factors, FACTOR_BYTES * group, r)));
        });
        scoreInt8Tiles(k, tiles, keys.int8.run, keyTile, norms, queries, factors, count, scores);
        k.for(0, passRows, 1, r => {
          const rowIndex = k.i32(i32.add(row, r));
          const rowScores = k.i32(index(scores, 4 * group * pageTokens, r));
          keys.int8.addMeanScores(k, page.keys, queryOf(rowIndex), rowScores);
          finishScores(rowIndex, rowScores, group);
          k.set(state, stateOf(rowIndex));
          const rowProbabilities = k.i32(index(probabilities, group * pageTokens, r));
          const entry = k.i32(index(updates, UPDATE_BYTES * group, r));
          values.int8.weigh(k, page.values, rowScores, state, rowProbabilities).forEach((update, g) => {
            const { correction, scale, offset } = update;
            k.do(i32.store(entry, i32.add(state, g * stateStride), UPDATE_BYTES * g));
            [correction, scale, offset].forEach((value, i) => {
              if (value) k.do(f32.store(entry, f32x4.lane(value, 0), UPDATE_BYTES * g + 4 * (i + 1)));
            });
          });
        });
        sumInt8Tiles(k, tiles, values.int8, valueTile, probabilities, updates, count);
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
