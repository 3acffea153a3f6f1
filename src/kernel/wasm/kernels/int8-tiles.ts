/**
 * Attention of many queries on a page of integers, in register tiles: four queries x eight tokens or dims. Four products are
 * added in 32 bits by one instruction, or else two in 16 bits. Sums of integers are exact, so results are those of one row
 * at a time, whose limits keep sums in 16 bits.
 *
 * A tile of keys is [8 tokens][quad of dims][token][4 dims], one of values [8 dims][quad of tokens][dim][4 tokens]: its
 * vectors come in adjacent pairs, which V8 joins to vectors of 256 bits.
 */
import { f32x4, type I32, i16x8, i32, i32x4, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { addDotInt8, multiplyAdd } from '../ops.ts';
import { storeRow, TILE_QUERIES } from './attention-tiles.ts';
import { STATE_HEADER } from './online-softmax.ts';

/** A tile is TILE_QUERIES queries x BLOCK tokens or dims. */
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

/** What all tiles of a kernel have in common. */
export interface TileShape {
  tokens: number;
  dims: number;
  relaxed: boolean;
  dotAdd: boolean;
  /** Address of ONES_BYTES, filled by `writeOnes`: V8 joins loads, but no constants. */
  ones: I32;
}

export const ONES_BYTES = 32;
export function writeOnes(k: Kernel, ones: I32): void {
  for (const offset of [0, 16]) k.do(v128.store(ones, i16x8.const(1), offset));
}

interface Page {
  /** Rows of the page's tile: tokens of keys, dims of values. */
  lines: number;
  /** Values of a row. */
  length: number;
  /** Vectors of 16 values whose products are added in 16 bits, lane by lane. */
  run: number;
  /** The bytes of the queries come first, and have a sign; otherwise those of the page. */
  queriesFirst: boolean;
}

/** Visits the tiles of four queries; `sums` are the dot products of the queries' bytes with those of a block, as i32. */
function forEachTile(
  k: Kernel,
  shape: TileShape,
  { lines, length, run, queriesFirst }: Page,
  tile: I32,
  bytes: I32,
  count: I32,
  visit: (line: I32, query: I32, sums: V128[][]) => void,
): void {
  const sums = Array.from({ length: TILE_QUERIES }, () => [k.v128(), k.v128()]);
  const runSums = sums.map(row => row.map(() => k.v128()));
  const [block, page, from] = [k.i32(tile), k.i32(), k.i32()];
  const addDot = addDotInt8(shape);
  /** Adds the products of a quad of the page with those of the queries. */
  const addQuad = (at: I32, vector: number, sums: Local<'v128'>[][], isFirst: boolean) => {
    const pair = [0, 16].map(offset => k.v128(v128.load(page, 4 * QUAD_BYTES * vector + offset)));
    for (const [q, row] of sums.entries()) {
      const query = k.v128(v128.load32Splat(at, 16 * vector + q * length));
      for (const [v, sum] of row.entries())
        k.set(
          sum,
          addDot(
            isFirst ? undefined : sum,
            ...(queriesFirst ? ([query, pair[v]] as const) : ([pair[v], query] as const)),
          ),
        );
    }
  };
  const addRun = (at: Local<'i32'>, vectors: number) =>
    k.for(0, 4, 1, () => {
      for (let vector = 0; vector < vectors; vector++) addQuad(at, vector, runSums, vector === 0);
      for (const [q, row] of runSums.entries())
        for (const [v, sum] of row.entries())
          k.set(sums[q][v], i32x4.add(sums[q][v], i32x4.dot(sum, v128.load(shape.ones, 16 * v))));
      k.increment(page, QUAD_BYTES);
      k.increment(at, 4);
    });
  k.for(0, lines, BLOCK, line => {
    k.set(from, bytes);
    k.for(0, count, TILE_QUERIES, query => {
      for (const sum of sums.flat()) k.set(sum, v128.zero);
      k.set(page, block);
      if (shape.dotAdd) {
        const end = k.i32(i32.add(from, length));
        k.forAddresses(from, end, 4, at => {
          addQuad(at, 0, sums, false);
          k.increment(page, QUAD_BYTES);
        });
      } else {
        const at = k.i32(from);
        for (let vector = 0; vector < length / 16; vector += run) {
          const vectors = Math.min(run, length / 16 - vector);
          addRun(at, vectors);
          k.increment(page, 4 * QUAD_BYTES * (vectors - 1));
          k.increment(at, 16 * (vectors - 1));
        }
      }
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
  shape: TileShape,
  run: number,
  tile: I32,
  norms: I32,
  queries: I32,
  factors: I32,
  count: I32,
  scores: I32,
): void {
  const { tokens, dims, relaxed } = shape;
  const [factor, to] = [k.i32(), k.i32()];
  const page = { lines: tokens, length: dims, run, queriesFirst: true };
  forEachTile(k, shape, page, tile, queries, count, (token, query, sums) => {
    k.set(factor, i32.add(factors, i32.mul(query, FACTOR_BYTES)));
    k.set(to, i32.add(scores, i32.mul(i32.add(i32.mul(query, tokens), token), 4)));
    const norm = k.i32(i32.add(norms, i32.mul(token, 4)));
    for (const [q, row] of sums.entries()) {
      const [scale, constant] = [0, 4].map(offset => k.v128(v128.load32Splat(factor, FACTOR_BYTES * q + offset)));
      const results = row.map((sum, v) => {
        const score = multiplyAdd(relaxed)(f32x4.fromI32(sum), scale, constant);
        return k.v128(f32x4.mul(score, v128.load(norm, 16 * v)));
      });
      storeRow(k, to, results, 4 * tokens * q);
    }
  });
}

/**
 * sums = sums x correction + (probabilities . values x scale + offset), for the state of each query; `updates` has
 * UPDATE_BYTES per query, `probabilities` is [query][token] bytes.
 */
export function sumInt8Tiles(
  k: Kernel,
  shape: TileShape,
  { run, signed, centered }: { run: number; signed: boolean; centered: boolean },
  tile: I32,
  probabilities: I32,
  updates: I32,
  count: I32,
): void {
  const { tokens, dims } = shape;
  const [entry, state] = [k.i32(), k.i32()];
  const page = { lines: dims, length: tokens, run, queriesFirst: !signed };
  forEachTile(k, shape, page, tile, probabilities, count, (dim, query, sums) => {
    k.set(entry, i32.add(updates, i32.mul(query, UPDATE_BYTES)));
    for (const [q, row] of sums.entries()) {
      k.set(state, i32.add(i32.load(entry, UPDATE_BYTES * q), i32.mul(dim, 4)));
      const [correction, scale, offset] = [4, 8, 12].map(at => k.v128(v128.load32Splat(entry, UPDATE_BYTES * q + at)));
      const results = row.map((sum, v) => {
        const value = f32x4.mul(f32x4.fromI32(sum), scale);
        const old = f32x4.mul(v128.load(state, STATE_HEADER + 16 * v), correction);
        return k.v128(f32x4.add(old, centered ? f32x4.add(value, offset) : value));
      });
      storeRow(k, state, results, STATE_HEADER);
    }
  });
}
