/**
 * Attention of many queries on a page of floats: four queries and two vectors of the page are eight sums in registers.
 * Keys lie in blocks of eight tokens, [block][dim][token], values in blocks of eight dims, [block][token][dim], so that
 * a block stays in the nearest cache while all queries pass. Every sum adds the same numbers in the same order as in
 * rows.ts, where queries come one row at a time.
 */
import { f32x4, type I32, i32, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { multiplyAdd, transpose4 } from '../ops.ts';
import { STATE_HEAD } from './softmax.ts';

/** Queries, and tokens or dims, of a tile. */
export const TILE_QUERIES = 4;
const EIGHT = 8;
const BLOCK_ROW = 4 * EIGHT;

/** Bytes of partial sums that `scoreTiles` needs. */
export const TILE_SCRATCH = TILE_QUERIES * BLOCK_ROW;

/** Rows of keys, [token][dim], to blocks of eight tokens. */
export function arrangeKeys(k: Kernel, tokens: number, dims: number, rows: I32, blocks: I32): void {
  const [from, to] = [k.i32(rows), k.i32(blocks)];
  k.for(0, tokens, EIGHT, () => {
    k.for(0, dims, 4, () => {
      for (let half = 0; half < 2; half++) {
        const four = [0, 1, 2, 3].map(t => k.v128(v128.load(from, 4 * dims * (4 * half + t))));
        transpose4(k, four).forEach((vector, d) => {
          k.do(v128.store(to, vector, BLOCK_ROW * d + 16 * half));
        });
      }
      k.increment(from, 16);
      k.increment(to, 4 * BLOCK_ROW);
    });
    k.increment(from, 4 * dims * (EIGHT - 1));
  });
}

/** Rows of values, [token][dim], to blocks of eight dims. */
export function arrangeValues(k: Kernel, tokens: number, dims: number, rows: I32, blocks: I32): void {
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

/** sums[query][vector] += what each turn's eight numbers of the page times one of each query give. */
function accumulate(
  k: Kernel,
  relaxed: boolean,
  turns: number,
  page: { from: I32; step: number },
  queries: { from: I32; step: number; stride: number },
  sums: Local<'v128'>[][],
): void {
  const madd = multiplyAdd(relaxed);
  const [block, query] = [k.i32(page.from), k.i32(queries.from)];
  k.for(0, turns, 1, () => {
    const vectors = [0, 1].map(v => k.v128(v128.load(block, 16 * v)));
    const spread = sums.map((_, q) => k.v128(v128.load32Splat(query, queries.stride * q)));
    sums.forEach((row, q) => {
      row.forEach((sum, v) => {
        k.set(sum, madd(vectors[v], spread[q], sum));
      });
    });
    k.increment(block, page.step);
    k.increment(query, queries.step);
  });
}

const tileSums = (k: Kernel): Local<'v128'>[][] => Array.from({ length: TILE_QUERIES }, () => [k.v128(), k.v128()]);

/**
 * scores[query][token] = queries[query] . keys[token], for as many queries as a multiple of four. Rows of floats are
 * summed by lanes, dims 0, 4, ... apart from 1, 5, ...; so they are here.
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
  const [block, column, spare] = [k.i32(blocks), k.i32(scores), k.i32(scratch)];
  k.for(0, tokens, EIGHT, () => {
    const [query, score] = [k.i32(queries), k.i32(column)];
    k.for(0, count, TILE_QUERIES, () => {
      const each = (then: (sum: V128, q: number, v: number) => void) => {
        sums.forEach((row, q) => {
          row.forEach((sum, v) => {
            then(sum, q, v);
          });
        });
      };
      const part = (lane: number) => {
        for (const sum of sums.flat()) k.set(sum, v128.zero);
        const page = { from: i32.add(block, BLOCK_ROW * lane), step: 4 * BLOCK_ROW };
        accumulate(k, relaxed, dims / 4, page, { from: i32.add(query, 4 * lane), step: 16, stride: 4 * dims }, sums);
      };
      const at = (q: number, v: number) => 4 * tokens * q + 16 * v;
      const spareAt = (q: number, v: number) => BLOCK_ROW * q + 16 * v;
      part(0);
      each((sum, q, v) => k.do(v128.store(score, sum, at(q, v))));
      part(2);
      each((sum, q, v) => k.do(v128.store(score, f32x4.add(v128.load(score, at(q, v)), sum), at(q, v))));
      part(1);
      each((sum, q, v) => k.do(v128.store(spare, sum, spareAt(q, v))));
      part(3);
      each((sum, q, v) => {
        const odd = f32x4.add(v128.load(spare, spareAt(q, v)), sum);
        k.do(v128.store(score, f32x4.add(v128.load(score, at(q, v)), odd), at(q, v)));
      });
      k.increment(query, 4 * dims * TILE_QUERIES);
      k.increment(score, 4 * tokens * TILE_QUERIES);
    });
    k.increment(block, BLOCK_ROW * dims);
    k.increment(column, BLOCK_ROW);
  });
}

/**
 * Sums of a query's state = old x its correction + weights[query] . values. `table` holds for every query the address of
 * its state and its correction.
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
        row.forEach((sum, v) => {
          k.set(sum, f32x4.mul(v128.load(states[q], STATE_HEAD + 16 * v), correction));
        });
      });
      const page = { from: block, step: BLOCK_ROW };
      accumulate(k, relaxed, tokens, page, { from: weight, step: 4, stride: 4 * tokens }, sums);
      sums.forEach((row, q) => {
        row.forEach((sum, v) => {
          k.do(v128.store(states[q], sum, STATE_HEAD + 16 * v));
        });
      });
      k.increment(entry, 8 * TILE_QUERIES);
      k.increment(weight, 4 * tokens * TILE_QUERIES);
    });
    k.increment(block, BLOCK_ROW * tokens);
  });
}
