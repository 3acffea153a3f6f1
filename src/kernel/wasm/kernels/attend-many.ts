/**
 * Attention of many rows on pages that are read as floats: the arguments and the results of `attendPages`, bit by bit,
 * up to sixteen rows at a time. Up to three rows that are left over go one by one.
 */
import { f32, f32x4, type I32, i32, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { turnBytes } from '../turns.ts';
import { type AttendShape, dropFirst, SPLIT } from './attend.ts';
import type { GenericKeys, GenericValues } from './generic.ts';
import { clearState, softmax, stateBytes } from './softmax.ts';
import { arrangeKeys, arrangeValues, scoreTiles, sumTiles, TILE_QUERIES, TILE_SCRATCH } from './tiles.ts';

/** Rows that fill tiles with their queries, whatever the group. */
const FEW = TILE_QUERIES;
/** Most rows that go together over a page, which does not fit into the nearest cache. */
const ROWS = 16;

/** A thread's room: blocks of keys and of values, then of these rows their queries, scores, constants, and states. */
function layout({ group, pageTokens }: AttendShape, keyDims: number, valueDims: number) {
  const count = ROWS * group;
  const values = 4 * pageTokens * keyDims;
  const queries = values + 4 * pageTokens * valueDims;
  const scores = queries + 4 * count * keyDims;
  const constants = scores + 4 * count * pageTokens;
  const table = constants + 4 * count;
  const spare = table + 8 * count;
  return { count, keys: 0, values, queries, scores, constants, table, spare, bytes: spare + TILE_SCRATCH };
}

export const manyScratch = (shape: AttendShape, keyDims: number, valueDims: number): number =>
  layout(shape, keyDims, valueDims).bytes;

/** Eight tokens a block. */
export const fitsTiles = ({ pageTokens }: AttendShape): boolean => pageTokens % 8 === 0;

export function attendPagesMany(
  name: string,
  shape: AttendShape,
  keys: GenericKeys,
  values: GenericValues,
  scratch: (k: Kernel, thread: I32) => { few: I32; many: I32 },
): Kernel {
  const { headDim, group, kvHeads, pageTokens, relaxed } = shape;
  const k = new Kernel(name, Array(12).fill('i32'));
  const [queries, states, leaves, keyOffset, valueOffset, rows, pages, skip, turns, chunk, chunks, thread] =
    k.params.map((_, i) => k.i32Param(i));
  const stateStride = stateBytes(values.codedDim);
  const { few, many } = scratch(k, thread);
  const room = layout(shape, keys.codedDim, values.codedDim);
  const place = (offset: number) => k.i32(i32.add(many, offset));
  const [keyBlocks, valueBlocks, batch, scores] = [room.keys, room.values, room.queries, room.scores].map(place);
  const [constants, table, spare] = [room.constants, room.table, room.spare].map(place);
  const splits = k.i32(i32.divU(i32.add(pages, SPLIT - 1), SPLIT));
  const stateOf = (row: I32, head: I32, split: I32) => {
    const unit = i32.add(i32.mul(i32.add(i32.mul(row, kvHeads), head), splits), split);
    return i32.add(states, i32.mul(unit, group * stateStride));
  };
  const queryOf = (row: I32, head: I32) =>
    i32.add(queries, i32.mul(i32.add(i32.mul(row, kvHeads), head), keys.queryBytes));
  const whole = k.i32(i32.and(rows, -FEW));

  k.for(chunk, i32.mul(splits, kvHeads), chunks, unit => {
    const head = k.i32(i32.remU(unit, kvHeads));
    const split = k.i32(i32.divU(unit, kvHeads));
    const state = k.i32();
    k.for(0, rows, 1, row => {
      k.set(state, stateOf(row, head, split));
      for (let g = 0; g < group; g++) clearState(k, i32.add(state, g * stateStride), values.codedDim);
    });
    const first = k.i32(i32.mul(split, SPLIT));
    const end = k.i32(i32.add(first, SPLIT));
    k.set(end, i32.select(i32.ltS(end, pages), end, pages));
    k.for(first, end, 1, page => {
      const leaf = k.i32(i32.load(i32.add(leaves, i32.mul(page, 4))));
      const [keyPage, valuePage] = [k.i32(i32.add(leaf, keyOffset)), k.i32(i32.add(leaf, valueOffset))];
      const turn = k.i32(i32.add(turns, i32.mul(page, turnBytes(headDim))));
      const hidden = k.i32(i32.sub(skip, i32.mul(page, pageTokens)));
      keys.open(k, keyPage, head);
      values.open(k, valuePage, head);
      arrangeKeys(k, pageTokens, keys.codedDim, keys.floats(), keyBlocks);
      arrangeValues(k, pageTokens, values.codedDim, values.floats(), valueBlocks);

      k.for(0, whole, ROWS, row => {
        const left = k.i32(i32.sub(whole, row));
        const here = k.i32(i32.select(i32.ltS(left, ROWS), left, ROWS));
        const count = k.i32(i32.mul(here, group));
        k.for(0, here, 1, r => {
          const own = k.i32(i32.add(row, r));
          const to = k.i32(i32.add(batch, i32.mul(r, 4 * group * keys.codedDim)));
          const sums = k.i32(i32.add(constants, i32.mul(r, 4 * group)));
          keys.gather(k, head, k.i32(queryOf(own, head)), turn, to, sums);
          k.set(state, stateOf(own, head, split));
          const entry = k.i32(i32.add(table, i32.mul(r, 8 * group)));
          for (let g = 0; g < group; g++) k.do(i32.store(entry, i32.add(state, g * stateStride), 8 * g));
        });
        const keyShape = { tokens: pageTokens, dims: keys.codedDim };
        scoreTiles(k, relaxed, keyShape, keyBlocks, batch, count, scores, spare);
        k.for(0, count, 1, q => {
          const own = k.i32(i32.add(scores, i32.mul(q, 4 * pageTokens)));
          if (keys.constants) addConstant(k, pageTokens, own, i32.add(constants, i32.mul(q, 4)));
          dropFirst(k, own, 1, pageTokens, hidden);
          const entry = k.i32(i32.add(table, i32.mul(q, 8)));
          k.do(f32.store(entry, softmax(k, own, pageTokens, i32.load(entry), relaxed), 4));
        });
        const valueShape = { tokens: pageTokens, dims: values.codedDim };
        sumTiles(k, relaxed, valueShape, valueBlocks, scores, count, table);
      });
      k.for(whole, rows, 1, row => {
        k.set(state, stateOf(row, head, split));
        keys.scores(k, keyPage, head, k.i32(queryOf(row, head)), few, turn);
        dropFirst(k, few, group, pageTokens, hidden);
        values.sum(k, valuePage, head, few, state);
      });
    });
  });
  return k;
}

function addConstant(k: Kernel, tokens: number, scores: I32, from: I32): void {
  const constant = k.v128(v128.load32Splat(from));
  k.for(0, 4 * tokens, 16, i => {
    const at = k.i32(i32.add(scores, i));
    k.do(v128.store(at, f32x4.add(v128.load(at), constant)));
  });
}
