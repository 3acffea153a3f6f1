/**
 * What codecs that learn from data look up, as words of one buffer a codec: the maps and means that queries go through,
 * then the kind's own. Kernels have the place of each written into them and the numbers bound, so that layers share
 * kernels.
 */

import type { Fragment } from '../../fragment.ts';
import type { PageShape } from './shape.ts';

/** Where the kind's own words begin: after [the matrix, turned about][mean]. */
export const ownTable = ({ matrix, mean }: Fragment): number => (matrix?.length ?? 0) + (mean?.length ?? 0);

/**
 *   additive   [kv head][quad] and one more: the first column of each; then the books; then of every column its quad,
 *              the unit of the quad's bytes, and its entries of four bytes from 0 on, 128 for 0
 *   mixed      [kv head][dim] and one more: the first byte of each column x 8 + its bits; then the steps; then the dims,
 *              sorted by their bits; then what there is of each number of bits (`describe`)
 *   book       the books; then the unit of all bytes, and entries of bytes likewise
 *   spectrum   the turns
 */
export function tablesOf(fragment: Fragment, shape: PageShape): Uint32Array<ArrayBuffer> | undefined {
  const { page, matrix, mean } = fragment;
  const own = ownWords(page, shape, fragment.turn !== undefined);
  if (!own && !fragment.turn) return undefined;
  const map = matrix && transpose(matrix, fragment.codedDim, shape.headDim);
  return Uint32Array.from([...bits(map), ...bits(mean), ...(own ?? [0])]);
}

/** [..][rows][cols] to [..][cols][rows]. */
export function transpose(matrix: Float32Array, rows: number, cols: number): Float32Array {
  const out = new Float32Array(matrix.length);
  for (let start = 0; start < matrix.length; start += rows * cols) {
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < cols; c++) out[start + c * rows + r] = matrix[start + r * cols + c];
    }
  }
  return out;
}

function ownWords(
  page: Fragment['page'],
  { headDim, kvHeads, pageTokens }: PageShape,
  shared: boolean,
): number[] | undefined {
  switch (page.kind) {
    case 'additive':
      return [
        ...sumsBefore([...page.counts]),
        ...bits(page.books),
        ...columnWords(page.counts, page.books, headDim / 4, shared),
      ];
    case 'mixed': {
      const starts = sumsBefore(Array.from(page.bits, b => columnBytes(b, pageTokens)));
      const steps = page.steps.map((step, i) => (page.bits[i] > 0 ? step : 0));
      const words = [...starts.map((start, i) => 8 * start + (page.bits[i] ?? 0)), ...bits(steps)];
      const heads = Array.from({ length: kvHeads }, (_, head) =>
        Array.from({ length: headDim }, (_, i) => ({
          bits: page.bits[head * headDim + i],
          at: starts[head * headDim + i],
        })),
      );
      const sorted = heads.flatMap(columns =>
        columns.map((_, dim) => dim).sort((a, b) => columns[a].bits - columns[b].bits || a - b),
      );
      const { headWords } = mixedTables({ headDim, kvHeads, pageTokens });
      return [...words, ...sorted, ...heads.flatMap(columns => describe(columns, headWords))];
    }
    case 'book': {
      const unit = unitOf(page.books);
      return [...bits(page.books), ...bits(Float32Array.of(unit)), ...bytesOf(page.books, unit)];
    }
    case 'spectrum':
      return [...bits(page.turns)];
    default:
      return undefined;
  }
}

/**
 * Words of a column's description: quad, unit (that of the quad for keys), sixteen entries. And of the one that has its number
 * when those of a head are sorted by their place in their quad: this place, and which it is.
 */
export const COLUMN_WORDS = 20;
/** Numbers of a book. */
const BOOK = 64;

/** Where the descriptions of an additive page's columns begin: it differs from layer to layer. */
export const columnsAt = ({ page }: Fragment): number =>
  page.kind === 'additive' ? page.counts.length + 1 + page.books.length : 0;

