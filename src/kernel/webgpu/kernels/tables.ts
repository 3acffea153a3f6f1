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
 *              the unit of its bytes, and its entries of four bytes from 0 on, 128 for 0
 *   mixed      [kv head][dim] and one more: the first byte of each column x 8 + its bits; then the steps; then for each
 *              head where its planes are described: the first quad of every kind and their number, then the quads
 *   book       the books; then the unit of all bytes, and entries of bytes likewise
 *   spectrum   the turns
 */
export function tablesOf(fragment: Fragment, shape: PageShape): Uint32Array<ArrayBuffer> | undefined {
  const { page, matrix, mean } = fragment;
  const own = ownWords(page, shape);
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

function ownWords(page: Fragment['page'], { headDim, kvHeads, pageTokens }: PageShape): number[] | undefined {
  switch (page.kind) {
    case 'additive':
      return [
        ...sumsBefore([...page.counts]),
        ...bits(page.books),
        ...columnWords(page.counts, page.books, headDim / 4),
      ];
    case 'mixed': {
      const starts = sumsBefore(Array.from(page.bits, b => columnBytes(b, pageTokens)));
      const steps = page.steps.map((step, i) => (page.bits[i] > 0 ? step : 0));
      const words = [...starts.map((start, i) => 8 * start + (page.bits[i] ?? 0)), ...bits(steps)];
      const heads = Array.from({ length: kvHeads }, (_, head) => {
        const columns = Array.from({ length: headDim }, (_, i) => ({
          bits: page.bits[head * headDim + i],
          at: starts[head * headDim + i],
        }));
        return planeWords(columns, pageTokens);
      });
      let next = words.length + kvHeads;
      for (const head of heads) {
        words.push(next);
        next += head.length;
      }
      return [...words, ...heads.flat()];
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

/** Words of a column's description: quad, unit, sixteen entries. */
export const COLUMN_WORDS = 18;

/** Where the descriptions of an additive page's columns begin: it differs from layer to layer. */
export const columnsAt = ({ page }: Fragment): number =>
  page.kind === 'additive' ? page.counts.length + 1 + page.books.length : 0;

function columnWords(counts: Uint8Array, books: Float32Array, quads: number): number[] {
  const words: number[] = [];
  let column = 0;
  counts.forEach((count, unit) => {
    for (let n = 0; n < count; n++, column++) {
      const book = books.subarray(64 * column, 64 * column + 64);
      const step = unitOf(book);
      words.push(unit % quads, ...bits(Float32Array.of(step)), ...bytesOf(book, step));
    }
  });
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

/** Planes by their bits, whether a column's top bit is in them, and the power of two (of 2^-7) that a byte of them counts. */
export const PLANE_KINDS = [
  { bits: 4, top: true, shift: 0 },
  { bits: 4, top: false, shift: 0 },
  { bits: 2, top: true, shift: 0 },
  { bits: 2, top: false, shift: 0 },
  { bits: 2, top: true, shift: 4 },
  { bits: 1, top: true, shift: 0 },
  { bits: 1, top: true, shift: 2 },
  { bits: 1, top: true, shift: 4 },
].map(kind => ({ ...kind, fold: kind.shift + (kind.top ? kind.bits - 1 : 7) }));

/** Words of a quad: the first byte of its four planes, then their dims, two a word. */
export const QUAD_WORDS = 6;

/** Where the tables of mixed columns lie, and how many quads a head has at most. */
export const mixedTables = ({ headDim: D, kvHeads }: PageShape) => ({
  steps: kvHeads * D + 1,
  heads: 2 * kvHeads * D + 1,
  mostQuads: D / 2 + PLANE_KINDS.length,
});

/** A head's planes in quads of one kind each. Places that are left over have dim D, whose query is 0. */
function planeWords(columns: readonly { bits: number; at: number }[], pageTokens: number): number[] {
  const starts = [0];
  const quads: number[] = [];
  for (const kind of PLANE_KINDS) {
    const planes: { at: number; dim: number }[] = [];
    columns.forEach(({ bits, at }, dim) => {
      let [byte, shift] = [at, 0];
      for (const width of [4, 2, 1]) {
        if (!(bits & width)) continue;
        const same = width === kind.bits && shift === kind.shift && (shift + width === bits) === kind.top;
        if (same) planes.push({ at: byte, dim });
        byte += (pageTokens * width) / 8;
        shift += width;
      }
    });
    for (let i = 0; i < planes.length; i += 4) {
      const four = Array.from({ length: 4 }, (_, n) => planes[i + n] ?? { at: planes[i].at, dim: columns.length });
      const [a, b, c, d] = four.map(({ dim }) => dim);
      quads.push(...four.map(({ at }) => at), a | (b << 16), c | (d << 16));
    }
    starts.push(quads.length / QUAD_WORDS);
  }
  return [...starts, ...quads];
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
