/**
 * Scores on pages of additive codebooks as they are packed (mead). Page by page, the queries are turned to the page's
 * start and mapped; each column gets a table of query x entry as bytes, and the sum of a token's entries over all
 * columns is its score: one swizzle serves 16 tokens. Books and maps are as additive-key-tables.ts makes them.
 */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, lanes32, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { beforeLoop, max4, multiplyAdd, sum4, swizzle } from '../ops.ts';
import { type Additive, mostColumns } from './additive.ts';
import { CODES_AT, DOT_BYTES, inPairs, mapNumbers, QUAD_AT } from './additive-key-tables.ts';
import type { AttendShape, KeyFragment } from './attend.ts';
import { INTERLEAVE } from './table-keys.ts';
import type { Tables } from './unpack.ts';

/** Dims of a mapped query that are made together; blocks are of whole ones. */
const OCTET = 8;
/** Dims of a query that a turn of the loop takes into them. */
const PAIR = 2;
/** Heads whose sums are kept in registers together. */
const HEADS = 4;

/** Entries that are added as bytes stay within this, in whole steps; each may be rounded down by almost one. */
const MOST = 126;
/** What is 1 step of a query as int16; dots with books, where 1 is 2^15, are moved down by as much. */
const QUERY_ONE = 256;
const DOWN = 23;

/** Room while a page is scored: turned queries, mapped ones, these as int16, tables; then for each head a scale and a constant. */
function scratchOf(shape: AttendShape, page: Additive) {
  const { group, headDim } = shape;
  const mapped = 4 * group * headDim;
  const whole = 2 * mapped;
  const tables = whole + 2 * group * headDim;
  const scales = tables + (mostColumns(page, shape) + 1) * group * 16;
  return { mapped, whole, tables, scales, bytes: scales + 8 * group };
}

export const additiveKeyScratch = ({ page }: Fragment, shape: AttendShape): number =>
  page.kind === 'additive' ? scratchOf(shape, page).bytes : 0;

export function additiveKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  scratch: () => I32,
): KeyFragment | undefined {
  const { page } = fragment;
  const { group, headDim, pageTokens, precise } = shape;
  if (page.kind !== 'additive' || precise || pageTokens % 32 !== 0) return undefined;
  const blocks = fragment.blocks ?? [headDim];
  if (blocks.some(size => size % OCTET !== 0)) return undefined;
  // Sums of bytes have 16 bits.
  if (mostColumns(page, shape) > 256) return undefined;
  const at = scratchOf(shape, page);
  const additive = tables.additive!;
  const together = inPairs(page, headDim);
  const queryBytes = 4 * group * headDim;
  return {
    queryBytes,
    prepare(k, queries, _head, out) {
      const to = k.i32(out);
      k.for(0, queryBytes, 16, i => k.do(v128.store(i32.add(to, i), v128.load(i32.add(queries, i)))));
    },
    open() {},
    scores(k, pageAt, head, query, scores, turn) {
      const room = k.i32(scratch());
      const [column, columnEnd] = [0, 4].map(next => k.i32(i32.load(i32.mul(head, 4), additive.firsts + next)));
      const [books, end] = [0, 4].map(next =>
        k.i32(i32.add(additive.dots, i32.mul(i32.load(i32.mul(head, 4), additive.dotFirsts + next), DOT_BYTES))),
      );
      const codes = k.i32(i32.add(pageAt, i32.mul(column, pageTokens / 2)));
      const unsigned = i32.divU(i32.sub(end, books), together ? 2 * DOT_BYTES : DOT_BYTES);
      const rounded = f32.mul(f32.fromI32(i32.sub(columnEnd, column)), f32.const(0.5));
      const bias = k.f32(f32.sub(rounded, f32.mul(f32.fromI32(unsigned), f32.const(128))));
      const mean = k.i32(i32.add(tables.mean!, i32.mul(head, 4 * headDim)));
      const maps = k.i32(i32.add(additive.maps, i32.mul(head, 4 * mapNumbers(blocks))));
      for (let from = 0; from < group; from += HEADS) {
        const heads = Array.from({ length: Math.min(HEADS, group - from) }, (_, i) => from + i);
        const constants = turnQueries(k, shape, heads, query, fragment.turn && turn, mean, room);
        const sizes = mapQueries(k, shape, heads, room, maps, at.mapped, blocks);
        heads.forEach((g, i) => {
          const step = k.f32(f32.max(f32.mul(f32.sqrt(max4(k, sizes[i])), f32.const(1 / MOST)), f32.const(1e-30)));
          const [mapped, whole] = [at.mapped + 4 * headDim * g, at.whole + 2 * headDim * g];
          roundQuery(k, headDim, i32.add(room, mapped), step, i32.add(room, whole));
          const constant = f32.add(sum4(k, constants[i]), f32.mul(bias, step));
          k.do(f32.store(room, step, at.scales + 8 * g), f32.store(room, constant, at.scales + 8 * g + 4));
        });
        buildTables(k, shape, heads, books, end, i32.add(room, at.whole), i32.add(room, at.tables), together);
        scoreColumns(k, shape, heads, codes, books, end, room, at, scores, together);
      }
    },
  };
}