function columnWords(counts: Uint8Array, books: Float32Array, quads: number, shared: boolean): number[] {
  const words: number[] = [];
  const starts = sumsBefore([...counts]);
  for (let head = 0; head < counts.length / quads; head++) {
    const columns = Array.from({ length: quads }, (_, quad) => {
      const [first, end] = [starts[head * quads + quad], starts[head * quads + quad + 1]];
      const step = unitOf(books.subarray(BOOK * first, BOOK * end));
      return Array.from({ length: end - first }, (_, place) => {
        const book = books.subarray(BOOK * (first + place), BOOK * (first + place + 1));
        return { quad, place, book, unit: shared ? step : unitOf(book) };
      });
    }).flat();
    const sorted = columns.map(({ place }, c) => ({ place, c })).sort((a, b) => a.place - b.place || a.c - b.c);
    columns.forEach(({ quad, book, unit }, n) => {
      words.push(quad, ...bits(Float32Array.of(unit)), ...bytesOf(book, unit), sorted[n].place, sorted[n].c);
    });
  }
  return words;
}

/** The largest magnitude is 127 of it. */
const unitOf = (numbers: Float32Array) => numbers.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-30) / 127;

/** Fours of numbers as words of bytes, 128 for 0. */
function bytesOf(numbers: Float32Array, unit: number): number[] {
  return Array.from({ length: numbers.length >> 2 }, (_, n) => {
    const [a, b, c, d] = Array.from({ length: 4 }, (_, i) => 128 + Math.round(numbers[4 * n + i] / unit));
    return (a | (b << 8) | (c << 16) | (d << 24)) >>> 0;
  });
}

/** The most bits of a mixed column. */
export const MOST_BITS = 6;

/** Words of a quad. */
export const QUAD_WORDS = 7;

/** Where the tables of mixed columns lie, how many quads a head has at most, and how many words its description takes. */
export const mixedTables = ({ headDim: D, kvHeads }: PageShape) => {
  const mostQuads = D / 4 + MOST_BITS;
  const words = MOST_BITS + 1;
  return {
    steps: kvHeads * D + 1,
    sorted: 2 * kvHeads * D + 1,
    heads: 3 * kvHeads * D + 1,
    mostQuads,
    /** In the description of a head. */
    firstDims: words,
    firstQuads: 2 * words,
    headWords: 2 * words + QUAD_WORDS * mostQuads,
  };
};

/**
 * Of a head: where the dims of 1, 2, ... bits begin among the sorted ones, and their end; where the quads of columns of like
 * bits do; then the quads, each the words that its columns begin at, their dims, two a word, and `twice` (teams/attend.ts).
 * Places that are left over have dim D, whose query is 0.
 */
function describe(columns: readonly { bits: number; at: number }[], words: number): number[] {
  const dims: number[] = [];
  const starts: number[] = [];
  const quads: number[] = [];
  for (let bits = 1; bits <= MOST_BITS; bits++) {
    dims.push(columns.filter(column => column.bits < bits).length);
    starts.push(quads.length / QUAD_WORDS);
    const alike = columns.map(({ at, bits }, dim) => ({ at, bits, dim })).filter(column => column.bits === bits);
    for (let i = 0; i < alike.length; i += 4) {
      const four = Array.from({ length: 4 }, (_, n) => alike[i + n] ?? { at: alike[i].at, dim: columns.length });
      const [a, b, c, d] = four.map(({ dim }) => dim);
      const twice = 1 - 2 ** bits;
      quads.push(...four.map(({ at }) => at / 4), a | (b << 16), c | (d << 16), ((twice & 255) * 0x01010101) >>> 0);
    }
  }
  const all = [...dims, columns.length, ...starts, quads.length / QUAD_WORDS, ...quads];
  return [...all, ...Array(words - all.length).fill(0)];
}

/** Of a column of codes of so many bits, plane by plane (codec/pack.ts). */
const columnBytes = (bits: number, pageTokens: number) =>
  [4, 2, 1].reduce((sum, width) => sum + (bits & width ? Math.ceil((pageTokens * width) / 8) : 0), 0);

const bits = (floats: Float32Array = new Float32Array()) => new Uint32Array(Float32Array.from(floats).buffer);

function sumsBefore(counts: readonly number[]): number[] {
  const sums = [0];
  for (const count of counts) sums.push(sums[sums.length - 1] + count);
  return sums;
}
