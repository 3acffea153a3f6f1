/** Product codes: runs of dims as entries of books, to floats and from them. */
import type { PageFragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i32, i32x4, v128 } from '../emit.ts';
import { packGrid, unpackGrid } from '../grid.ts';
import type { Kernel } from '../module.ts';

type Book = PageFragment & { kind: 'book' };

/** Addresses: the books as they are, and, for the search, with the same dim of all entries side by side. */
export interface Books {
  entries: number;
  byDim: number;
}

interface Size {
  headDim: number;
  pageTokens: number;
}

/** Entries of the search come in fours: a book of two is filled up with entries that nothing is near to. */
const searched = ({ codes }: Book) => Math.max(4, 2 ** codes.bits);
const FAR = 1e18;

export function placeBooks(kind: Book, place: (data: Float32Array) => number): Books {
  const { dims, books, codes } = kind;
  const [entries, width] = [2 ** codes.bits, searched(kind)];
  const byDim = new Float32Array((books.length / entries) * width).fill(FAR);
  books.forEach((value, i) => {
    const [book, entry] = [Math.floor(i / (entries * dims)), Math.floor(i / dims) % entries];
    byDim[(book * dims + (i % dims)) * width + entry] = value;
  });
  return { entries: place(books), byDim: place(byDim) };
}

/** The books of a head's first run, and the bytes from one run's to the next's. */
function booksOf({ own }: Book, address: number, bookBytes: number, runs: number, head: I32) {
  return own
    ? { first: i32.add(address, i32.mul(head, runs * bookBytes)), step: bookBytes }
    : { first: address, step: 0 };
}

/** out[token][dim] from a head's block; `codes` is room for them. */
export function unpackBook(
  k: Kernel,
  kind: Book,
  { headDim, pageTokens }: Size,
  tables: Books,
  block: I32,
  head: I32,
  codes: I32,
  out: I32,
): void {
  const { dims } = kind;
  const runs = headDim / dims;
  unpackGrid(k, { ...kind.codes, tokens: pageTokens, dims: runs }, block, codes);
  const { first, step } = booksOf(kind, tables.entries, 4 * dims * 2 ** kind.codes.bits, runs, head);
  const [from, to] = [k.i32(codes), k.i32(out)];
  const [start, book, entry] = [k.i32(first), k.i32(), k.i32()];
  const cell = kind.codes.bits > 8 ? 2 : 1;
  k.for(0, pageTokens, 1, () => {
    k.set(book, start);
    k.for(0, runs, 1, () => {
      const code = cell === 2 ? i32.load16U(from) : i32.load8U(from);
      k.set(entry, i32.add(book, i32.mul(code, 4 * dims)));
      for (let i = 0; i < dims; ) {
        if (i + 4 <= dims) k.do(v128.store(to, v128.load(entry, 4 * i), 4 * i));
        else k.do(f32.store(to, f32.load(entry, 4 * i), 4 * i));
        i += i + 4 <= dims ? 4 : 1;
      }
      k.increment(from, cell);
      k.increment(to, 4 * dims);
      k.increment(book, step);
    });
  });
}

/** Vectors y [token][dim] to a head's block. Four entries a turn; of equals the first, as codec/ has it. */
export function sealBook(
  k: Kernel,
  kind: Book,
  { headDim, pageTokens }: Size,
  tables: Books,
  block: I32,
  head: I32,
  y: I32,
  codes: I32,
): void {
  const { dims } = kind;
  const runs = headDim / dims;
  const width = searched(kind);
  const { first, step } = booksOf(kind, tables.byDim, 4 * dims * width, runs, head);
  const [from, to] = [k.i32(y), k.i32(codes)];
  const [start, book, at] = [k.i32(first), k.i32(), k.i32()];
  const x = Array.from({ length: dims }, () => k.v128());
  const [error, off, least, index, best, closer] = Array.from({ length: 6 }, () => k.v128());
  const [code, smallest] = [k.i32(), k.f32()];
  const cell = kind.codes.bits > 8 ? 2 : 1;
  k.for(0, pageTokens, 1, () => {
    k.set(book, start);
    k.for(0, runs, 1, () => {
      x.forEach((value, i) => {
        k.set(value, v128.load32Splat(from, 4 * i));
      });
      k.set(least, f32x4.const(3e38));
      k.set(best, v128.zero);
      k.set(index, i32x4.const(0, 1, 2, 3));
      k.set(at, book);
      k.for(0, width, 4, () => {
        x.forEach((value, i) => {
          k.set(off, f32x4.sub(value, v128.load(at, 4 * width * i)));
          k.set(error, i === 0 ? f32x4.mul(off, off) : f32x4.add(error, f32x4.mul(off, off)));
        });
        k.set(closer, f32x4.gt(least, error));
        k.set(least, f32x4.min(least, error));
        k.set(best, v128.xor(best, v128.and(v128.xor(best, index), closer)));
        k.set(index, i32x4.add(index, i32x4.const(4)));
        k.increment(at, 16);
      });
      k.set(smallest, f32x4.lane(least, 0));
      k.set(code, i32x4.lane(best, 0));
      for (let lane = 1; lane < 4; lane++) {
        const value = f32x4.lane(least, lane);
        const same = i32.and(f32.eq(value, smallest), i32.ltS(i32x4.lane(best, lane), code));
        k.if(i32.or(f32.lt(value, smallest), same), () => {
          k.set(smallest, value);
          k.set(code, i32x4.lane(best, lane));
        });
      }
      k.do(cell === 2 ? i32.store16(to, code) : i32.store8(to, code));
      k.increment(from, 4 * dims);
      k.increment(to, cell);
      k.increment(book, step);
    });
  });
  packGrid(k, { ...kind.codes, tokens: pageTokens, dims: runs }, codes, block);
}
