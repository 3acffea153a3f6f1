/**
 * Attention of many queries on a page of f32, in register tiles: four queries x two vectors of the page are eight sums,
 * and four vectors where V8 joins them to 256 bits. Keys are packed in blocks of as many tokens, [block][dim][token],
 * values in blocks of as many dims, [block][token][dim], so that a block stays in the L1 cache for all queries. Every sum
 * adds the same numbers in the same order as float-rows.ts, which processes one row at a time.
 */
import { f32x4, type I32, i32, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { multiplyAdd, transpose4x4 } from '../ops.ts';
import { STATE_HEADER } from './online-softmax.ts';

export const TILE_QUERIES = 4;
const MAX_VECTORS = 4;

/** A page of vectors; a block of it has `vectors` times four tokens (of keys) or dims (of values). */
interface Page {
  tokens: number;
  dims: number;
  vectors: number;
}

/** Vectors per tile of pages with so many tokens and dims; undefined if they do not fit into blocks. */
export function tileVectors(wide: boolean, ...sizes: readonly number[]): number | undefined {
  return (wide ? [4, 2] : [2]).find(vectors => sizes.every(size => size % (4 * vectors) === 0));
}

/** Scratch bytes of `scoreTiles`, for partial sums. */
export const TILE_SCRATCH = 4 * TILE_QUERIES * 16 * MAX_VECTORS;

/** Packs keys, [token][dim], into blocks of tokens. */
export function packKeyBlocks(k: Kernel, { tokens, dims, vectors }: Page, rows: I32, blocks: I32): void {
  const [from, to] = [k.i32(rows), k.i32(blocks)];
  k.for(0, tokens, 4 * vectors, () => {
    k.for(0, dims, 4, () => {
      for (let v = 0; v < vectors; v++) {
        const four = [0, 1, 2, 3].map(t => k.v128(v128.load(from, 4 * dims * (4 * v + t))));
        for (const [d, vector] of transpose4x4(k, four).entries()) k.do(v128.store(to, vector, 16 * (vectors * d + v)));
      }
      k.increment(from, 16);
      k.increment(to, 64 * vectors);
    });
    k.increment(from, 4 * dims * (4 * vectors - 1));
  });
}

/** Packs values, [token][dim], into blocks of dims. */
export function packValueBlocks(k: Kernel, { tokens, dims, vectors }: Page, rows: I32, blocks: I32): void {
  const to = k.i32(blocks);
  k.for(0, 4 * dims, 16 * vectors, first => {
    const from = k.i32(i32.add(rows, first));
    k.for(0, tokens, 1, () => {
      for (let v = 0; v < vectors; v++) k.do(v128.store(to, v128.load(from, 16 * v), 16 * v));
      k.increment(from, 4 * dims);
      k.increment(to, 16 * vectors);
    });
  });
}

/** sums[query][vector] += values of the page x one value of each query, `iterations` times. */
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
    const vectors = sums[0].map((_, v) => k.v128(v128.load(block, 16 * v)));
    const splats = sums.map((_, q) => k.v128(v128.load32Splat(query, queries.stride * q)));
    for (const [q, row] of sums.entries())
      for (const [v, sum] of row.entries()) k.set(sum, madd(vectors[v], splats[q], sum));
    k.increment(block, page.step);
    k.increment(query, queries.step);
  });
}

const tileSums = (k: Kernel, vectors: number): Local<'v128'>[][] =>
  Array.from({ length: TILE_QUERIES }, () => Array.from({ length: vectors }, () => k.v128()));

/**
 * scores[query][token] = queries[query] . keys[token]; `count` is a multiple of four. As in float-rows.ts, dims 0, 4,
 * ... are summed separately from dims 1, 5, ... and so on.
 */
export function scoreTiles(
  k: Kernel,
  relaxed: boolean,
  { tokens, dims, vectors }: Page,
  blocks: I32,
  queries: I32,
  count: I32,
  scores: I32,
  scratch: I32,
): void {
  const sums = tileSums(k, vectors);
  const [block, column, partials] = [k.i32(blocks), k.i32(scores), k.i32(scratch)];
  k.for(0, tokens, 4 * vectors, () => {
    const [query, score] = [k.i32(queries), k.i32(column)];
    k.for(0, count, TILE_QUERIES, () => {
      const partial = (lane: number, q: number, v: number) => 16 * (vectors * (TILE_QUERIES * lane + q) + v);
      for (let lane = 0; lane < 4; lane++) {
        for (const sum of sums.flat()) k.set(sum, v128.zero);
        const page = { from: i32.add(block, 16 * vectors * lane), step: 64 * vectors };
        accumulate(k, relaxed, dims / 4, page, { from: i32.add(query, 4 * lane), step: 16, stride: 4 * dims }, sums);
        for (const [q, row] of sums.entries()) storeRow(k, partials, row, partial(lane, q, 0));
      }
      for (let q = 0; q < TILE_QUERIES; q++) {
        const results = sums[q].map((_, v) => {
          const [a, b, c, d] = [0, 1, 2, 3].map(lane => v128.load(partials, partial(lane, q, v)));
          return k.v128(f32x4.add(f32x4.add(a, c), f32x4.add(b, d)));
        });
        storeRow(k, score, results, 4 * tokens * q);
      }
      k.increment(query, 4 * dims * TILE_QUERIES);
      k.increment(score, 4 * tokens * TILE_QUERIES);
    });
    k.increment(block, 16 * vectors * dims);
    k.increment(column, 16 * vectors);
  });
}

/**
 * Updates the sums of each query's state: sums = sums x correction + weights[query] . values. `table` has two words per
 * query: the address of its state, and its correction.
 */
export function sumTiles(
  k: Kernel,
  relaxed: boolean,
  { tokens, dims, vectors }: Page,
  blocks: I32,
  weights: I32,
  count: I32,
  table: I32,
): void {
  const sums = tileSums(k, vectors);
  const block = k.i32(blocks);
  k.for(0, 4 * dims, 16 * vectors, first => {
    const [entry, weight] = [k.i32(table), k.i32(weights)];
    k.for(0, count, TILE_QUERIES, () => {
      const states = sums.map((_, q) => k.i32(i32.add(i32.load(entry, 8 * q), first)));
      sums.forEach((row, q) => {
        const correction = k.v128(v128.load32Splat(entry, 8 * q + 4));
        for (const [v, sum] of row.entries())
          k.set(sum, f32x4.mul(v128.load(states[q], STATE_HEADER + 16 * v), correction));
      });
      const page = { from: block, step: 16 * vectors };
      accumulate(k, relaxed, tokens, page, { from: weight, step: 4, stride: 4 * tokens }, sums);
      for (const [q, row] of sums.entries()) storeRow(k, states[q], row, STATE_HEADER);
      k.increment(entry, 8 * TILE_QUERIES);
      k.increment(weight, 4 * tokens * TILE_QUERIES);
    });
    k.increment(block, 16 * vectors * tokens);
  });
}

/** The higher address first: V8 then joins pairs. */
export function storeRow(k: Kernel, to: I32, row: readonly V128[], offset: number): void {
  for (let v = row.length - 1; v >= 0; v--) k.do(v128.store(to, row[v], offset + 16 * v));
}
