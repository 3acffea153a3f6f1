/**
 * Pages of additive codebooks (mead): a quad is the sum of entries of its books. How many books a quad has is data, so
 * these kernels read it: `counts` is [kv head][quad] columns as i32, `firsts` [kv head] the head's first column, then the end, and
 * `books` has BOOK_BYTES a column.
 */
import type { Fragment } from '../../fragment.ts';
import { f32x4, type I32, i32, i32x4, type Local, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { BOOK_BYTES, nearestEntries, transpose } from './quads.ts';

export interface AdditiveTables {
  counts: number;
  firsts: number;
  books: number;
  /** For scores on codes: see additive-keys.ts. */
  dots: number;
  maps: number;
  /** For sums on codes: see additive-values.ts. */
  bytes: number;
  steps: number;
  /** 15 in each of 16 bytes, then 1 in each of 8 int16: constants that are read are not made anew in every turn of a loop. */
  nibble: number;
}

export type Additive = Fragment['page'] & { kind: 'additive' };

/** The most columns that a head has. */
export function mostColumns({ counts }: Additive, { kvHeads }: { kvHeads: number }): number {
  const quads = counts.length / kvHeads;
  const columns = Array.from({ length: kvHeads }, (_, head) =>
    counts.subarray(head * quads, (head + 1) * quads).reduce((sum, count) => sum + count, 0),
  );
  return Math.max(...columns);
}

/** Sweeps after the greedy choice, as in codec/mead/books.ts. */
const SWEEPS = 2;
const QUAD_BYTES = 16;

/** Bytes side by side in a line of nibbles: byte i holds tokens i and lane + i of each run of twice as many. */
const laneOf = (tokens: number) => Math.min(16, (tokens / 2) & -(tokens / 2));

/** Calls `body` for each quad of a head, with its place in the vector, its count and its first column. */
export function forQuads(
  k: Kernel,
  { counts, firsts }: AdditiveTables,
  headDim: number,
  head: I32,
  body: (offset: Local<'i32'>, count: Local<'i32'>, column: Local<'i32'>) => void,
): void {
  const column = k.i32(i32.load(i32.mul(head, 4), firsts));
  const entry = k.i32(i32.add(counts, i32.mul(head, headDim)));
  k.for(0, 4 * headDim, QUAD_BYTES, offset => {
    const count = k.i32(i32.load(i32.add(entry, i32.shrU(offset, 2))));
    body(offset, count, column);
    k.increment(column, count);
  });
}

/** The entry of a book that a code stands for. */
const entryAt = (book: I32, code: I32) => v128.load(i32.add(book, i32.mul(code, QUAD_BYTES)));

/** A head's vectors, [token][headDim] f32. */
export function unpackAdditive(
  k: Kernel,
  tables: AdditiveTables,
  headDim: number,
  tokens: number,
  page: I32,
  head: I32,
  out: I32,
): void {
  const lane = laneOf(tokens);
  k.for(0, 4 * headDim * tokens, 16, i => k.do(v128.store(i32.add(out, i), v128.zero)));
  forQuads(k, tables, headDim, head, (offset, count, first) => {
    k.for(first, i32.add(first, count), 1, column => {
      const book = k.i32(i32.add(tables.books, i32.mul(column, BOOK_BYTES)));
      const from = k.i32(i32.add(page, i32.mul(column, tokens / 2)));
      const quads = k.i32(i32.add(out, offset));
      const add = (to: I32, code: I32) => k.do(v128.store(to, f32x4.add(v128.load(to), entryAt(book, code))));
      k.for(0, tokens / 2, 1, i => {
        const byte = k.i32(i32.load8U(i32.add(from, i)));
        const token = i32.add(i32.mul(i32.divU(i, lane), 2 * lane), i32.remU(i, lane));
        const low = k.i32(i32.add(quads, i32.mul(token, 4 * headDim)));
        add(low, i32.and(byte, 15));
        add(k.i32(i32.add(low, 4 * headDim * lane)), i32.shrU(byte, 4));
      });
    });
  });
}

/** Codes a head's vectors `y`, [token][headDim] f32. `rest` is room for a quad of every token, `codes` for 6 bytes each. */
export function sealAdditive(
  k: Kernel,
  tables: AdditiveTables,
  headDim: number,
  tokens: number,
  page: I32,
  head: I32,
  y: I32,
  rest: I32,
  codes: I32,
): void {
  const lane = laneOf(tokens);
  forQuads(k, tables, headDim, head, (offset, count, first) => {
    k.for(0, tokens, 1, t => {
      const quad = v128.load(i32.add(i32.add(y, offset), i32.mul(t, 4 * headDim)));
      k.do(v128.store(i32.add(rest, i32.mul(t, QUAD_BYTES)), quad));
    });
    const sweeps = k.i32(i32.select(i32.gtS(count, 1), SWEEPS + 1, 1));
    k.for(0, sweeps, 1, sweep => {
      k.for(0, count, 1, n => {
        const book = k.i32(i32.add(tables.books, i32.mul(i32.add(first, n), BOOK_BYTES)));
        chooseAgain(k, rest, i32.add(codes, i32.mul(n, tokens)), book, tokens, sweep);
      });
    });
    k.for(0, count, 1, n => {
      const from = k.i32(i32.add(codes, i32.mul(n, tokens)));
      const to = k.i32(i32.add(page, i32.mul(i32.add(first, n), tokens / 2)));
      k.for(0, tokens / 2, 1, i => {
        const low = k.i32(i32.add(from, i32.add(i32.mul(i32.divU(i, lane), 2 * lane), i32.remU(i, lane))));
        k.do(i32.store8(i32.add(to, i), i32.or(i32.load8U(low), i32.shl(i32.load8U(low, lane), 4))));
      });
    });
  });
}

/** Every token's nearest entry of a book for what the others leave; `again` puts the present choice back first. */
function chooseAgain(k: Kernel, rest: I32, codes: I32, book: I32, tokens: number, again: I32): void {
  const from = k.i32(rest);
  const code = k.i32(codes);
  const rows = Array.from({ length: 8 }, () => k.v128());
  k.for(0, tokens, 8, () => {
    rows.forEach((row, i) => {
      k.set(row, v128.load(from, QUAD_BYTES * i));
    });
    k.if(again, () => {
      rows.forEach((row, i) => {
        k.set(row, f32x4.add(row, entryAt(book, i32.load8U(code, i))));
      });
    });
    const entries = nearestEntries(k, [transpose(k, rows.slice(0, 4)), transpose(k, rows.slice(4))], book);
    rows.forEach((row, i) => {
      const chosen = k.i32(i32x4.lane(entries[i >> 2], i & 3));
      k.do(i32.store8(code, chosen, i));
      k.do(v128.store(from, f32x4.sub(row, entryAt(book, chosen)), QUAD_BYTES * i));
    });
    k.increment(from, 8 * QUAD_BYTES);
    k.increment(code, 8);
  });
}