/** Queries turned back to the page's start; gives each one's dot with the mean, a sum of four. */
function turnQueries(
  k: Kernel,
  { headDim, relaxed }: AttendShape,
  heads: number[],
  query: I32,
  turn: I32 | undefined,
  mean: I32,
  out: I32,
) {
  const add = multiplyAdd(relaxed);
  const sums = heads.map(() => k.v128(v128.zero));
  const [from, to, m] = [k.i32(query), k.i32(out), k.i32(mean)];
  const by = k.i32(turn ?? 0);
  const [x, cos, sin, own] = [k.v128(), k.v128(), k.v128(), k.v128()];
  k.for(0, 4 * headDim, 16, () => {
    if (turn !== undefined) {
      k.set(cos, v128.load(by));
      k.set(sin, v128.load(by, 16));
    }
    k.set(own, v128.load(m));
    heads.forEach((g, i) => {
      k.set(x, v128.load(from, 4 * headDim * g));
      if (turn !== undefined) k.set(x, add(v128.shuffle(x, x, lanes32(1, 0, 3, 2)), sin, f32x4.mul(x, cos)));
      k.set(sums[i], add(x, own, sums[i]));
      k.do(v128.store(to, x, 4 * headDim * g));
    });
    for (const address of [from, to, m]) k.increment(address, 16);
    k.increment(by, 32);
  });
  return sums;
}

/** Maps turned queries, block by block; gives each one's largest squared length of a quad, in one of four. */
function mapQueries(
  k: Kernel,
  { headDim, relaxed }: AttendShape,
  heads: number[],
  room: I32,
  maps: I32,
  mapped: number,
  blocks: readonly number[],
) {
  const add = multiplyAdd(relaxed);
  const sizes = heads.map(() => k.v128(v128.zero));
  const sums = heads.map(() => [0, 1].map(() => k.v128()));
  const [from, map, to] = [k.i32(room), k.i32(maps), k.i32(i32.add(room, mapped))];
  const [dims, rows] = [k.i32(), k.i32()];
  const columns = [0, 1].map(() => k.v128());
  const x = k.v128();
  const times = (n: number, body: () => void) => (n === 1 ? body() : k.for(0, n, 1, body));
  /** Eight dims of a mapped query from all `size` dims of its block. */
  const octet = (size: number) => {
    k.set(dims, from);
    k.set(rows, map);
    for (const sum of sums.flat()) k.set(sum, v128.zero);
    // Few at a time: all that a turn loads is loaded first, and has to fit into registers.
    k.for(0, size, PAIR, () => {
      for (let dim = 0; dim < PAIR; dim++) {
        columns.forEach((column, half) => {
          k.set(column, v128.load(rows, 4 * (size * dim + 4 * half)));
        });
        heads.forEach((g, i) => {
          k.set(x, v128.load32Splat(dims, 4 * (headDim * g + dim)));
          sums[i].forEach((sum, half) => {
            k.set(sum, add(columns[half], x, sum));
          });
        });
      }
      k.increment(dims, 4 * PAIR);
      k.increment(rows, 4 * PAIR * size);
    });
    heads.forEach((g, i) => {
      const [a, b] = sums[i].map(sum => k.v128(f32x4.mul(sum, sum)));
      const halves = k.v128(
        f32x4.add(v128.shuffle(a, b, lanes32(0, 1, 4, 5)), v128.shuffle(a, b, lanes32(2, 3, 6, 7))),
      );
      k.set(sizes[i], f32x4.max(sizes[i], f32x4.add(halves, v128.shuffle(halves, halves, lanes32(1, 0, 3, 2)))));
      sums[i].forEach((sum, half) => {
        k.do(v128.store(to, sum, 4 * headDim * g + 16 * half));
      });
    });
    k.increment(map, 4 * OCTET);
    k.increment(to, 4 * OCTET);
  };
  for (let first = 0; first < blocks.length; ) {
    const size = blocks[first];
    let count = 1;
    while (blocks[first + count] === size) count++;
    times(count, () => {
      times(size / OCTET, () => octet(size));
      // The map's pointer has gone along its first row; the next map is behind the last.
      k.increment(map, 4 * (size * size - size));
      k.increment(from, 4 * size);
    });
    first += count;
  }
  return sizes;
}

