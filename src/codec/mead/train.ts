/**
 * Trains the additive codebooks of quads: k-means on the residual of the earlier books, then sweeps that re-assign and
 * refit each book with the others fixed. The three inner loops run in WASM.
 */
import { CODEBOOK_BYTES, codebookTrainingModule, withHalfNorms } from '../../kernel/wasm/kernels/quad-codebook.ts';
import type { Random } from '../parts/random.ts';
import { BOOK_LENGTH, booksBefore, ENTRIES, MAX_NIBBLES, QUAD, REFINE_SWEEPS, TOTAL_BOOKS } from './additive.ts';

const KMEANS_ROUNDS = 12;
const SWEEPS = 6;
/** Samples that are encoded to estimate the error. */
const MAX_ERROR_SAMPLES = 4096;
const WASM_PAGE_BYTES = 65536;

export interface Trained {
  /** For 1 to 6 nibbles: [booksBefore(n) + book][entry][4]. */
  books: Float32Array;
  /** Mean of weight x squared error with 0 to 6 nibbles. */
  loss: Float32Array;
  /** Mean squared error with 0 to 6 nibbles, as the encoder leaves it, of samples that were not stretched. */
  error: Float32Array;
}

interface TrainingKernels {
  assign(rows: number, codes: number, book: number, count: number): void;
  addEntries(rows: number, codes: number, book: number, count: number, sign: number): void;
  sumByCode(rows: number, codes: number, weights: number, sums: number, count: number): void;
}

