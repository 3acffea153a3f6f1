/**
 * Attention of many queries on a page of integers, in register tiles: four queries x eight tokens or dims, four products in
 * 32 bits per lane and instruction. Sums of integers are exact, so results are those of one row at a time.
 *
 * A tile of keys is [8 tokens][quad of dims][token][4 dims], one of values [8 dims][quad of tokens][dim][4 tokens]: its
 * vectors come in adjacent pairs, which V8 joins to vectors of 256 bits.
 */
import { f32x4, type I32, i32, i32x4, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { multiplyAdd } from '../ops.ts';
import { STATE_HEADER } from './online-softmax.ts';

/** A tile is TILE_QUERIES queries x BLOCK tokens or dims. */
export const TILE_QUERIES = 4;
export const BLOCK = 8;
/** Four values of each of a block's tokens or dims. */
const QUAD_BYTES = 4 * BLOCK;

/** Where four tokens' (or dims') quad is in a tile: `lines` tokens, of `length` dims. */
export const quadOffset = (line: number): number => 16 * ((line / 4) % 2);
/** Bytes of a block of eight lines. */
export const blockBytes = (length: number): number => BLOCK * length;

/** Per query: scale and constant of its scores. */
export const FACTOR_BYTES = 8;
/** Per query: address of its state, correction, scale and offset of a page's sums. */
export const UPDATE_BYTES = 16;

interface Tiles {
  /** Rows of the page's tile: tokens of keys, dims of values. */
  lines: number;
  /** Values of a row. */
  length: number;
}

/** Visits the tiles of four queries; `sums` are the dot products of the queries' bytes with those of a block, as i32. */
function forEachTile(
  k: Kernel,
  { lines, length }: Tiles,
  tile: I32,
  bytes: I32,
  count: I32,
  dot: (page: V128, query: V128, sum: V128) => V128,
  visit: (line: I32, query: I32, sums: V128[][]) => void,
): void {
  const sums = Array.from({ length: TILE_QUERIES }, () => [k.v128(), k.v128()]);
  const [block, page, from] = [k.i32(tile), k.i32(), k.i32()];
  k.for(0, lines, BLOCK, line => {
    k.set(from, bytes);
    k.for(0, count, TILE_QUERIES, query => {
      for (const sum of sums.flat()) k.set(sum, v128.zero);
      k.set(page, block);
      const end = k.i32(i32.add(from, length));
      k.forAddresses(from, end, 4, at => {
        const pair = [0, 16].map(offset => k.v128(v128.load(page, offset)));
        for (const [q, row] of sums.entries()) {
          const splat = k.v128(v128.load32Splat(at, q * length));
          for (const [v, sum] of row.entries()) k.set(sum, dot(pair[v], splat, sum));
        }
        k.increment(page, QUAD_BYTES);
      });
      visit(line, query, sums);
      k.increment(from, TILE_QUERIES * length);
    });
    k.increment(block, blockBytes(length));
  });
}

/**
 * scores[query][token] = (query . key x scale + constant) x norm; `queries` is [query][dim] int8, `factors` has
 * FACTOR_BYTES per query, `count` is a multiple of four.
 */
export function scoreInt8Tiles(
  k: Kernel,
  relaxed: boolean,
  { tokens, dims }: { tokens: number; dims: number },
  tile: I32,
  norms: I32,
  queries: I32,
  factors: I32,
  count: I32,
  scores: I32,
): void {
  const dot = (page: V128, query: V128, sum: V128) => i32x4.relaxedDotAdd(query, page, sum);
  const [factor, to] = [k.i32(), k.i32()];
  forEachTile(k, { lines: tokens, length: dims }, tile, queries, count, dot, (token, query, sums) => {
    k.set(factor, i32.add(factors, i32.mul(query, FACTOR_BYTES)));
    k.set(to, i32.add(scores, i32.mul(i32.add(i32.mul(query, tokens), token), 4)));
    const norm = k.i32(i32.add(norms, i32.mul(token, 4)));
    for (const [q, row] of sums.entries()) {
      const [scale, constant] = [0, 4].map(offset => k.v128(v128.load32Splat(factor, FACTOR_BYTES * q + offset)));
      const results = row.map((sum, v) => {
        const score = multiplyAdd(relaxed)(f32x4.fromI32(sum), scale, constant);
        return k.v128(f32x4.mul(score, v128.load(norm, 16 * v)));
      });
      storePair(k, to, results, 4 * tokens * q);
    }
  });
}

/**
 * sums = sums x correction + (probabilities . values x scale + offset), for the state of each query; `updates` has
 * UPDATE_BYTES per query, `probabilities` is [query][token] bytes.
 */
export function sumInt8Tiles(
  k: Kernel,
  { tokens, dims, signed, centered }: { tokens: number; dims: number; signed: boolean; centered: boolean },
  tile: I32,
  probabilities: I32,
  updates: I32,
  count: I32,
): void {
  const dot = (page: V128, query: V128, sum: V128) =>
    signed ? i32x4.relaxedDotAdd(page, query, sum) : i32x4.relaxedDotAdd(query, page, sum);
  const [entry, state] = [k.i32(), k.i32()];
  forEachTile(k, { lines: dims, length: tokens }, tile, probabilities, count, dot, (dim, query, sums) => {
    k.set(entry, i32.add(updates, i32.mul(query, UPDATE_BYTES)));
    for (const [q, row] of sums.entries()) {
      k.set(state, i32.add(i32.load(entry, UPDATE_BYTES * q), i32.mul(dim, 4)));
      const [correction, scale, offset] = [4, 8, 12].map(at => k.v128(v128.load32Splat(entry, UPDATE_BYTES * q + at)));
      const results = row.map((sum, v) => {
        const value = f32x4.mul(f32x4.fromI32(sum), scale);
        const old = f32x4.mul(v128.load(state, STATE_HEADER + 16 * v), correction);
        return k.v128(f32x4.add(old, centered ? f32x4.add(value, offset) : value));
      });
      storePair(k, state, results, STATE_HEADER);
    }
  });
}

/** The higher address first: V8 then joins the two. */
function storePair(k: Kernel, to: I32, [low, high]: readonly V128[], offset: number): void {
  k.do(v128.store(to, high, offset + 16), v128.store(to, low, offset));
}
