/**
 * Scores on packed pages of additive codebooks (mead). For each page the queries are made page-relative and mapped;
 * each column gets a lookup table of query x entry as bytes. A token's score is the sum of its table entries over all
 * columns; one swizzle looks up 16 tokens. additive-key-tables.ts describes the books and maps.
 */
import type { PageLayout } from '../../page-layout.ts';
import { f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, index, type Local, lanes32, v128 } from '../emit.ts';
import { fieldOffsets } from '../fields.ts';
import type { Kernel } from '../module.ts';
import { headPasses, hoist, mapVectors, multiplyAdd, reduceAdd, reduceMax, roundToI32, swizzle, TINY } from '../ops.ts';
import { type AdditiveEncoding, maxColumns } from './additive.ts';
import { addsColumnPairs, CODES_OFFSET, KEY_BOOK_BYTES, mapSize, QUAD_OFFSET } from './additive-key-tables.ts';
import type { AttentionShape, KeyEmitter } from './attend.ts';
import { addBytes, byteSums, clearByteSums, scoreByteSums } from './byte-sums.ts';
import type { CodecTables } from './dequantize-page.ts';

/** Dims of a mapped query computed together; diagonal blocks are multiples of it. */
const OCTET = 8;
/** Query dims per loop iteration. */
const PAIR = 2;

/** Max magnitude of the sum of entries that are added as bytes, in steps; each is rounded down by up to one. */
const MAX_TABLE_ENTRY = 126;
/** One step of an int16 query. Dots with books, where 1.0 is 2^15, are shifted right by DOT_SHIFT to whole steps. */
const QUERY_ONE = 256;
const DOT_SHIFT = 23;

function scratchLayout(shape: AttentionShape, encoding: AdditiveEncoding) {
  const { group, headDim } = shape;
  return fieldOffsets({
    pageRelative: 4 * group * headDim,
    mapped: 4 * group * headDim,
    /** The mapped queries as int16. */
    int16: 2 * group * headDim,
    tables: (maxColumns(encoding, shape) + 1) * group * 16,
    /** A scale and a constant per head. */
    scales: 8 * group,
  });
}

export const additiveKeyScratch = ({ encoding }: PageLayout, shape: AttentionShape): number =>
  encoding.kind === 'additive' ? scratchLayout(shape, encoding).bytes : 0;

export function additiveKeys(
  layout: PageLayout,
  shape: AttentionShape,
  tables: CodecTables,
  scratchOffset: number,
): KeyEmitter | undefined {
  const { encoding } = layout;
  const { group, headDim, pageTokens, precise } = shape;
  if (encoding.kind !== 'additive' || precise || pageTokens % 32 !== 0) return undefined;
  const blocks = layout.diagonalBlocks ?? [headDim];
  if (blocks.some(size => size % OCTET !== 0)) return undefined;
  // Sums of bytes must fit into 16 bits.
  if (maxColumns(encoding, shape) > 256) return undefined;
  const offsets = scratchLayout(shape, encoding);
  const additive = tables.additive!;
  const addsPairs = addsColumnPairs(encoding, headDim);
  const queryBytes = 4 * group * headDim;
  return {
    queryBytes,
    transformQuery(k, queries, _head, out) {
      mapVectors(k, queryBytes, queries, k.i32(out));
    },
    beginPage() {},
    scorePage(k, { page, head, scratch }, query, scores, pageRope) {
      const base = k.i32(i32.add(scratch, scratchOffset));
      const [column, columnEnd] = [0, 4].map(next => k.i32(i32.load(i32.mul(head, 4), additive.firstColumns + next)));
      const [books, end] = [0, 4].map(next =>
        k.i32(index(additive.keyBooks, KEY_BOOK_BYTES, i32.load(i32.mul(head, 4), additive.firstKeyBooks + next))),
      );
      const codes = k.i32(index(page, pageTokens / 2, column));
      const unsignedTables = i32.divU(i32.sub(end, books), addsPairs ? 2 * KEY_BOOK_BYTES : KEY_BOOK_BYTES);
      // Entries are rounded down, by half a step on average, and those of unsigned tables are 128 too large.
      const roundedDown = f32.mul(f32.fromI32(i32.sub(columnEnd, column)), f32.const(0.5));
      const bias = k.f32(f32.sub(roundedDown, f32.mul(f32.fromI32(unsignedTables), f32.const(128))));
      const mean = k.i32(index(tables.mean!, 4 * headDim, head));
      const maps = k.i32(index(additive.queryMaps, 4 * mapSize(blocks), head));
      const rope = layout.ropeFrequencies && pageRope;
      const [queries, lookupTables] = [offsets.int16, offsets.tables].map(offset => i32.add(base, offset));
      for (const heads of headPasses(group)) {
        const constants = pageRelativeQueries(k, shape, heads, query, rope, mean, base);
        const maxSquares = mapQueries(k, shape, heads, base, maps, offsets.mapped, blocks);
        heads.forEach((g, i) => {
          const step = k.f32(
            f32.max(f32.mul(f32.sqrt(reduceMax(k, maxSquares[i])), f32.const(1 / MAX_TABLE_ENTRY)), f32.const(TINY)),
          );
          const [mapped, int16] = [offsets.mapped + 4 * headDim * g, offsets.int16 + 2 * headDim * g];
          roundQuery(k, headDim, i32.add(base, mapped), step, i32.add(base, int16));
          const constant = f32.add(reduceAdd(k, constants[i]), f32.mul(bias, step));
          k.do(f32.store(base, step, offsets.scales + 8 * g), f32.store(base, constant, offsets.scales + 8 * g + 4));
        });
        buildTables(k, shape, heads, books, end, queries, lookupTables, addsPairs);
        scoreColumns(k, shape, heads, codes, books, end, base, offsets, scores, addsPairs);
      }
    },
  };
}

