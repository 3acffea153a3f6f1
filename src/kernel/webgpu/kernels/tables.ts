/**
 * Lookup tables of codecs that learn from data, in one buffer per codec: the matrix and mean that transform queries, then
 * the tables of the page encoding. Kernels contain the offsets and bind the data, so that layers share kernels.
 */

import type { PageLayout } from '../../page-layout.ts';
import type { PageShape } from './shape.ts';

/** Where the tables of the encoding begin: after [transposed matrix][mean]. */
export const encodingTableOffset = ({ queryMatrix, mean }: PageLayout): number =>
  (queryMatrix?.length ?? 0) + (mean?.length ?? 0);

/**
 *   additive   [kv head][quad], and an end: the first column of each; the books; for each column its quad, the scale of
 *              the quad's bytes, and its entries as four bytes each, with 128 for 0
 *   mixed      [kv head][dim], and an end: first byte * 8 + bits of each column; the steps; the dims, sorted by bits;
 *              then `describeHead` for each head
 *   book       the books; the scale of all bytes, and the entries as bytes in the same way
 *   spectrum   cosines and sines
 */
export function lookupTables(layout: PageLayout, shape: PageShape): Uint32Array<ArrayBuffer> | undefined {
  const { encoding, queryMatrix, mean } = layout;
  const tables = encodingWords(encoding, shape, layout.ropeFrequencies !== undefined);
  if (!tables && !layout.ropeFrequencies) return undefined;
  const matrix = queryMatrix && transpose(queryMatrix, layout.codedDim, shape.headDim);
  return Uint32Array.from([...bits(matrix), ...bits(mean), ...(tables ?? [0])]);
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

function encodingWords(
  page: PageLayout['encoding'],
  { headDim, kvHeads, pageTokens }: PageShape,
  scalePerQuad: boolean,
): number[] | undefined {
  switch (page.kind) {
    case 'additive':
      return [
        ...prefixSums([...page.booksPerQuad]),
        ...bits(page.books),
        ...columnWords(page.booksPerQuad, page.books, headDim / 4, scalePerQuad),
      ];
    case 'mixed': {
      const starts = prefixSums(Array.from(page.bitsPerDim, b => columnBytes(b, pageTokens)));
      const steps = page.steps.map((step, i) => (page.bitsPerDim[i] > 0 ? step : 0));
      const words = [...starts.map((start, i) => 8 * start + (page.bitsPerDim[i] ?? 0)), ...bits(steps)];
      const heads = Array.from({ length: kvHeads }, (_, head) =>
        Array.from({ length: headDim }, (_, i) => ({
          bits: page.bitsPerDim[head * headDim + i],
          at: starts[head * headDim + i],
        })),
      );
      const sorted = heads.flatMap(columns =>
        columns.map((_, dim) => dim).sort((a, b) => columns[a].bits - columns[b].bits || a - b),
      );
      const { headWords } = mixedTables({ headDim, kvHeads, pageTokens });
      return [...words, ...sorted, ...heads.flatMap(columns => describeHead(columns, headWords))];
    }
    case 'book': {
      const unit = byteScale(page.books);
      return [...bits(page.books), ...bits(Float32Array.of(unit)), ...packBytes(page.books, unit)];
    }
    case 'spectrum':
      return [...bits(page.ropeCosSin)];
    case 'f16':
    case 'fp8':
    case 'q8_0':
    case 'q4_0':
    case 'levels':
    case 'hybrid':
    case 'affine':
    case 'oaken':
      return undefined;
  }
}

/**
 * Words per column n of an additive page: quad, scale (for keys the quad's), sixteen entries; then place in its quad and
 * index of the n-th column of the head when they are sorted by place.
 */
export const COLUMN_WORDS = 20;
/** Floats per book. */
const BOOK_FLOATS = 64;

/** Where the columns of an additive page are described: a parameter of kernels, since it differs between layers. */
export const columnTableOffset = ({ encoding }: PageLayout): number =>
  encoding.kind === 'additive' ? encoding.booksPerQuad.length + 1 + encoding.books.length : 0;

function columnWords(counts: Uint8Array, books: Float32Array, quads: number, scalePerQuad: boolean): number[] {
  const words: number[] = [];
  const starts = prefixSums([...counts]);
  for (let head = 0; head < counts.length / quads; head++) {
    const columns = Array.from({ length: quads }, (_, quad) => {
      const [first, end] = [starts[head * quads + quad], starts[head * quads + quad + 1]];
      const scale = byteScale(books.subarray(BOOK_FLOATS * first, BOOK_FLOATS * end));
      return Array.from({ length: end - first }, (_, place) => {
        const book = books.subarray(BOOK_FLOATS * (first + place), BOOK_FLOATS * (first + place + 1));
        return { quad, place, book, unit: scalePerQuad ? scale : byteScale(book) };
      });
    }).flat();
    const sorted = columns.map(({ place }, c) => ({ place, c })).sort((a, b) => a.place - b.place || a.c - b.c);
    columns.forEach(({ quad, book, unit }, n) => {
      words.push(quad, ...bits(Float32Array.of(unit)), ...packBytes(book, unit), sorted[n].place, sorted[n].c);
    });
  }
  return words;
}

/** Scale that maps the largest magnitude to 127. */
const byteScale = (numbers: Float32Array) => numbers.reduce((max, x) => Math.max(max, Math.abs(x)), 1e-30) / 127;

/** Four numbers per word, as bytes with 128 for 0. */
function packBytes(numbers: Float32Array, unit: number): number[] {
  return Array.from({ length: numbers.length >> 2 }, (_, n) => {
    const [a, b, c, d] = Array.from({ length: 4 }, (_, i) => 128 + Math.round(numbers[4 * n + i] / unit));
    return (a | (b << 8) | (c << 16) | (d << 24)) >>> 0;
  });
}

/** Bits of the widest mixed column. */
export const MAX_COLUMN_BITS = 6;

/** Words per quad of mixed columns. */
export const QUAD_WORDS = 7;

/** Offsets of the tables of mixed columns, and the sizes of a head's description. */
export const mixedTables = ({ headDim: D, kvHeads }: PageShape) => {
  const maxQuads = D / 4 + MAX_COLUMN_BITS;
  const words = MAX_COLUMN_BITS + 1;
  return {
    steps: kvHeads * D + 1,
    sorted: 2 * kvHeads * D + 1,
    heads: 3 * kvHeads * D + 1,
    maxQuads,
    /** Offsets in the description of a head. */
    firstDims: words,
    firstQuads: 2 * words,
    headWords: 2 * words + QUAD_WORDS * maxQuads,
  };
};

/**
 * For one head: the index of the first sorted dim with 1, 2, ... bits, and an end; the same for quads, which are four
 * columns with the same bits; then for each quad the word offsets of its columns, their dims (two per word), and `twiceOffset`
 * (four-subgroups/attend.ts). Unused columns have dim D, whose query is 0.
 */
function describeHead(columns: readonly { bits: number; at: number }[], words: number): number[] {
  const dims: number[] = [];
  const starts: number[] = [];
  const quads: number[] = [];
  for (let bits = 1; bits <= MAX_COLUMN_BITS; bits++) {
    dims.push(columns.filter(column => column.bits < bits).length);
    starts.push(quads.length / QUAD_WORDS);
    const sameBits = columns.map(({ at, bits }, dim) => ({ at, bits, dim })).filter(column => column.bits === bits);
    for (let i = 0; i < sameBits.length; i += 4) {
      const four = Array.from({ length: 4 }, (_, n) => sameBits[i + n] ?? { at: sameBits[i].at, dim: columns.length });
      const [a, b, c, d] = four.map(({ dim }) => dim);
      const twiceOffset = 1 - 2 ** bits;
      quads.push(
        ...four.map(({ at }) => at / 4),
        a | (b << 16),
        c | (d << 16),
        ((twiceOffset & 255) * 0x01010101) >>> 0,
      );
    }
  }
  const all = [...dims, columns.length, ...starts, quads.length / QUAD_WORDS, ...quads];
  return [...all, ...Array(words - all.length).fill(0)];
}

/** Bytes of a column: bit planes of 4, 2 and 1 bits (codec/pack.ts). */
const columnBytes = (bits: number, pageTokens: number) =>
  [4, 2, 1].reduce((sum, width) => sum + (bits & width ? Math.ceil((pageTokens * width) / 8) : 0), 0);

const bits = (floats: Float32Array = new Float32Array()) => new Uint32Array(Float32Array.from(floats).buffer);

function prefixSums(counts: readonly number[]): number[] {
  const sums = [0];
  for (const count of counts) sums.push(sums[sums.length - 1] + count);
  return sums;
}
