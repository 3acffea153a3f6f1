/**
 * Attention of many rows on pages that are read as floats: the arguments and the results of `attendPages`, bit by bit,
 * up to sixteen rows at a time. Up to three rows that are left over go one by one.
 */
import { f32, f32x4, type I32, i32, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { type AttendShape, dropFirst, overPages } from './attend.ts';
import type { GenericKeys, GenericValues } from './generic.ts';
import { softmax, stateBytes } from './softmax.ts';
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
  const { group, pageTokens, relaxed } = shape;
  const stateStride = stateBytes(values.codedDim);
  const room = layout(shape, keys.codedDim, values.codedDim);
  return overPages(name, shape, keys, values, (k, thread, rows) => {
    const { few, many } = scratch(k, thread);
    const place = (offset: number) => k.i32(i32.add(many, offset));
    const [keyBlocks, valueBlocks, batch, scores] = [room.keys, room.values, room.queries, room.scores].map(place);
    const [constants, table, spare] = [room.constants, room.table, room.spare].map(place);
    const whole = k.i32(i32.and(rows, -FEW));
    return page => {
      const { head, turn, hidden, stateOf, queryOf } = page;
      const state = k.i32();
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
          keys.gather(k, head, k.i32(queryOf(own)), turn, to, sums);
          k.set(state, stateOf(own));
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
        k.set(state, stateOf(row));
        keys.scores(k, page.keys, head, k.i32(queryOf(row)), few, turn);
        dropFirst(k, few, group, pageTokens, hidden);
        values.sum(k, page.values, head, few, state);
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