/** Writes the page-relative queries and returns each one's dot product with the mean, as four partial sums. */
function pageRelativeQueries(
  k: Kernel,
  { headDim, relaxed }: AttentionShape,
  heads: number[],
  query: I32,
  pageRope: I32 | undefined,
  mean: I32,
  out: I32,
) {
  const add = multiplyAdd(relaxed);
  const sums = heads.map(() => k.v128(v128.zero));
  const [from, to, m] = [k.i32(query), k.i32(out), k.i32(mean)];
  const rope = k.i32(pageRope ?? 0);
  const [x, cos, sin, meanDims] = [k.v128(), k.v128(), k.v128(), k.v128()];
  k.for(0, 4 * headDim, 16, () => {
    if (pageRope !== undefined) {
      k.set(cos, v128.load(rope));
      k.set(sin, v128.load(rope, 16));
    }
    k.set(meanDims, v128.load(m));
    heads.forEach((g, i) => {
      k.set(x, v128.load(from, 4 * headDim * g));
      if (pageRope !== undefined) k.set(x, add(v128.shuffle(x, x, lanes32(1, 0, 3, 2)), sin, f32x4.mul(x, cos)));
      k.set(sums[i], add(x, meanDims, sums[i]));
      k.do(v128.store(to, x, 4 * headDim * g));
    });
    for (const address of [from, to, m]) k.increment(address, 16);
    k.increment(rope, 32);
  });
  return sums;
}

/** Maps page-relative queries, block by block. Returns each one's largest squared quad length, in one of four lanes. */
function mapQueries(
  k: Kernel,
  { headDim, relaxed }: AttentionShape,
  heads: number[],
  base: I32,
  maps: I32,
  mapped: number,
  blocks: readonly number[],
) {
  const add = multiplyAdd(relaxed);
  const maxSquares = heads.map(() => k.v128(v128.zero));
  const sums = heads.map(() => [0, 1].map(() => k.v128()));
  const [from, map, to] = [k.i32(base), k.i32(maps), k.i32(i32.add(base, mapped))];
  const [dims, rows] = [k.i32(), k.i32()];
  const columns = [0, 1].map(() => k.v128());
  const x = k.v128();
  const repeat = (n: number, body: () => void) => (n === 1 ? body() : k.for(0, n, 1, body));
  /** Eight dims of a mapped query from all `size` dims of its diagonal block. */
  const octet = (size: number) => {
    k.set(dims, from);
    k.set(rows, map);
    for (const sum of sums.flat()) k.set(sum, v128.zero);
    // Few dims per iteration: V8 moves all loads to its start, and they must fit into registers.
    k.for(0, size, PAIR, () => {
      for (let dim = 0; dim < PAIR; dim++) {
        for (const [half, column] of columns.entries()) k.set(column, v128.load(rows, 4 * (size * dim + 4 * half)));
        heads.forEach((g, i) => {
          k.set(x, v128.load32Splat(dims, 4 * (headDim * g + dim)));
          for (const [half, sum] of sums[i].entries()) k.set(sum, add(columns[half], x, sum));
        });
      }
      k.increment(dims, 4 * PAIR);
      k.increment(rows, 4 * PAIR * size);
    });
    heads.forEach((g, i) => {
      const [a, b] = sums[i].map(sum => k.v128(f32x4.mul(sum, sum)));
      const pairSums = k.v128(
        f32x4.add(v128.shuffle(a, b, lanes32(0, 1, 4, 5)), v128.shuffle(a, b, lanes32(2, 3, 6, 7))),
      );
      const lengths = f32x4.add(pairSums, v128.shuffle(pairSums, pairSums, lanes32(1, 0, 3, 2)));
      k.set(maxSquares[i], f32x4.max(maxSquares[i], lengths));
      for (const [half, sum] of sums[i].entries()) k.do(v128.store(to, sum, 4 * headDim * g + 16 * half));
    });
    k.increment(map, 4 * OCTET);
    k.increment(to, 4 * OCTET);
  };
  for (let first = 0; first < blocks.length; ) {
    const size = blocks[first];
    let count = 1;
    while (blocks[first + count] === size) count++;
    repeat(count, () => {
      repeat(size / OCTET, () => octet(size));
      // The pointer has advanced along the map's first row; skip the other rows.
      k.increment(map, 4 * (size * size - size));
      k.increment(from, 4 * size);
    });
    first += count;
  }
  return maxSquares;
}

