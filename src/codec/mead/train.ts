/**
 * Fits the books of quads: k-means on what earlier books leave, then sweeps that choose and fit each book anew with
 * the others fixed. The three inner steps run as WASM; this file says in which order.
 */
import { BOOK_BYTES, trainingModule, withHalves } from '../../kernel/wasm/kernels/quads.ts';
import type { Random } from '../parts/random.ts';
import { ALL_BOOKS, BOOK, booksBefore, ENTRIES, MOST_NIBBLES, QUAD } from './books.ts';

const ROUNDS = 12;
const SWEEPS = 6;
const PAGE = 65536;

export interface Trained {
  /** For 1 to 6 nibbles: [booksBefore(n) + book][entry][4]. */
  books: Float32Array;
  /** Mean of weight x squared error with 0 to 6 nibbles. */
  loss: Float32Array;
}

interface Steps {
  choose(rows: number, codes: number, book: number, count: number): void;
  move(rows: number, codes: number, book: number, count: number, sign: number): void;
  sum(rows: number, codes: number, weights: number, sums: number, count: number): void;
}

/** Trains quads of `count` samples, one after the other. */
export function createTrainer(count: number): (x: Float32Array, weights: Float32Array, random: Random) => Trained {
  // Rows come in eights; those past the last have no weight.
  const rows = 8 * Math.ceil(count / 8);
  const at = {
    x: 0,
    rest: 16 * rows,
    weights: 32 * rows,
    codes: 36 * rows,
    books: (36 + MOST_NIBBLES) * rows,
    sums: 0,
    end: 0,
  };
  at.sums = 16 * Math.ceil((at.books + MOST_NIBBLES * BOOK_BYTES) / 16);
  at.end = at.sums + 2 * 16 * ENTRIES;
  const pages = Math.ceil(at.end / PAGE);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  const module = new WebAssembly.Module(trainingModule({ maxPages: pages, shared: false }));
  const { choose, move, sum } = new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as Steps;
  const floats = (address: number, length: number) => new Float32Array(memory.buffer, address, length);
  const rest = floats(at.rest, QUAD * rows);
  const sums = floats(at.sums, 2 * BOOK);
  const bookAt = (book: number) => at.books + book * BOOK_BYTES;
  const codesAt = (book: number) => at.codes + book * rows;
  const entries = (book: number) => floats(bookAt(book), BOOK);
  const measure = (book: number) => floats(bookAt(book), BOOK + ENTRIES).set(withHalves(entries(book)));

  /** Entries to the weighted means of what chose them; those that nobody chose keep their place. */
  const refit = (book: number) => {
    sums.fill(0);
    sum(at.rest, codesAt(book), at.weights, at.sums, rows);
    const own = entries(book);
    for (let i = 0; i < BOOK; i++) if (sums[BOOK + i] > 1e-12) own[i] = sums[i] / sums[BOOK + i];
    measure(book);
  };
  const pick = (book: number) => choose(at.rest, codesAt(book), bookAt(book), rows);
  const take = (book: number, sign: 1 | -1) => move(at.rest, codesAt(book), bookAt(book), rows, sign);

  return (x, weights, random) => {
    floats(at.x, QUAD * rows)
      .fill(0)
      .set(x);
    floats(at.weights, rows).fill(0).set(weights);
    rest.set(floats(at.x, QUAD * rows));
    const all = new Float32Array(ALL_BOOKS * BOOK);
    const loss = new Float32Array(MOST_NIBBLES + 1);
    loss[0] = lossOf(rest, weights);
    for (let n = 1; n <= MOST_NIBBLES; n++) {
      startBook(entries(n - 1), rest, count, random);
      measure(n - 1);
      for (let round = 0; round < ROUNDS; round++) {
        pick(n - 1);
        refit(n - 1);
      }
      // From the start, since all books may be chosen anew beside the new one.
      rest.set(floats(at.x, QUAD * rows));
      for (let sweep = 0; sweep <= (n > 1 ? SWEEPS + 1 : 0); sweep++) {
        for (let book = 0; book < n; book++) {
          if (sweep > 0) take(book, 1);
          pick(book);
          if (sweep > 1) refit(book);
          take(book, -1);
        }
      }
      for (let book = 0; book < n; book++) all.set(entries(book), (booksBefore(n) + book) * BOOK);
      loss[n] = lossOf(rest, weights);
    }
    return { books: all, loss };
  };
}

/** Entries of a new book: samples of what is left, drawn at random. */
function startBook(book: Float32Array, rest: Float32Array, count: number, random: Random): void {
  for (let e = 0; e < ENTRIES; e++) {
    const at = QUAD * (random.uint32() % count);
    book.set(rest.subarray(at, at + QUAD), e * QUAD);
  }
}

function lossOf(rest: Float32Array, weights: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < weights.length; i++) {
    let error = 0;
    for (let d = QUAD * i; d < QUAD * i + QUAD; d++) error += rest[d] * rest[d];
    sum += weights[i] * error;
  }
  return sum / weights.length;
}
