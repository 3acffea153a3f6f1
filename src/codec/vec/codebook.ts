/** Product quantization: each sub-vector of N dims is an index into a learned codebook of 2^B entries. */
import type { Shape } from '../codec.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { type Field, layoutFields } from '../page-fields.ts';
import { createNearestAssigner, createNearestSearch, kmeans, sampleIndices } from '../parts/kmeans.ts';
import { createRandom } from '../parts/random.ts';

export interface ProductCode {
  /** N: dims per sub-vector. */
  subvectorDims: number;
  /** B: bits per index. */
  bits: number;
  /** One codebook per head and sub-vector; otherwise one for all. */
  bookPerSubvector: boolean;
}

/**
 * Sub-vectors per entry that a codebook should be trained on. With 32 the error on other text is 2 to 6 % above that with
 * 256, with 4 it is 11 to 48 % above (docs/codecs.md).
 */
const POINTS_PER_ENTRY = 32;
/** Maximum number of sub-vectors that a shared codebook is trained on, unless it needs more for its entries. */
const MAX_SHARED_POINTS = 131_072;
/** Maximum number of them that the error of a codebook is measured on. */
const MAX_ERROR_POINTS = 16_384;

/** Sub-vectors per sample that one codebook is trained on: those of one head and place, or all. */
const pointsPerSample = (product: ProductCode, shape: Shape) =>
  (shape.kvHeads * shape.headDim) / product.subvectorDims / bookCount(product, shape);

/** Samples of a layer that give every entry of a codebook enough points. */
export const samplesForCodebooks = (product: ProductCode, shape: Shape): number =>
  Math.ceil((POINTS_PER_ENTRY * 2 ** product.bits) / pointsPerSample(product, shape));

/** Total length of the codebooks of a layer's keys or values. */
export const codebookLength = (product: ProductCode, shape: Shape): number =>
  bookCount(product, shape) * 2 ** product.bits * product.subvectorDims;

const bookCount = ({ subvectorDims, bookPerSubvector }: ProductCode, { headDim, kvHeads }: Shape) =>
  bookPerSubvector ? (kvHeads * headDim) / subvectorDims : 1;

/**
 * `books` is [book][entry][dim], from transformed vectors [kv head][sample][dim]; books are ordered by head, then
 * sub-vector. `error` is the mean squared error of a token, all heads together.
 */
export function trainCodebooks(
  vectors: Float32Array,
  product: ProductCode,
  shape: Shape,
): { books: Float32Array; error: number } {
  const { subvectorDims, bits } = product;
  const { headDim, kvHeads } = shape;
  const entries = 2 ** bits;
  const subs = headDim / subvectorDims;
  const count = vectors.length / headDim / kvHeads;
  const books = bookCount(product, shape);
  const points = count * pointsPerSample(product, shape);
  const wanted = POINTS_PER_ENTRY * entries;
  const maxPoints = product.bookPerSubvector ? 2 * wanted : Math.max(MAX_SHARED_POINTS, wanted);
  const random = createRandom(subvectorDims * 100 + bits);
  // A separate book is trained on one head and sub-vector, a shared one on all of them.
  const pointOffset = (book: number, point: number) => {
    if (books === 1) return point * subvectorDims;
    const [head, sub] = [Math.floor(book / subs), book % subs];
    return (head * count + point) * headDim + sub * subvectorDims;
  };
  const out = new Float32Array(codebookLength(product, shape));
  let error = 0;
  for (let book = 0; book < books; book++) {
    const chosen = sampleIndices(points, Math.min(points, maxPoints), random);
    const sample = new Float32Array(chosen.length * subvectorDims);
    chosen.forEach((point, i) => {
      const from = pointOffset(book, point);
      sample.set(vectors.subarray(from, from + subvectorDims), i * subvectorDims);
    });
    const trained = kmeans(sample, subvectorDims, entries, random);
    out.set(trained, book * entries * subvectorDims);
    error += ((kvHeads * subs) / books) * meanSquaredError(sample, trained, subvectorDims);
  }
  return { books: out, error };
}

/** The mean squared error of points, which are in random order: the first ones represent all. */
function meanSquaredError(points: Float32Array, book: Float32Array, dims: number): number {
  const used = points.subarray(0, MAX_ERROR_POINTS * dims);
  const count = used.length / dims;
  const cells = createNearestAssigner(used, dims, book.length / dims)(book, count);
  let sum = 0;
  used.forEach((value, i) => {
    sum += (value - book[cells[Math.floor(i / dims)] * dims + (i % dims)]) ** 2;
  });
  return sum / count;
}

/**
 * One head's block:
 *   codes   headDim / N x pageTokens indices of B bits in columns (see pack.ts): a line is one sub-vector of all tokens.
 *           8 bits are bytes; 12 bits are a plane of bytes (the low bits) and a plane of nibbles.
 */
export function codebookFormat(books: Float32Array, product: ProductCode, shape: Shape): PageFormat {
  const { subvectorDims, bits, bookPerSubvector } = product;
  const { headDim, kvHeads, pageTokens } = shape;
  const subs = headDim / subvectorDims;
  const size = 2 ** bits * subvectorDims;
  const grid = createGrid(pageTokens, subs, bits, 'columns');
  const fields: Field[] = [
    {
      name: 'codes',
      bytes: grid.bytes,
      per: 'head',
      about:
        `${subs} x ${pageTokens} codes of ${bits} bits in columns, index into ` +
        (bookPerSubvector
          ? 'the codebook of the head and sub-vector'
          : `the layer's codebook of ${2 ** bits} x ${subvectorDims} floats`),
    },
  ];
  const layout = layoutFields(fields, kvHeads);
  const bookOf = (head: number, sub: number) => (bookPerSubvector ? head * subs + sub : 0);
  const searches = Array.from({ length: books.length / size }, (_, book) =>
    createNearestSearch(books.subarray(book * size, (book + 1) * size), subvectorDims),
  );
  return {
    fields,
    encoding: {
      kind: 'book',
      codes: { offset: layout.offset('codes'), bits, order: 'columns' },
      subvectorDims,
      books,
      bookPerSubvector,
    },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        const codes = layout.field(page, 'codes', head);
        for (let t = 0; t < tokens; t++) {
          for (let sub = 0; sub < subs; sub++) {
            grid.write(codes, t, sub, searches[bookOf(head, sub)](vectors, t * headDim + sub * subvectorDims));
          }
        }
      });
    },
    read(page, head, token, out) {
      const codes = layout.field(page, 'codes', head);
      for (let sub = 0; sub < subs; sub++) {
        const entry = bookOf(head, sub) * size + grid.read(codes, token, sub) * subvectorDims;
        for (let i = 0; i < subvectorDims; i++) out[sub * subvectorDims + i] = books[entry + i];
      }
    },
  };
}
