/** Product codes: a vector's dims in runs of N, each run an index into a learned book of 2^B entries. */
import type { Shape } from '../codec.ts';
import { type Field, layOut } from '../layout.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { createSearch, draw, kmeans } from '../parts/kmeans.ts';
import { createRandom } from '../parts/random.ts';

export interface Product {
  /** N: dims of a sub-vector. */
  dims: number;
  /** B: bits of its index. */
  bits: number;
  /** A book for every head and sub-vector; else one for all. */
  own: boolean;
}

/** How many sub-vectors a book is learned from at most: in all, and (its own being small) for each of its entries. */
const MOST_POINTS = 131_072;
const POINTS_AN_ENTRY = 64;

/** Numbers in all books of a layer's keys or values. */
export const bookLength = (product: Product, shape: Shape): number =>
  bookCount(product, shape) * 2 ** product.bits * product.dims;

const bookCount = ({ dims, own }: Product, { headDim, kvHeads }: Shape) => (own ? (kvHeads * headDim) / dims : 1);

/** [book][entry][dim] from vectors of the domain, [kv head][sample][dim]; books are by head, then by sub-vector. */
export function learnBooks(vectors: Float32Array, product: Product, shape: Shape): Float32Array {
  const { dims, bits } = product;
  const { headDim, kvHeads } = shape;
  const entries = 2 ** bits;
  const subs = headDim / dims;
  const count = vectors.length / headDim / kvHeads;
  const books = bookCount(product, shape);
  const points = (kvHeads * count * subs) / books;
  const random = createRandom(dims * 100 + bits);
  // Where sub-vector `sub` of a head's sample lies; a book of its own sees one head and sub-vector, a shared one all.
  const placeOf = (book: number, point: number) => {
    if (books === 1) return point * dims;
    const [head, sub] = [Math.floor(book / subs), book % subs];
    return (head * count + point) * headDim + sub * dims;
  };
  const out = new Float32Array(bookLength(product, shape));
  for (let book = 0; book < books; book++) {
    const most = books === 1 ? MOST_POINTS : Math.min(MOST_POINTS, POINTS_AN_ENTRY * entries);
    const chosen = draw(points, Math.min(points, most), random);
    const sample = new Float32Array(chosen.length * dims);
    chosen.forEach((point, i) => {
      const from = placeOf(book, point);
      sample.set(vectors.subarray(from, from + dims), i * dims);
    });
    out.set(kmeans(sample, dims, entries, random), book * entries * dims);
  }
  return out;
}

/**
 * One head's block:
 *   codes   headDim / N x pageTokens indices of B bits in columns (see pack.ts): a line is the same sub-vector of all
 *           tokens. 8 bits are bytes, 12 bits a plane of bytes (the low ones) and a plane of nibbles.
 */
export function bookFormat(books: Float32Array, product: Product, shape: Shape): PageFormat {
  const { dims, bits, own } = product;
  const { headDim, kvHeads, pageTokens } = shape;
  const subs = headDim / dims;
  const size = 2 ** bits * dims;
  const grid = createGrid(pageTokens, subs, bits, 'columns');
  const fields: Field[] = [
    {
      name: 'codes',
      bytes: grid.bytes,
      per: 'head',
      about:
        `${subs} x ${pageTokens} codes of ${bits} bits in columns, index into ` +
        (own ? "the sub-vector's own book" : `the layer's book of ${2 ** bits} x ${dims} floats`),
    },
  ];
  const layout = layOut(fields, kvHeads);
  const bookOf = (head: number, sub: number) => (own ? head * subs + sub : 0);
  const searches = Array.from({ length: books.length / size }, (_, book) =>
    createSearch(books.subarray(book * size, (book + 1) * size), dims),
  );
  return {
    fields,
    fragment: { kind: 'book', codes: { offset: layout.offset('codes'), bits, order: 'columns' }, dims, books, own },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        const codes = layout.field(page, 'codes', head);
        for (let t = 0; t < tokens; t++) {
          for (let sub = 0; sub < subs; sub++) {
            grid.write(codes, t, sub, searches[bookOf(head, sub)](vectors, t * headDim + sub * dims));
          }
        }
      });
    },
    read(page, head, token, out) {
      const codes = layout.field(page, 'codes', head);
      for (let sub = 0; sub < subs; sub++) {
        const entry = bookOf(head, sub) * size + grid.read(codes, token, sub) * dims;
        for (let i = 0; i < dims; i++) out[sub * dims + i] = books[entry + i];
      }
    },
  };
}
