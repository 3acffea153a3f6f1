/**
 * Pages of additive codebooks (mead): a quad is the sum of one entry of each of its books, and each book has a column
 * of codes. The number of books per quad is data: `columnCounts` is [kv head][quad] i32, `firstColumns` each KV head's
 * first column followed by the total number, `books` has CODEBOOK_BYTES per column.
 */
import { ADDITIVE_STARTS, MAX_ADDITIVE_BOOKS, type PageLayout } from '../../page-layout.ts';
import { type F32, f32, f32x4, type I32, i32, i32x4, index, type Local, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import type { DequantizeContext, SealContext } from './head-context.ts';
import { CODEBOOK_BYTES, findStarts, keepBetter, nearestEntries, transposeQuads } from './quad-codebook.ts';

export interface AdditiveTables {
  columnCounts: number;
  firstColumns: number;
  books: number;
  /** For scores: see additive-key-tables.ts. `firstKeyBooks` is the index into `keyBooks` per KV head. */
  keyBooks: number;
  firstKeyBooks: number;
  queryMaps: number;
  /** For weighted sums: see additive-values.ts. */
  valueBooks: number;
  valueSteps: number;
}

export type AdditiveEncoding = PageLayout['encoding'] & { kind: 'additive' };

/** Max columns per head. */
export function maxColumns({ booksPerQuad }: AdditiveEncoding, { kvHeads }: { kvHeads: number }): number {
  const quads = booksPerQuad.length / kvHeads;
  const columns = Array.from({ length: kvHeads }, (_, head) =>
    booksPerQuad.subarray(head * quads, (head + 1) * quads).reduce((sum, count) => sum + count, 0),
  );
  return Math.max(...columns);
}

const QUAD_BYTES = 16;

/** Bytes per block of a column, L in codec/pack.ts: byte i of a block holds its tokens i and L + i. */
const blockBytesOf = (tokens: number) => Math.min(16, (tokens / 2) & -(tokens / 2));

/** Calls `body` for each quad of a head with its byte offset in the vector, its column count and its first column. */
export function forEachQuad(
  k: Kernel,
  { columnCounts, firstColumns }: AdditiveTables,
  headDim: number,
  head: I32,
  body: (offset: Local<'i32'>, count: Local<'i32'>, column: Local<'i32'>) => void,
): void {
  const column = k.i32(i32.load(i32.mul(head, 4), firstColumns));
  const entry = k.i32(index(columnCounts, headDim, head));
  k.for(0, 4 * headDim, QUAD_BYTES, offset => {
    const count = k.i32(i32.load(i32.add(entry, i32.shrU(offset, 2))));
    body(offset, count, column);
    k.increment(column, count);
  });
}

const loadEntry = (book: I32, code: I32) => v128.load(index(book, QUAD_BYTES, code));

/** Writes a head's vectors, [token][headDim] f32. */
export function dequantizeAdditive(
  { k, shape: { headDim, pageTokens: tokens }, page, head, out }: DequantizeContext,
  tables: AdditiveTables,
): void {
  const blockBytes = blockBytesOf(tokens);
  k.for(0, 4 * headDim * tokens, 16, i => k.do(v128.store(i32.add(out, i), v128.zero)));
  forEachQuad(k, tables, headDim, head, (offset, count, first) => {
    k.for(first, i32.add(first, count), 1, column => {
      const book = k.i32(index(tables.books, CODEBOOK_BYTES, column));
      const from = k.i32(index(page, tokens / 2, column));
      const quads = k.i32(i32.add(out, offset));
      const add = (to: I32, code: I32) => k.do(v128.store(to, f32x4.add(v128.load(to), loadEntry(book, code))));
      k.for(0, tokens / 2, 1, i => {
        const byte = k.i32(i32.load8U(i32.add(from, i)));
        const token = i32.add(i32.mul(i32.divU(i, blockBytes), 2 * blockBytes), i32.remU(i, blockBytes));
        const low = k.i32(index(quads, 4 * headDim, token));
        add(low, i32.and(byte, 15));
        add(k.i32(i32.add(low, 4 * headDim * blockBytes)), i32.shrU(byte, 4));
      });
    });
  });
}

/**
 * Encodes a head's vectors `y` and returns the squared error of the tokens from the first coded row on. Takes 20 bytes
 * per token of `x`, and 16 of `codes`.
 */
export function sealAdditive(
  { k, shape: { headDim, pageTokens: tokens }, page, head, y, x, codes: bytes, tail }: SealContext,
  tables: AdditiveTables,
): F32 {
  const blockBytes = blockBytesOf(tokens);
  const [residual, errors] = [k.i32(x), k.i32(i32.add(x, QUAD_BYTES * tokens))];
  const codes = k.i32(bytes);
  const candidate = k.i32(i32.add(bytes, MAX_ADDITIVE_BOOKS * tokens));
  const starts = k.i32(i32.add(candidate, MAX_ADDITIVE_BOOKS * tokens));
  const sum = k.f32(f32.const(0));
  const quad = k.v128();
  forEachQuad(k, tables, headDim, head, (offset, count, first) => {
    const bookOf = (n: I32) => index(tables.books, CODEBOOK_BYTES, i32.add(first, n));
    const firstBook = k.i32(bookOf(0));
    const copyQuads = (change: (t: Local<'i32'>) => void) =>
      k.for(0, tokens, 1, t => {
        k.set(quad, v128.load(index(i32.add(y, offset), 4 * headDim, t)));
        change(t);
        k.do(v128.store(index(residual, QUAD_BYTES, t), quad));
      });
    copyQuads(t => k.do(f32.store(index(errors, 4, t), f32.const(Number.POSITIVE_INFINITY))));
    const keep = () => keepBetter(k, { rows: residual, errors, codes, candidate }, count, tokens);
    const encode = () => {
      findStarts(k, residual, starts, firstBook, tokens);
      const start = k.i32(starts);
      const tries = k.i32(i32.select(i32.gtS(count, 1), ADDITIVE_STARTS, 1));
      k.for(0, tries, 1, () => {
        copyQuads(t => {
          const code = k.i32(i32.load8U(i32.add(start, t)));
          k.do(i32.store8(i32.add(candidate, t), code));
          k.set(quad, f32x4.sub(quad, loadEntry(firstBook, code)));
        });
        k.for(1, count, 1, n => {
          assignEntries(k, residual, index(candidate, tokens, n), bookOf(n), tokens);
        });
        keep();
        k.increment(start, tokens);
      });
    };
    // Without a book, the error is the quad itself.
    k.if(count, encode, keep);
    k.for(tail.firstCodedRow, tokens, 1, t => k.set(sum, f32.add(sum, f32.load(index(errors, 4, t)))));
    k.for(0, count, 1, n => {
      const from = k.i32(index(codes, tokens, n));
      const to = k.i32(index(page, tokens / 2, i32.add(first, n)));
      k.for(0, tokens / 2, 1, i => {
        const low = k.i32(
          i32.add(from, i32.add(i32.mul(i32.divU(i, blockBytes), 2 * blockBytes), i32.remU(i, blockBytes))),
        );
        k.do(i32.store8(i32.add(to, i), i32.or(i32.load8U(low), i32.shl(i32.load8U(low, blockBytes), 4))));
      });
    });
  });
  return sum;
}

/** Assigns every token the entry of a book that is nearest to its residual, and subtracts it. */
function assignEntries(k: Kernel, residual: I32, codes: I32, bookAddress: I32, tokens: number): void {
  const from = k.i32(residual);
  const code = k.i32(codes);
  const book = k.i32(bookAddress);
  const rows = Array.from({ length: 8 }, () => k.v128());
  k.for(0, tokens, 8, () => {
    for (const [i, row] of rows.entries()) k.set(row, v128.load(from, QUAD_BYTES * i));
    const entries = nearestEntries(k, [transposeQuads(k, rows.slice(0, 4)), transposeQuads(k, rows.slice(4))], book);
    rows.forEach((row, i) => {
      const chosen = k.i32(i32x4.lane(entries[i >> 2], i & 3));
      k.do(i32.store8(code, chosen, i));
      k.do(v128.store(from, f32x4.sub(row, loadEntry(book, chosen)), QUAD_BYTES * i));
    });
    k.increment(from, 8 * QUAD_BYTES);
    k.increment(code, 8);
  });
}
