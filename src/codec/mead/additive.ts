/**
 * Additive quantization of quads (four neighbouring coefficients). A quad with n nibbles is the sum of n entries, one from
 * each of n codebooks of 16. Encoding is greedy, book by book, from each of the four nearest entries of the first book; the
 * smallest error wins. Of Gaussian quads it leaves 9 to 25 % less than starting from the nearest entry alone.
 */
import { ADDITIVE_STARTS, MAX_ADDITIVE_BOOKS } from '../../kernel/page-layout.ts';
import type { Shape } from '../codec.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';

export const ENTRIES = 16;
export const QUAD = 4;
/** Floats per book. */
export const BOOK_LENGTH = ENTRIES * QUAD;
export const MAX_NIBBLES = MAX_ADDITIVE_BOOKS;
/** Each number of nibbles has its own books, stored in ascending order: n (n - 1) / 2 of them precede those for n. */
export const booksBefore = (n: number): number => (n * (n - 1)) / 2;
export const TOTAL_BOOKS = booksBefore(MAX_NIBBLES + 1);

/** |entry|^2 / 2 of every entry: the nearest entry maximizes x . entry - |entry|^2 / 2. */
function halfSquaredNorms(books: Float64Array): Float64Array {
  return Float64Array.from({ length: books.length / QUAD }, (_, e) => {
    let sum = 0;
    for (let i = QUAD * e; i < QUAD * e + QUAD; i++) sum += books[i] ** 2;
    return sum / 2;
  });
}

/**
 * A page:
 *   codes   columns of nibbles, ordered by head, quad and book: the entry of that book. A quad has as many columns as the
 *           plan gave it nibbles. Each column is a separate grid (see pack.ts): their number is data, so strips over all
 *           columns would have strides that are unknown when kernels are compiled.
 * `allBooks` holds every quad's trained books for 1 to 6 nibbles.
 */
export function additiveFormat(
  allBooks: Float32Array,
  booksPerQuad: Uint8Array,
  { headDim, pageTokens }: Shape,
): PageFormat {
  const quads = headDim / QUAD;
  const firstColumn = prefixSums(booksPerQuad);
  const columns = firstColumn[booksPerQuad.length];
  const books = new Float32Array(columns * BOOK_LENGTH);
  booksPerQuad.forEach((n, unit) => {
    const from = (unit * TOTAL_BOOKS + booksBefore(n)) * BOOK_LENGTH;
    books.set(allBooks.subarray(from, from + n * BOOK_LENGTH), firstColumn[unit] * BOOK_LENGTH);
  });
  const books64 = Float64Array.from(books);
  const halfNorms = halfSquaredNorms(books64);
  const grid = createGrid(pageTokens, 1, 4, 'columns');
  const columnOf = (page: Uint8Array, column: number) => page.subarray(column * grid.bytes, (column + 1) * grid.bytes);
  const quad = new Float64Array(QUAD);
  return {
    fields: [
      {
        name: 'codes',
        bytes: columns * grid.bytes,
        per: 'page',
        about: `${columns} columns x ${pageTokens} nibbles: heads, quads, then the books of a quad; an entry of 16`,
      },
    ],
    encoding: { kind: 'additive', booksPerQuad, books },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        for (let q = 0; q < quads; q++) {
          const unit = head * quads + q;
          const [first, n] = [firstColumn[unit], booksPerQuad[unit]];
          for (let t = 0; t < tokens && n > 0; t++) {
            quad.set(vectors.subarray(t * headDim + q * QUAD, t * headDim + (q + 1) * QUAD));
            const codes = encodeQuad(books64, halfNorms, first, n, quad);
            for (let book = 0; book < n; book++) grid.write(columnOf(page, first + book), t, 0, codes[book]);
          }
        }
      });
    },
    read(page, head, token, out) {
      out.fill(0);
      for (let q = 0; q < quads; q++) {
        const unit = head * quads + q;
        for (let column = firstColumn[unit]; column < firstColumn[unit + 1]; column++) {
          const at = column * BOOK_LENGTH + grid.read(columnOf(page, column), token, 0) * QUAD;
          for (let i = 0; i < QUAD; i++) out[q * QUAD + i] += books[at + i];
        }
      }
    },
  };
}

/** Exclusive prefix sums, followed by the total. */
export function prefixSums(counts: ArrayLike<number>): number[] {
  const sums = [0];
  for (let i = 0; i < counts.length; i++) sums.push(sums[i] + counts[i]);
  return sums;
}

/** The codes of one quad: the entries of its `n` books from `first` on. */
function encodeQuad(
  books: Float64Array,
  halfNorms: Float64Array,
  first: number,
  n: number,
  quad: Float64Array,
): Uint8Array {
  const gains = gainsOf(books, halfNorms, first, quad);
  const byNearness = Array.from(gains.keys()).sort((e, f) => gains[f] - gains[e]);
  let best = new Uint8Array(n);
  let smallest = Number.POSITIVE_INFINITY;
  for (const start of byNearness.slice(0, n > 1 ? ADDITIVE_STARTS : 1)) {
    const codes = new Uint8Array(n);
    const residual = quad.slice();
    for (let book = 0; book < n; book++) {
      codes[book] = book === 0 ? start : largest(gainsOf(books, halfNorms, first + book, residual));
      const at = (first + book) * BOOK_LENGTH + codes[book] * QUAD;
      for (let i = 0; i < QUAD; i++) residual[i] -= books[at + i];
    }
    const error = residual.reduce((sum, x) => sum + x * x, 0);
    if (error < smallest) [smallest, best] = [error, codes];
  }
  return best;
}

/** By entry of a book: the nearest one to a quad has the largest gain. */
function gainsOf(books: Float64Array, halfNorms: Float64Array, book: number, [a, b, c, d]: Float64Array): Float64Array {
  const gains = new Float64Array(ENTRIES);
  for (let e = 0, at = book * BOOK_LENGTH; e < ENTRIES; e++, at += QUAD) {
    const dot = a * books[at] + b * books[at + 1] + c * books[at + 2] + d * books[at + 3];
    gains[e] = dot - halfNorms[book * ENTRIES + e];
  }
  return gains;
}

/** The index of the largest number; the first of equal ones. */
function largest(numbers: Float64Array): number {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}
