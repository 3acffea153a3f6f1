/**
 * Weighted sums over packed pages of additive codebooks (mead): the entries of a quad's books are added as bytes, then
 * multiplied by the quantized probabilities.
 *
 * `valueBooks` has 64 bytes per column: its book as [dim][entry] int8. `valueSteps` has four f32 per quad: the step of
 * each dim.
 */
import type { PageLayout } from '../../page-layout.ts';
import { f32x4, type I32, i8x16, i16x8, i32, index, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { addDotInt8, HEADS_PER_PASS, hoist, MAX_INT16, swizzle } from '../ops.ts';
import { type AdditiveEncoding, forEachQuad } from './additive.ts';
import type { AttentionShape, ValueEmitter } from './attend.ts';
import { addSumsToStates, UPDATE_SCRATCH, updateScratchOffset } from './column-sums.ts';
import type { CodecTables } from './dequantize-page.ts';
import { addPageToState, stateBytes } from './online-softmax.ts';
import { EXPONENTIATE_SCRATCH, exponentiatePage, quantizeProbabilities } from './quantized-probabilities.ts';

const VALUE_BOOK_BYTES = 64;
/** Max magnitude of the sum of a quad's entries. */
const MAX_ENTRY_SUM = 127;
/** Tokens whose products are added in 16 bits. */
const runTokens = (pageTokens: number) => (pageTokens % 64 === 0 ? 64 : 32);
/** With more, the loaded vectors do not fit into registers. */
const TOKENS_PER_ITERATION = 32;

/** Converts books to the tables described above. */
export function additiveValueTables({ booksPerQuad, books }: AdditiveEncoding) {
  const bytes = new Int8Array(books.length);
  const steps = new Float32Array(4 * booksPerQuad.length);
  let first = 0;
  booksPerQuad.forEach((count, quad) => {
    const quadBooks = Array.from({ length: count }, (_, n) => books.subarray(64 * (first + n), 64 * (first + n + 1)));
    // The largest magnitude that a sum of one entry per book can have, per dim.
    const magnitudes = [0, 1, 2, 3].map(d => {
      const coordinates = quadBooks.map(book => book.filter((_, i) => (i & 3) === d));
      const ends = [Math.max, Math.min].map(end => coordinates.reduce((sum, entries) => sum + end(...entries), 0));
      return Math.max(ends[0], -ends[1]);
    });
    const step = magnitudes.map(magnitude => magnitude / (MAX_ENTRY_SUM - count));
    steps.set(step, 4 * quad);
    quadBooks.forEach((book, n) => {
      for (let d = 0; d < 4; d++) {
        const exact = Array.from({ length: 16 }, (_, e) => (step[d] > 0 ? book[4 * e + d] / step[d] : 0));
        bytes.set(roundPreservingSum(exact), VALUE_BOOK_BYTES * (first + n) + 16 * d);
      }
    });
    first += count;
  });
  return { bytes: new Uint8Array(bytes.buffer), steps };
}

/** Rounds values so that their sum is preserved to within 1/2: averages stay accurate. */
function roundPreservingSum(exact: number[]): number[] {
  const rounded = exact.map(Math.round);
  const error = () => exact.reduce((sum, x, i) => sum + x - rounded[i], 0);
  for (let total = error(); Math.abs(total) > 0.5; total = error()) {
    const sign = Math.sign(total);
    // Change the value that was nearest to being rounded the other way.
    const errors = exact.map((x, i) => sign * (x - rounded[i]));
    rounded[errors.indexOf(Math.max(...errors))] += sign;
  }
  return rounded;
}

/** Scratch: quantized probabilities, a few vectors, sums of all heads and dims, and a quad's codes, one byte each. */
const sumsOffset = (shape: AttentionShape) =>
  updateScratchOffset(shape) + Math.max(EXPONENTIATE_SCRATCH, UPDATE_SCRATCH);
const sumsBytes = (shape: AttentionShape, heads: number) =>
  16 * (shape.pageTokens / runTokens(shape.pageTokens)) * heads * shape.headDim;
const codesOffset = (shape: AttentionShape) => sumsOffset(shape) + sumsBytes(shape, shape.group);
export const additiveValueScratch = ({ encoding }: PageLayout, shape: AttentionShape): number =>
  encoding.kind === 'additive' ? codesOffset(shape) + Math.max(...encoding.booksPerQuad) * shape.pageTokens : 0;

export function additiveValues(
  { encoding }: PageLayout,
  shape: AttentionShape,
  tables: CodecTables,
  scratchOffset: number,
): ValueEmitter | undefined {
  const { headDim, group, pageTokens, precise } = shape;
  if (encoding.kind !== 'additive' || precise || pageTokens % 32 !== 0) return undefined;
  const additive = tables.additive!;
  const stride = stateBytes(headDim);
  const distinctCounts = [...new Set(encoding.booksPerQuad)];
  const run = runTokens(pageTokens);
  const limit = { lanes: 1, max: Math.floor(MAX_INT16 / MAX_ENTRY_SUM), runTokens: run } as const;
  return {
    codedDim: headDim,
    beginPage() {},
    accumulatePage(k, { page, head, scratch }, scores, state) {
      const probabilities = k.i32(i32.add(scratch, scratchOffset));
      const vectors = k.i32(i32.add(probabilities, updateScratchOffset(shape)));
      const sums = k.i32(i32.add(probabilities, sumsOffset(shape)));
      const codes = k.i32(i32.add(probabilities, codesOffset(shape)));
      const exponentials = exponentiatePage(k, shape, scores, vectors);
      const quantized = quantizeProbabilities(k, shape, scores, probabilities, { limit });
      const updates = exponentials.map(({ exponent, sum }, g) => {
        const { correction, scale } = addPageToState(k, i32.add(state, g * stride), exponent, sum);
        return { correction, scale: k.v128(f32x4.mul(scale, quantized[g].step)) };
      });
      const passes = Array.from({ length: Math.ceil(group / HEADS_PER_PASS) }, (_, n) => ({
        first: n * HEADS_PER_PASS,
        heads: updates.slice(n * HEADS_PER_PASS, (n + 1) * HEADS_PER_PASS),
        sums: k.i32(i32.add(sums, sumsBytes(shape, n * HEADS_PER_PASS))),
      }));
      const [nibble] = hoist(k, vectors, [i8x16.const(15)]);
      const to = k.i32();
      forEachQuad(k, additive, headDim, head, (offset, count, column) => {
        const book = k.i32(index(additive.valueBooks, VALUE_BOOK_BYTES, column));
        unpackColumns(k, pageTokens, index(page, pageTokens / 2, column), count, nibble, codes);
        for (const { first, heads, sums } of passes) {
          const passProbabilities = k.i32(i32.add(probabilities, first * pageTokens));
          k.set(to, index(sums, sumsBytes(shape, heads.length) / (4 * headDim), offset));
          for (const n of distinctCounts)
            k.if(i32.eqz(i32.sub(count, n)), () =>
              sumQuad(k, shape, codes, book, passProbabilities, n, heads.length, to),
            );
        }
      });
      const steps = k.i32(index(additive.valueSteps, 4 * headDim, head));
      const options = { scratch: vectors, runs: pageTokens / run, narrow: false, from: 0, to: headDim, steps };
      for (const { first, heads, sums } of passes) addSumsToStates(k, shape, sums, heads, state, { ...options, first });
    },
  };
}

/** Unpacks the nibbles of `count` columns to one byte per token. */
function unpackColumns(k: Kernel, pageTokens: number, page: I32, count: I32, nibble: V128, out: I32): void {
  const [from, to] = [k.i32(page), k.i32(out)];
  const pair = k.v128();
  k.for(0, count, 1, () => {
    for (let i = 0; i < pageTokens / 2; i += 16) {
      k.set(pair, v128.load(from, i));
      k.do(v128.store(to, v128.and(pair, nibble), 2 * i));
      k.do(v128.store(to, v128.and(i16x8.shrU(pair, 4), nibble), 2 * i + 16));
    }
    k.increment(from, pageTokens / 2);
    k.increment(to, pageTokens);
  });
}

/** sums[dim][run][head] = probabilities . a quad's bytes over the tokens of each run, as eight i16 or four i32. */
function sumQuad(
  k: Kernel,
  shape: AttentionShape,
  codes: I32,
  book: I32,
  probabilities: I32,
  books: number,
  heads: number,
  sums: I32,
): void {
  const { pageTokens, relaxed } = shape;
  const addDot = addDotInt8(shape);
  const bytes = k.v128();
  const run = runTokens(pageTokens);
  const dimStride = (16 * heads * pageTokens) / run;
  const tables = Array.from({ length: books }, () => k.v128());
  const headSums = Array.from({ length: heads }, () => k.v128());
  const [table, to] = [k.i32(book), k.i32(sums)];
  const [at, p] = [k.i32(), k.i32()];
  k.for(0, 4, 1, () => {
    for (const [b, local] of tables.entries()) k.set(local, v128.load(table, VALUE_BOOK_BYTES * b));
    k.set(at, codes);
    k.set(p, probabilities);
    for (let r = 0; r < pageTokens / run; r++) {
      for (const sum of headSums) k.set(sum, v128.zero);
      const iteration = () => {
        for (let v = 0; v < TOKENS_PER_ITERATION; v += 16) {
          tables.forEach((local, b) => {
            const entry = swizzle(relaxed)(local, v128.load(at, b * pageTokens + v));
            k.set(bytes, b === 0 ? entry : i8x16.add(bytes, entry));
          });
          for (const [i, sum] of headSums.entries()) k.set(sum, addDot(sum, bytes, v128.load(p, i * pageTokens + v)));
        }
        k.increment(at, TOKENS_PER_ITERATION);
        k.increment(p, TOKENS_PER_ITERATION);
      };
      // A quad without columns is zero.
      if (books > 0) k.for(0, run, TOKENS_PER_ITERATION, iteration);
      for (const [i, sum] of headSums.entries()) k.do(v128.store(to, sum, 16 * (heads * r + i)));
    }
    k.increment(table, 16);
    k.increment(to, dimStride);
  });
}
