/**
 * Trains the additive codebooks of quads: k-means of a new book on the residual of the earlier ones, then rounds that encode
 * all samples, as pages are encoded, and refit each book with the others fixed. The inner loops run in WASM.
 */

import { floatBits } from '../../kernel/float.ts';
import { ADDITIVE_STARTS } from '../../kernel/page-layout.ts';
import { CODEBOOK_BYTES, codebookTrainingKernels, withHalfNorms } from '../../kernel/wasm/kernels/quad-codebook.ts';
import { instantiate } from '../../kernel/wasm/module.ts';
import type { Random } from '../parts/random.ts';
import { BOOK_LENGTH, booksBefore, ENTRIES, MAX_NIBBLES, QUAD, TOTAL_BOOKS } from './additive.ts';

const KMEANS_ROUNDS = 12;
const ROUNDS = 3;

export interface Trained {
  /** For 1 to 6 nibbles: [booksBefore(n) + book][entry][4]. */
  books: Float32Array;
  /** Mean of weight x squared error with 0 to 6 nibbles. */
  loss: Float32Array;
  /** Mean squared error with 0 to 6 nibbles, of samples that were not stretched. */
  error: Float32Array;
}

/** A function that trains the books of one quad on `count` samples, of which every `stretchEvery`-th is stretched. */
export function createTrainer(
  count: number,
  stretchEvery?: number,
): (x: Float32Array, weights: Float32Array, random: Random) => Trained {
  // The kernels process eight rows at a time; rows of padding have weight 0.
  const rows = 8 * Math.ceil(count / 8);
  const lengths = {
    x: 16 * rows,
    residual: 16 * rows,
    weights: 4 * rows,
    errors: 4 * rows,
    codes: MAX_NIBBLES * rows,
    candidate: MAX_NIBBLES * rows,
    starts: ADDITIVE_STARTS * rows,
    books: MAX_NIBBLES * CODEBOOK_BYTES,
    sums: 2 * 16 * ENTRIES,
  };
  const offsets = { ...lengths, end: 0 };
  for (const name of Object.keys(lengths) as (keyof typeof lengths)[]) {
    offsets[name] = offsets.end;
    offsets.end += 16 * Math.ceil(lengths[name] / 16);
  }
  const { memory, calls } = instantiate(codebookTrainingKernels(), offsets.end);
  const floats = (address: number, length: number) => new Float32Array(memory.buffer, address, length);
  const x = floats(offsets.x, QUAD * rows);
  const residual = floats(offsets.residual, QUAD * rows);
  const errors = floats(offsets.errors, rows);
  const bytes = new Uint8Array(memory.buffer);
  const sums = floats(offsets.sums, 2 * BOOK_LENGTH);
  const bookAt = (book: number) => offsets.books + book * CODEBOOK_BYTES;
  const codesAt = (book: number) => offsets.codes + book * rows;
  const candidateAt = (book: number) => offsets.candidate + book * rows;
  const entries = (book: number) => floats(bookAt(book), BOOK_LENGTH);
  const updateHalfNorms = (book: number) =>
    floats(bookAt(book), BOOK_LENGTH + ENTRIES).set(withHalfNorms(entries(book)));

  /** Moves entries to the weighted mean of the samples assigned to them. Entries without samples stay. */
  const refit = (book: number) => {
    sums.fill(0);
    calls.sumByCode({ ...offsets, rows: offsets.residual, codes: codesAt(book), count: rows });
    const means = entries(book);
    for (let i = 0; i < BOOK_LENGTH; i++) if (sums[BOOK_LENGTH + i] > 1e-12) means[i] = sums[i] / sums[BOOK_LENGTH + i];
    updateHalfNorms(book);
  };
  const assign = (codes: number, book: number) =>
    calls.assign({ rows: offsets.residual, codes, book: bookAt(book), count: rows });
  const addEntries = (codes: number, book: number, sign: 1 | -1) =>
    calls.addEntries({ rows: offsets.residual, codes, book: bookAt(book), count: rows, sign: floatBits(sign) });

  /** Encodes the samples with the first `n` books as pages are (additive.ts): codes, squared errors and residuals. */
  const encode = (n: number) => {
    calls.findStarts({ ...offsets, rows: offsets.x, book: bookAt(0), count: rows });
    errors.fill(Number.POSITIVE_INFINITY);
    for (let start = 0; start < (n > 1 ? ADDITIVE_STARTS : 1); start++) {
      bytes.copyWithin(candidateAt(0), offsets.starts + start * rows, offsets.starts + (start + 1) * rows);
      residual.set(x);
      addEntries(candidateAt(0), 0, -1);
      for (let book = 1; book < n; book++) {
        assign(candidateAt(book), book);
        addEntries(candidateAt(book), book, -1);
      }
      calls.keepBetter({ ...offsets, rows: offsets.residual, columns: n, count: rows });
    }
    residual.set(x);
    for (let book = 0; book < n; book++) addEntries(codesAt(book), book, -1);
  };

  return (samples, weights, random) => {
    x.fill(0).set(samples);
    floats(offsets.weights, rows).fill(0).set(weights);
    residual.set(x);
    const allBooks = new Float32Array(TOTAL_BOOKS * BOOK_LENGTH);
    const [loss, error] = [new Float32Array(MAX_NIBBLES + 1), new Float32Array(MAX_NIBBLES + 1)];
    const measure = (n: number) => {
      let [weighted, plain, unstretched] = [0, 0, 0];
      for (let i = 0; i < count; i++) {
        weighted += weights[i] * errors[i];
        if (stretchEvery && i % stretchEvery === 0) continue;
        plain += errors[i];
        unstretched++;
      }
      loss[n] = weighted / count;
      error[n] = plain / unstretched;
    };
    errors.fill(Number.POSITIVE_INFINITY);
    calls.keepBetter({ ...offsets, rows: offsets.x, columns: 0, count: rows });
    measure(0);
    for (let n = 1; n <= MAX_NIBBLES; n++) {
      initializeBook(entries(n - 1), residual, count, random);
      updateHalfNorms(n - 1);
      for (let round = 0; round < KMEANS_ROUNDS; round++) {
        assign(codesAt(n - 1), n - 1);
        refit(n - 1);
      }
      for (let round = 0; round < (n > 1 ? ROUNDS : 0); round++) {
        encode(n);
        for (let book = 0; book < n; book++) {
          addEntries(codesAt(book), book, 1);
          refit(book);
          addEntries(codesAt(book), book, -1);
        }
      }
      encode(n);
      for (let book = 0; book < n; book++) allBooks.set(entries(book), (booksBefore(n) + book) * BOOK_LENGTH);
      measure(n);
    }
    return { books: allBooks, loss, error };
  };
}

/** Initializes a book with random samples of the residual. */
function initializeBook(book: Float32Array, residual: Float32Array, count: number, random: Random): void {
  for (let e = 0; e < ENTRIES; e++) {
    const at = QUAD * (random.uint32() % count);
    book.set(residual.subarray(at, at + QUAD), e * QUAD);
  }
}
