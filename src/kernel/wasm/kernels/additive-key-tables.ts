/**
 * Tables for scores on additive codebooks (mead).
 *
 * `queryMaps` is [kv head][diagonal block][query dim][block dim] f32. The mapped query is scaled by the size of each
 * quad and by a scale per dim, so that quads are comparable. `keyBooks` has KEY_BOOK_BYTES per column, in the order of
 * pairs: its book divided by those scales as [dims 0 and 1, dims 2 and 3][entry][2] int16, then the byte offsets of its
 * quad in a mapped query and of its codes among the head's.
 */
import { MAX_INT16, TINY } from '../ops.ts';
import { type AdditiveEncoding, maxColumns } from './additive.ts';

export const KEY_BOOK_BYTES = 2 * 64 + 16;
export const QUAD_OFFSET = 128;
export const CODES_OFFSET = 132;

/** 1.0 in an int16 book. */
const BOOK_ONE = MAX_INT16;

/**
 * Whether the table entries of two columns are added as bytes before they are widened, which leaves 7 bits for each.
 * With more columns rounding errors add up, so above 2.5 bits per value each entry uses the full byte.
 */
export const addsColumnPairs = (encoding: AdditiveEncoding, headDim: number) =>
  maxColumns(encoding, { kvHeads: (4 * encoding.booksPerQuad.length) / headDim }) <= (5 * headDim) / 8;

interface Column {
  book: Float32Array;
  /** Index in its head. */
  index: number;
  quad: number;
  /** Approximate magnitude of its contribution to scores. */
  size: number;
}

/**
 * Builds the tables. Large columns are paired with small ones; the size of a quad is that of its largest pair, or of
 * its largest column if columns are not added in pairs.
 */
export function additiveKeyTables(
  encoding: AdditiveEncoding,
  matrix: Float32Array,
  blocks: readonly number[],
  pageTokens: number,
) {
  const { booksPerQuad, books } = encoding;
  const headDim = blocks.reduce((sum, size) => sum + size, 0);
  const quads = headDim / 4;
  const addsPairs = addsColumnPairs(encoding, headDim);
  const headMapSize = mapSize(blocks);
  const blocksByDim = dimBlocks(blocks);
  const firstKeyBooks = [0];
  const keyBooks: Uint8Array[] = [];
  const queryMaps = new Float32Array((booksPerQuad.length / quads) * headMapSize);
  for (let head = 0, column = 0; head < booksPerQuad.length / quads; head++) {
    const columns: Column[] = [];
    const scales = Array.from({ length: quads }, (_, quad) => {
      const count = booksPerQuad[head * quads + quad];
      const quadBooks = Array.from({ length: count }, (_, n) =>
        books.subarray(64 * (column + n), 64 * (column + n + 1)),
      );
      column += count;
      const scale = dimScales(quadBooks);
      for (const book of quadBooks) {
        const size = longestEntry(book, scale) * Math.hypot(...scale);
        columns.push({ book, index: columns.length, quad, size });
      }
      return scale;
    });
    const pairs = pairColumns(columns);
    const sizes = scales.map((scale, quad) => {
      const sums = pairs.flatMap(pair => {
        const pairSize = pair.reduce((sum, { size }) => sum + size, 0);
        return pair.filter(column => column.quad === quad).map(({ size }) => (addsPairs ? pairSize : size));
      });
      return Math.max(TINY, ...sums) / Math.hypot(...scale);
    });
    for (const { book, index, quad } of pairs.flatMap(([a, b]) => [a, b ?? { ...a, book: new Float32Array(64) }]))
      keyBooks.push(keyBook(book, scales[quad], sizes[quad], 8 * quad, (index * pageTokens) / 2));
    firstKeyBooks.push(keyBooks.length);
    blocksByDim.forEach(({ start, size, map }, dim) => {
      const scale = sizes[dim >> 2] * scales[dim >> 2][dim & 3];
      const row = (head * headDim + dim) * headDim + start;
      for (let i = 0; i < size; i++)
        queryMaps[head * headMapSize + map + i * size + dim - start] = scale * matrix[row + i];
    });
  }
  return {
    keyBooks: new Uint8Array(keyBooks.flatMap(bytes => [...bytes])),
    firstKeyBooks: Int32Array.from(firstKeyBooks),
    queryMaps,
  };
}

/** Pairs the largest column with the smallest, and so on; the last pair may have one column. */
function pairColumns(columns: readonly Column[]): Column[][] {
  const sorted = columns.toSorted((a, b) => b.size - a.size);
  const half = Math.ceil(sorted.length / 2);
  return sorted
    .slice(0, half)
    .map((large, i) => (i < sorted.length - half ? [large, sorted[sorted.length - 1 - i]] : [large]));
}

/** One entry of `keyBooks`. */
function keyBook(
  book: Float32Array,
  scale: number[],
  size: number,
  quadOffset: number,
  codesOffset: number,
): Uint8Array {
  const out = new DataView(new ArrayBuffer(KEY_BOOK_BYTES));
  book.forEach((x, i) => {
    const [entry, dim] = [i >> 2, i & 3];
    out.setInt16(64 * (dim >> 1) + 4 * entry + 2 * (dim & 1), Math.round((x / scale[dim] / size) * BOOK_ONE), true);
  });
  out.setInt32(QUAD_OFFSET, quadOffset, true);
  out.setInt32(CODES_OFFSET, codesOffset, true);
  return new Uint8Array(out.buffer);
}

/** Values in one head's query maps. */
export const mapSize = (blocks: readonly number[]) => blocks.reduce((sum, size) => sum + size * size, 0);

/** For each dim, its diagonal block: first dim, size, and index of its map's first value among the head's. */
function dimBlocks(blocks: readonly number[]): { start: number; size: number; map: number }[] {
  const byDim: { start: number; size: number; map: number }[] = [];
  let map = 0;
  for (const size of blocks) {
    const block = { start: byDim.length, size, map };
    for (let i = 0; i < size; i++) byDim.push(block);
    map += size * size;
  }
  return byDim;
}

/** The spread of a quad's entries in each dim. */
function dimScales(books: readonly Float32Array[]): number[] {
  const squares = [0, 0, 0, 0];
  for (const book of books) for (const [i, x] of book.entries()) squares[i & 3] += x * x;
  const max = Math.max(...squares, TINY);
  return squares.map(square => Math.sqrt(Math.max(square, 1e-6 * max)));
}

/** Length of a book's longest entry, with every dim divided by its scale. */
function longestEntry(book: Float32Array, scale: number[]): number {
  const lengths = Array.from({ length: 16 }, (_, e) => Math.hypot(...scale.map((s, d) => book[4 * e + d] / s)));
  return Math.max(...lengths);
}