/** A mapped query in steps, as int16. */
function roundQuery(k: Kernel, headDim: number, query: I32, step: Local<'f32'>, out: I32): void {
  const [from, to] = [k.i32(query), k.i32(out)];
  const scale = k.v128(f32x4.splat(f32.div(f32.const(QUERY_ONE), step)));
  const words = [0, 1].map(n => {
    const shifted = f32x4.add(f32x4.mul(v128.load(from, 16 * n), scale), f32x4.const(12582912));
    return i32x4.sub(shifted, i32x4.const(0x4b400000));
  });
  k.for(0, 4 * headDim, 32, () => {
    k.do(v128.store(to, i16x8.narrowS(words[0], words[1])));
    k.increment(from, 32);
    k.increment(to, 16);
  });
}

/** Tables [column][head][16] of bytes. Those of columns that are not added to others have no sign: 128 more than they stand for. */
function buildTables(
  k: Kernel,
  { group, headDim }: AttendShape,
  heads: number[],
  books: I32,
  end: I32,
  queries: I32,
  out: I32,
  together: boolean,
): void {
  const [whole, to] = [k.i32(queries), k.i32(out)];
  const entries = Array.from({ length: 8 }, () => k.v128());
  const [low, high] = [k.v128(), k.v128()];
  const sign = k.v128(i8x16.const(-128));
  k.forAddresses(books, end, 2 * DOT_BYTES, from => {
    for (const second of [0, 1]) {
      const at = DOT_BYTES * second;
      const quad = k.i32(i32.add(whole, i32.load(from, at + QUAD_AT)));
      entries.forEach((entry, n) => {
        k.set(entry, v128.load(from, at + 16 * n));
      });
      for (const g of heads) {
        k.set(low, v128.load32Splat(quad, 2 * headDim * g));
        k.set(high, v128.load32Splat(quad, 2 * headDim * g + 4));
        const words = [0, 1, 2, 3].map(n =>
          i32x4.shrS(i32x4.add(i32x4.dot(entries[n], low), i32x4.dot(entries[4 + n], high)), DOWN),
        );
        const bytes = i8x16.narrowS(i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3]));
        k.do(v128.store(to, second && together ? bytes : v128.xor(bytes, sign), 16 * (second * group + g)));
      }
    }
    k.increment(to, 2 * 16 * group);
  });
}

/** Scores of a page: the sums of table entries, times the scale of a head's tables, and its constant. */
function scoreColumns(
  k: Kernel,
  { group, pageTokens, relaxed }: AttendShape,
  heads: number[],
  codes: I32,
  books: I32,
  end: I32,
  room: I32,
  at: ReturnType<typeof scratchOf>,
  scores: I32,
  together: boolean,
): void {
  // Where the turned queries were.
  const [nibble] = beforeLoop(k, room, [i8x16.const(15)]);
  // Bytes are summed as the even and odd halves of 16-bit lanes: `raw` takes both, `odd` the upper one alone.
  const sums = heads.map(() => ({ raw: k.v128(), odd: k.v128() }));
  const index = [0, 1].map(() => k.v128());
  const entry = k.v128();
  const [from, table] = [k.i32(), k.i32()];
  k.for(0, pageTokens, 32, token => {
    for (const half of [0, 1]) {
      k.set(from, i32.add(codes, i32.shrU(token, 1)));
      k.set(table, i32.add(room, at.tables));
      for (const { raw, odd } of sums) {
        k.set(raw, v128.zero);
        k.set(odd, v128.zero);
      }
      k.forAddresses(books, end, 2 * DOT_BYTES, book => {
        index.forEach((local, n) => {
          const bytes = v128.load(i32.add(from, i32.load(book, DOT_BYTES * n + CODES_AT)));
          k.set(local, v128.and(half ? i16x8.shrU(bytes, 4) : bytes, nibble));
        });
        heads.forEach((g, i) => {
          const { raw, odd } = sums[i];
          const [a, b] = index.map((local, n) => swizzle(relaxed)(v128.load(table, 16 * (n * group + g)), local));
          for (const bytes of together ? [i8x16.add(a, b)] : [a, b]) {
            k.set(entry, bytes);
            k.set(raw, i16x8.add(raw, entry));
            k.set(odd, i16x8.add(odd, i16x8.shrU(entry, 8)));
          }
        });
        k.increment(table, 2 * 16 * group);
      });
      const to = k.i32(i32.add(scores, i32.mul(token, 4)));
      heads.forEach((g, i) => {
        const { raw, odd } = sums[i];
        k.set(raw, i16x8.sub(raw, i16x8.shl(odd, 8)));
        const [scale, constant] = [0, 4].map(of => k.v128(v128.load32Splat(room, at.scales + 8 * g + of)));
        INTERLEAVE.forEach((lanes, eighth) => {
          const eight = k.v128(v128.shuffle(raw, odd, lanes));
          [i32x4.extendLowU(eight), i32x4.extendHighU(eight)].forEach((four, quarter) => {
            const score = multiplyAdd(relaxed)(f32x4.fromI32(four), scale, constant);
            k.do(v128.store(to, score, 4 * (g * pageTokens + 16 * half + 8 * eighth + 4 * quarter)));
          });
        });
      });
    }
  });
}