/** A function that trains the books of one quad on `count` samples, of which every `stretchEvery`-th is stretched. */
export function createTrainer(
  count: number,
  stretchEvery?: number,
): (x: Float32Array, weights: Float32Array, random: Random) => Trained {
  // The kernels process eight rows at a time; rows of padding have weight 0.
  const rows = 8 * Math.ceil(count / 8);
  const offsets = {
    x: 0,
    residual: 16 * rows,
    weights: 32 * rows,
    codes: 36 * rows,
    books: (36 + MAX_NIBBLES) * rows,
    sums: 0,
    end: 0,
  };
  offsets.sums = 16 * Math.ceil((offsets.books + MAX_NIBBLES * CODEBOOK_BYTES) / 16);
  offsets.end = offsets.sums + 2 * 16 * ENTRIES;
  const pages = Math.ceil(offsets.end / WASM_PAGE_BYTES);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  const module = new WebAssembly.Module(codebookTrainingModule({ maxPages: pages, shared: false }));
  const kernels = new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as TrainingKernels;
  const floats = (address: number, length: number) => new Float32Array(memory.buffer, address, length);
  const residual = floats(offsets.residual, QUAD * rows);
  const sums = floats(offsets.sums, 2 * BOOK_LENGTH);
  const bookAt = (book: number) => offsets.books + book * CODEBOOK_BYTES;
  const codesAt = (book: number) => offsets.codes + book * rows;
  const entries = (book: number) => floats(bookAt(book), BOOK_LENGTH);
  const updateHalfNorms = (book: number) =>
    floats(bookAt(book), BOOK_LENGTH + ENTRIES).set(withHalfNorms(entries(book)));

  /** Moves entries to the weighted mean of the samples assigned to them. Entries without samples stay. */
  const refit = (book: number) => {
    sums.fill(0);
    kernels.sumByCode(offsets.residual, codesAt(book), offsets.weights, offsets.sums, rows);
    const means = entries(book);
    for (let i = 0; i < BOOK_LENGTH; i++) if (sums[BOOK_LENGTH + i] > 1e-12) means[i] = sums[i] / sums[BOOK_LENGTH + i];
    updateHalfNorms(book);
  };
  const assign = (book: number, count = rows) => kernels.assign(offsets.residual, codesAt(book), bookAt(book), count);
  const addEntries = (book: number, sign: 1 | -1, count = rows) =>
    kernels.addEntries(offsets.residual, codesAt(book), bookAt(book), count, sign);

  const errorSamples = chooseErrorSamples(count, stretchEvery);
  const errorRows = 8 * Math.ceil(errorSamples.length / 8);
  /**
   * The mean squared error of some samples, encoded with `n` books as pages are (additive.ts). The residual of training is
   * smaller, since it comes from more sweeps.
   */
  const encodingError = (x: Float32Array, allBooks: Float32Array, n: number): number => {
    errorSamples.forEach((sample, i) => {
      residual.set(x.subarray(QUAD * sample, QUAD * (sample + 1)), QUAD * i);
    });
    for (let book = 0; book < n; book++) {
      const from = (booksBefore(n) + book) * BOOK_LENGTH;
      entries(book).set(allBooks.subarray(from, from + BOOK_LENGTH));
      updateHalfNorms(book);
    }
    for (let sweep = 0; sweep <= (n > 1 ? REFINE_SWEEPS : 0); sweep++) {
      for (let book = 0; book < n; book++) {
        if (sweep > 0) addEntries(book, 1, errorRows);
        assign(book, errorRows);
        addEntries(book, -1, errorRows);
      }
    }
    let sum = 0;
    for (let i = 0; i < QUAD * errorSamples.length; i++) sum += residual[i] ** 2;
    return sum / errorSamples.length;
  };

  return (x, weights, random) => {
    floats(offsets.x, QUAD * rows)
      .fill(0)
      .set(x);
    floats(offsets.weights, rows).fill(0).set(weights);
    residual.set(floats(offsets.x, QUAD * rows));
    const allBooks = new Float32Array(TOTAL_BOOKS * BOOK_LENGTH);
    const loss = new Float32Array(MAX_NIBBLES + 1);
    loss[0] = lossOf(residual, weights);
    for (let n = 1; n <= MAX_NIBBLES; n++) {
      initializeBook(entries(n - 1), residual, count, random);
      updateHalfNorms(n - 1);
      for (let round = 0; round < KMEANS_ROUNDS; round++) {
        assign(n - 1);
        refit(n - 1);
      }
      // Start over: with a new book, all entries may be chosen again.
      residual.set(floats(offsets.x, QUAD * rows));
      for (let sweep = 0; sweep <= (n > 1 ? SWEEPS + 1 : 0); sweep++) {
        for (let book = 0; book < n; book++) {
          if (sweep > 0) addEntries(book, 1);
          assign(book);
          if (sweep > 1) refit(book);
          addEntries(book, -1);
        }
      }
      for (let book = 0; book < n; book++) allBooks.set(entries(book), (booksBefore(n) + book) * BOOK_LENGTH);
      loss[n] = lossOf(residual, weights);
    }
    const error = Float32Array.from({ length: MAX_NIBBLES + 1 }, (_, n) => encodingError(x, allBooks, n));
    return { books: allBooks, loss, error };
  };
}

/** Evenly spaced samples, without the stretched ones. */
function chooseErrorSamples(count: number, stretchEvery?: number): number[] {
  const all = Array.from({ length: count }, (_, i) => i);
  const unstretched = stretchEvery ? all.filter(i => i % stretchEvery !== 0) : all;
  const step = Math.ceil(unstretched.length / MAX_ERROR_SAMPLES);
  return unstretched.filter((_, i) => i % step === 0);
}

/** Initializes a book with random samples of the residual. */
function initializeBook(book: Float32Array, residual: Float32Array, count: number, random: Random): void {
  for (let e = 0; e < ENTRIES; e++) {
    const at = QUAD * (random.uint32() % count);
    book.set(residual.subarray(at, at + QUAD), e * QUAD);
  }
}

function lossOf(residual: Float32Array, weights: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < weights.length; i++) {
    let error = 0;
    for (let d = QUAD * i; d < QUAD * i + QUAD; d++) error += residual[d] * residual[d];
    sum += weights[i] * error;
  }
  return sum / weights.length;
}
