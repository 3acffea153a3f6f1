/**
 * Additive codebooks for quads (four neighbouring coefficients). A quad with n nibbles is the sum of n entries, one of
 * each of n books of 16: greedy from book to book, then sweeps that choose each again with the others fixed.
 */
import type { Shape } from '../codec.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';

export const ENTRIES = 16;
export const QUAD = 4;
/** Numbers in a book. */
export const BOOK = ENTRIES * QUAD;
export const MOST_NIBBLES = 6;
/** Books for 1, 2, ... nibbles follow one another: those for n begin after n (n - 1) / 2 others. */
export const booksBefore = (n: number): number => (n * (n - 1)) / 2;
export const ALL_BOOKS = booksBefore(MOST_NIBBLES + 1);
/** Sweeps after the greedy choice when a page is sealed. */
const SWEEPS = 2;

/** Half the squared length of every entry: what makes the nearest entry a matter of dots. */
function halfLengths(books: Float64Array): Float64Array {
  return Float64Array.from({ length: books.length / QUAD }, (_, e) => {
    let sum = 0;
    for (let i = QUAD * e; i < QUAD * e + QUAD; i++) sum += books[i] ** 2;
    return sum / 2;
  });
}

/**
 * A page:
 *   codes   columns of nibbles, each a grid of its own (see pack.ts), in the order of heads, then quads, then books: the
 *           entry of that book. A quad has as many columns as the plan gave it nibbles. How many there are is
 *           data: blocks of strips over all of them would lie at distances that no kernel knows when it is compiled.
 * `all` holds every quad's books for 1 to 6 nibbles, as they were trained.
 */
export function bookFormat(all: Float32Array, counts: Uint8Array, { headDim, pageTokens }: Shape): PageFormat {
  const quads = headDim / QUAD;
  const firstColumn = prefixSums(counts);
  const columns = firstColumn[counts.length];
  const books = new Float32Array(columns * BOOK);
  counts.forEach((n, unit) => {
    const from = (unit * ALL_BOOKS + booksBefore(n)) * BOOK;
    books.set(all.subarray(from, from + n * BOOK), firstColumn[unit] * BOOK);
  });
  const exact = Float64Array.from(books);
  const halves = halfLengths(exact);
  const grid = createGrid(pageTokens, 1, 4, 'columns');
  const columnOf = (page: Uint8Array, column: number) => page.subarray(column * grid.bytes, (column + 1) * grid.bytes);
  const rest = new Float64Array(QUAD);
  const codes = new Uint8Array(MOST_NIBBLES);
  return {
    fields: [
      {
        name: 'codes',
        bytes: columns * grid.bytes,
        per: 'page',
        about: `${columns} columns x ${pageTokens} nibbles: heads, quads, then the books of a quad; an entry of 16`,
      },
    ],
    fragment: { kind: 'additive', counts, books, sweeps: SWEEPS },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        for (let q = 0; q < quads; q++) {
          const unit = head * quads + q;
          const [first, n] = [firstColumn[unit], counts[unit]];
          for (let t = 0; t < tokens && n > 0; t++) {
            rest.set(vectors.subarray(t * headDim + q * QUAD, t * headDim + (q + 1) * QUAD));
            encodeQuad(exact, halves, first, n, rest, codes);
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
          const at = column * BOOK + grid.read(columnOf(page, column), token, 0) * QUAD;
          for (let i = 0; i < QUAD; i++) out[q * QUAD + i] += books[at + i];
        }
      }
    },
  };
}

/** Sums of all before each, and of all. */
export function prefixSums(counts: ArrayLike<number>): number[] {
  const sums = [0];
  for (let i = 0; i < counts.length; i++) sums.push(sums[i] + counts[i]);
  return sums;
}

/** Codes of one quad by its `n` books from `first` on; `rest` holds the quad, and in the end what the codes leave. */
function encodeQuad(
  books: Float64Array,
  halves: Float64Array,
  first: number,
  n: number,
  rest: Float64Array,
  codes: Uint8Array,
): void {
  const move = (book: number, sign: number) => {
    const at = (first + book) * BOOK + codes[book] * QUAD;
    for (let i = 0; i < QUAD; i++) rest[i] += sign * books[at + i];
  };
  for (let sweep = 0; sweep <= (n > 1 ? SWEEPS : 0); sweep++) {
    for (let book = 0; book < n; book++) {
      if (sweep > 0) move(book, 1);
      codes[book] = nearest(books, halves, first + book, rest);
      move(book, -1);
    }
  }
}

/** The entry of a book nearest to a quad; the first of equals. */
function nearest(books: Float64Array, halves: Float64Array, book: number, [a, b, c, d]: Float64Array): number {
  let best = 0;
  let most = Number.NEGATIVE_INFINITY;
  for (let e = 0, at = book * BOOK; e < ENTRIES; e++, at += QUAD) {
    const dot = a * books[at] + b * books[at + 1] + c * books[at + 2] + d * books[at + 3];
    const gain = dot - halves[book * ENTRIES + e];
    if (gain > most) {
      most = gain;
      best = e;
    }
  }
  return best;
}
