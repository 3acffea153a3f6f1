/**
 * Books and maps of additive codebooks (mead) as scores are made from them.
 *
 * `maps` is [kv head][block][dim of the query][dim of the block] f32, blocks of the fragment's sizes; each quad of what it
 * gives is multiplied by its size and each dim by its stretch, so that quads can be compared. `dots` has DOT_BYTES a
 * column, in the order of pairs: its book over size and stretch as [dims 0 and 1, dims 2 and 3][entry][2] int16, then
 * where its quad lies in a mapped query, and its codes in a head's, in bytes.
 */
import { type Additive, mostColumns } from './additive.ts';

export const DOT_BYTES = 2 * 64 + 16;
export const QUAD_AT = 128;
export const CODES_AT = 132;

/** What is 1 of a book, as int16. */
const BOOK_ONE = 32767;

/**
 * Entries of two columns are added as bytes before they are widened, which leaves each 7 bits. The more columns there are,
 * the more of their rounding adds up: past two and a half bits a value each has a byte of its own.
 */
export const inPairs = (page: Additive, headDim: number) =>
  mostColumns(page, { kvHeads: (4 * page.counts.length) / headDim }) <= (5 * headDim) / 8;

interface Column {
  book: Float32Array;
  /** In its head, of a page. */
  number: number;
  quad: number;
  /** Its longest entry, with every dim over its quad's stretch. */
  longest: number;
  /** Of what it adds to scores, about. */
  size: number;
}

/**
 * Books and maps as the loops want them. Large columns are paired with small ones; a quad is as large as its largest
 * pair, or column.
 */
export function keyTables(page: Additive, matrix: Float32Array, blocks: readonly number[], pageTokens: number) {
  const { counts, books } = page;
  const headDim = blocks.reduce((sum, size) => sum + size, 0);
  const quads = headDim / 4;
  const together = inPairs(page, headDim);
  const mapSize = mapNumbers(blocks);
  const places = placesOf(blocks);
  const firsts = [0];
  const dots: Uint8Array[] = [];
  const maps = new Float32Array((counts.length / quads) * mapSize);
  for (let head = 0, column = 0; head < counts.length / quads; head++) {
    const columns: Column[] = [];
    const stretches = Array.from({ length: quads }, (_, quad) => {
      const count = counts[head * quads + quad];
      const own = Array.from({ length: count }, (_, n) => books.subarray(64 * (column + n), 64 * (column + n + 1)));
      column += count;
      const stretch = stretchOf(own);
      for (const book of own) {
        const longest = longestOf(book, stretch);
        columns.push({ book, number: columns.length, quad, longest, size: longest * Math.hypot(...stretch) });
      }
      return stretch;
    });
    const pairs = pairColumns(columns);
    const sizes = stretches.map((stretch, quad) => {
      const sums = pairs.flatMap(pair => {
        const all = pair.reduce((sum, { size }) => sum + size, 0);
        return pair.filter(column => column.quad === quad).map(({ size }) => (together ? all : size));
      });
      return Math.max(1e-30, ...sums) / Math.hypot(...stretch);
    });
    for (const { book, number, quad } of pairs.flatMap(([a, b]) => [a, b ?? { ...a, book: new Float32Array(64) }]))
      dots.push(dotsOf(book, stretches[quad], sizes[quad], 8 * quad, (number * pageTokens) / 2));
    firsts.push(dots.length);
    places.forEach(({ start, size, map }, dim) => {
      const scale = sizes[dim >> 2] * stretches[dim >> 2][dim & 3];
      const row = (head * headDim + dim) * headDim + start;
      for (let i = 0; i < size; i++) maps[head * mapSize + map + i * size + dim - start] = scale * matrix[row + i];
    });
  }
  return { dots: new Uint8Array(dots.flatMap(bytes => [...bytes])), firsts: Int32Array.from(firsts), maps };
}

/** The largest with the smallest, and so on; one may be left alone. */
function pairColumns(columns: readonly Column[]): Column[][] {
  const sorted = columns.toSorted((a, b) => b.size - a.size);
  const half = Math.ceil(sorted.length / 2);
  return sorted
    .slice(0, half)
    .map((large, i) => (i < sorted.length - half ? [large, sorted[sorted.length - 1 - i]] : [large]));
}

/** DOT_BYTES. */
function dotsOf(book: Float32Array, stretch: number[], size: number, quadAt: number, codesAt: number): Uint8Array {
  const out = new DataView(new ArrayBuffer(DOT_BYTES));
  book.forEach((x, i) => {
    const [entry, dim] = [i >> 2, i & 3];
    out.setInt16(64 * (dim >> 1) + 4 * entry + 2 * (dim & 1), Math.round((x / stretch[dim] / size) * BOOK_ONE), true);
  });
  out.setInt32(QUAD_AT, quadAt, true);
  out.setInt32(CODES_AT, codesAt, true);
  return new Uint8Array(out.buffer);
}

/** What a head's maps take, in numbers. */
export const mapNumbers = (blocks: readonly number[]) => blocks.reduce((sum, size) => sum + size * size, 0);

/** Of each dim: where its block starts, its size, and where its map starts among a head's. */
function placesOf(blocks: readonly number[]): { start: number; size: number; map: number }[] {
  const places: { start: number; size: number; map: number }[] = [];
  let map = 0;
  for (const size of blocks) {
    const place = { start: places.length, size, map };
    for (let i = 0; i < size; i++) places.push(place);
    map += size * size;
  }
  return places;
}

/** How far a quad's entries spread in each dim. */
function stretchOf(books: readonly Float32Array[]): number[] {
  const squares = [0, 0, 0, 0];
  for (const book of books)
    book.forEach((x, i) => {
      squares[i & 3] += x * x;
    });
  const most = Math.max(...squares, 1e-30);
  return squares.map(square => Math.sqrt(Math.max(square, 1e-6 * most)));
}

/** The longest entry of a book, with every dim over its stretch. */
function longestOf(book: Float32Array, stretch: number[]): number {
  const lengths = Array.from({ length: 16 }, (_, e) => Math.hypot(...stretch.map((by, d) => book[4 * e + d] / by)));
  return Math.max(...lengths);
}