/** Converts a mapped query to int16, in units of step / QUERY_ONE. */
function roundQuery(k: Kernel, headDim: number, query: I32, step: Local<'f32'>, out: I32): void {
  const [from, to] = [k.i32(query), k.i32(out)];
  const scale = k.v128(f32x4.splat(f32.div(f32.const(QUERY_ONE), step)));
  const words = [0, 1].map(n => roundToI32(f32x4.mul(v128.load(from, 16 * n), scale)));
  k.for(0, 4 * headDim, 32, () => {
    k.do(v128.store(to, i16x8.narrowS(words[0], words[1])));
    k.increment(from, 32);
    k.increment(to, 16);
  });
}

/**
 * Builds lookup tables [column][head][16]. The bytes are unsigned, offset by 128, except for the second column of a
 * pair.
 */
function buildTables(
  k: Kernel,
  { group, headDim }: AttentionShape,
  heads: number[],
  books: I32,
  end: I32,
  queries: I32,
  out: I32,
  addsPairs: boolean,
): void {
  const [query, to] = [k.i32(queries), k.i32(out)];
  const entries = Array.from({ length: 8 }, () => k.v128());
  const [low, high] = [k.v128(), k.v128()];
  const sign = k.v128(i8x16.const(-128));
  k.forAddresses(books, end, 2 * KEY_BOOK_BYTES, from => {
    for (const second of [0, 1]) {
      const at = KEY_BOOK_BYTES * second;
      const quad = k.i32(i32.add(query, i32.load(from, at + QUAD_OFFSET)));
      for (const [n, entry] of entries.entries()) k.set(entry, v128.load(from, at + 16 * n));
      for (const g of heads) {
        k.set(low, v128.load32Splat(quad, 2 * headDim * g));
        k.set(high, v128.load32Splat(quad, 2 * headDim * g + 4));
        const words = [0, 1, 2, 3].map(n =>
          i32x4.shrS(i32x4.add(i32x4.dot(entries[n], low), i32x4.dot(entries[4 + n], high)), DOT_SHIFT),
        );
        const bytes = i8x16.narrowS(i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3]));
        k.do(v128.store(to, second && addsPairs ? bytes : v128.xor(bytes, sign), 16 * (second * group + g)));
      }
    }
    k.increment(to, 2 * 16 * group);
  });
}

/** Scores of a page: the sum of table entries x the head's scale + its constant. */
function scoreColumns(
  k: Kernel,
  { group, pageTokens, relaxed }: AttentionShape,
  heads: number[],
  codes: I32,
  books: I32,
  end: I32,
  base: I32,
  offsets: ReturnType<typeof scratchLayout>,
  scores: I32,
  addsPairs: boolean,
): void {
  // The page-relative queries are no longer needed.
  const [nibble] = hoist(k, base, [i8x16.const(15)]);
  const sums = heads.map(() => byteSums(k));
  const nibbles = [0, 1].map(() => k.v128());
  const entry = k.v128();
  const [from, table] = [k.i32(), k.i32()];
  k.for(0, pageTokens, 32, token => {
    for (const half of [0, 1]) {
      k.set(from, i32.add(codes, i32.shrU(token, 1)));
      k.set(table, i32.add(base, offsets.tables));
      for (const headSums of sums) clearByteSums(k, headSums);
      k.forAddresses(books, end, 2 * KEY_BOOK_BYTES, book => {
        nibbles.forEach((local, n) => {
          const bytes = v128.load(i32.add(from, i32.load(book, KEY_BOOK_BYTES * n + CODES_OFFSET)));
          k.set(local, v128.and(half ? i16x8.shrU(bytes, 4) : bytes, nibble));
        });
        heads.forEach((g, i) => {
          const [a, b] = nibbles.map((local, n) => swizzle(relaxed)(v128.load(table, 16 * (n * group + g)), local));
          for (const bytes of addsPairs ? [i8x16.add(a, b)] : [a, b]) {
            k.set(entry, bytes);
            addBytes(k, sums[i], entry);
          }
        });
        k.increment(table, 2 * 16 * group);
      });
      const to = k.i32(index(scores, 4, token));
      heads.forEach((g, i) => {
        scoreByteSums(k, relaxed, sums[i], base, offsets.scales + 8 * g, (score, n) =>
          k.do(v128.store(to, score, 4 * (g * pageTokens + 16 * half + 4 * n))),
        );
      });
    }
  });
}
