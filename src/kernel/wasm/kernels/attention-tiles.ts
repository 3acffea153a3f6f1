/**
 * Attention of many queries on a page of f32, in register tiles: four queries x two vectors of the page are eight sums.
 * Keys are packed in blocks of eight tokens, [block][dim][token], values in blocks of eight dims, [block][token][dim],
 * so that a block stays in the L1 cache for all queries. Every sum adds the same numbers in the same order as
 * float-rows.ts, which processes one row at a time.
 */
import { f32x4, type I32, i32, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { multiplyAdd, transpose4x4 } from '../ops.ts';
import { STATE_HEADER } from './online-softmax.ts';

/** A tile is TILE_QUERIES queries x BLOCK tokens or dims. */
export const TILE_QUERIES = 4;
const BLOCK = 8;
const BLOCK_ROW = 4 * BLOCK;

/** Scratch bytes of `scoreTiles`, for partial sums. */
export const TILE_SCRATCH = TILE_QUERIES * BLOCK_ROW;

/** Packs keys, [token][dim], into blocks of eight tokens. */
export function packKeyBlocks(k: Kernel, tokens: number, dims: number, rows: I32, blocks: I32): void {
  const [from, to] = [k.i32(rows), k.i32(blocks)];
  k.for(0, tokens, BLOCK, () => {
    k.for(0, dims, 4, () => {
      for (let half = 0; half < 2; half++) {
        const four = [0, 1, 2, 3].map(t => k.v128(v128.load(from, 4 * dims * (4 * half + t))));
        for (const [d, vector] of transpose4x4(k, four).entries())
          k.do(v128.store(to, vector, BLOCK_ROW * d + 16 * half));
      }
      k.increment(from, 16);
      k.increment(to, 4 * BLOCK_ROW);
    });
    k.increment(from, 4 * dims * (BLOCK - 1));
  });
}

/** Packs values, [token][dim], into blocks of eight dims. */
export function packValueBlocks(k: Kernel, tokens: number, dims: number, rows: I32, blocks: I32): void {
  const to = k.i32(blocks);
  k.for(0, 4 * dims, BLOCK_ROW, first => {
    const from = k.i32(i32.add(rows, first));
    k.for(0, tokens, 1, () => {
      for (let half = 0; half < 2; half++) k.do(v128.store(to, v128.load(from, 16 * half), 16 * half));
      k.increment(from, 4 * dims);
      k.increment(to, BLOCK_ROW);
    });
  });
}

/** sums[query][vector] += eight values of the page x one value of each query, `iterations` times. */
function accumulate(
  k: Kernel,
  relaxed: boolean,
  iterations: number,
  page: { from: I32; step: number },
  queries: { from: I32; step: number; stride: number },
  sums: Local<'v128'>[][],
): void {
  const madd = multiplyAdd(relaxed);
  const [block, query] = [k.i32(page.from), k.i32(queries.from)];
  k.for(0, iterations, 1, () => {
    const vectors = [0, 1].map(v => k.v128(v128.load(block, 16 * v)));
    const splats = sums.map((_, q) => k.v128(v128.load32Splat(query, queries.stride * q)));
    for (const [q, row] of sums.entries())
      for (const [v, sum] of row.entries()) k.set(sum, madd(vectors[v], splats[q], sum));
    k.increment(block, page.step);
    k.increment(query, queries.step);
  });
}

const tileSums = (k: Kernel): Local<'v128'>[][] => Array.from({ length: TILE_QUERIES }, () => [k.v128(), k.v128()]);

/**
 * scores[query][token] = queries[query] . keys[token]; `count` is a multiple of four. As in float-rows.ts, dims 0, 4,
 * ... are summed separately from dims 1, 5, ... and so on.
 */
export function scoreTiles(
  k: Kernel,
  relaxed: boolean,
  { tokens, dims }: { tokens: number; dims: number },
  blocks: I32,
  queries: I32,
  count: I32,
  scores: I32,
  scratch: I32,
): void {
  const sums = tileSums(k);
  const [block, column, partialSums] = [k.i32(blocks), k.i32(scores), k.i32(scratch)];
  k.for(0, tokens, BLOCK, () => {
    const [query, score] = [k.i32(queries), k.i32(column)];
    k.for(0, count, TILE_QUERIES, () => {
      const forEachSum = (visit: (sum: V128, q: number, v: number) => void) => {
        for (const [q, row] of sums.entries()) for (const [v, sum] of row.entries()) visit(sum, q, v);
      };
      const sumLane = (lane: number) => {
        for (const sum of sums.flat()) k.set(sum, v128.zero);
        const page = { from: i32.add(block, BLOCK_ROW * lane), step: 4 * BLOCK_ROW };
        accumulate(k, relaxed, dims / 4, page, { from: i32.add(query, 4 * lane), step: 16, stride: 4 * dims }, sums);
      };
      const scoreOffset = (q: number, v: number) => 4 * tokens * q + 16 * v;
      const partialOffset = (q: number, v: number) => BLOCK_ROW * q + 16 * v;
      sumLane(0);
      forEachSum((sum, q, v) => k.do(v128.store(score, sum, scoreOffset(q, v))));
      sumLane(2);
      forEachSum((sum, q, v) =>
        k.do(v128.store(score, f32x4.add(v128.load(score, scoreOffset(q, v)), sum), scoreOffset(q, v))),
      );
      sumLane(1);
      forEachSum((sum, q, v) => k.do(v128.store(partialSums, sum, partialOffset(q, v))));
      sumLane(3);
      forEachSum((sum, q, v) => {
        const odd = f32x4.add(v128.load(partialSums, partialOffset(q, v)), sum);
        k.do(v128.store(score, f32x4.add(v128.load(score, scoreOffset(q, v)), odd), scoreOffset(q, v)));
      });
      k.increment(query, 4 * dims * TILE_QUERIES);
      k.increment(score, 4 * tokens * TILE_QUERIES);
    });
    k.increment(block, BLOCK_ROW * dims);
    k.increment(column, BLOCK_ROW);
  });
}

/**
 * Updates the sums of each query's state: sums = sums x correction + weights[query] . values. `table` has two words per
 * query: the address of its state, and its correction.
 */
export function sumTiles(
  k: Kernel,
  relaxed: boolean,
  { tokens, dims }: { tokens: number; dims: number },
  blocks: I32,
  weights: I32,
  count: I32,
  table: I32,
): void {
  const sums = tileSums(k);
  const block = k.i32(blocks);
  k.for(0, 4 * dims, BLOCK_ROW, first => {
    const [entry, weight] = [k.i32(table), k.i32(weights)];
    k.for(0, count, TILE_QUERIES, () => {
      const states = sums.map((_, q) => k.i32(i32.add(i32.load(entry, 8 * q), first)));
      sums.forEach((row, q) => {
        const correction = k.v128(v128.load32Splat(entry, 8 * q + 4));
        for (const [v, sum] of row.entries())
          k.set(sum, f32x4.mul(v128.load(states[q], STATE_HEADER + 16 * v), correction));
      });
      const page = { from: block, step: BLOCK_ROW };
      accumulate(k, relaxed, tokens, page, { from: weight, step: 4, stride: 4 * tokens }, sums);
      for (const [q, row] of sums.entries())
        for (const [v, sum] of row.entries()) k.do(v128.store(states[q], sum, STATE_HEADER + 16 * v));
      k.increment(entry, 8 * TILE_QUERIES);
      k.increment(weight, 4 * tokens * TILE_QUERIES);
    });
    k.increment(block, BLOCK_ROW * tokens);
  });
}
