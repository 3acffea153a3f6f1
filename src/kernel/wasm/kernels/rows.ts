/** Attention over rows of floats, f32 tiles or f16 tails, for all query heads of a group at once. */
import { f32, f32x4, type I32, i32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { loadHalf4, multiplyAdd, transposeSum } from '../ops.ts';
import { NOWHERE, STATE_HEAD, softmax, stateBytes } from './softmax.ts';

/** Heads whose sums are kept in registers together. */
const HEADS = 4;

const inChunks = (heads: number) =>
  Array.from({ length: Math.ceil(heads / HEADS) }, (_, i) =>
    Array.from({ length: Math.min(HEADS, heads - i * HEADS) }, (_, j) => i * HEADS + j),
  );

export interface Rows {
  /** Bytes a value: f16 or f32. */
  size: 2 | 4;
  /** Values a row. */
  dims: number;
  heads: number;
  /** Fused multiply-adds where the engine has them. */
  relaxed: boolean;
}

const loadRow = ({ size }: Rows, address: I32, offset = 0): V128 =>
  size === 4 ? v128.load(address, offset) : loadHalf4(address, offset);

/** scores[head][stride] = query[head] . rows, four rows a turn; `count` is rounded up to a multiple of 4. */
export function scoreRows(k: Kernel, rows: Rows, data: I32, query: I32, count: I32, scores: I32, stride: number): void {
  const { dims, size, heads } = rows;
  const madd = multiplyAdd(rows.relaxed);
  const rowBytes = dims * size;
  for (const chunk of inChunks(heads)) {
    const acc = chunk.map(() => [0, 1, 2, 3].map(() => k.v128()));
    const [row, out] = [k.i32(data), k.i32(scores)];
    k.for(0, count, 4, () => {
      for (const sum of acc.flat()) k.set(sum, v128.zero);
      // Sums and operands of a turn must fit into the registers: V8 loads all operands before it multiplies.
      const together = chunk.length > 2 ? 2 : 4;
      for (let first = 0; first < 4; first += together) {
        const [at, q] = [k.i32(row), k.i32(query)];
        k.for(0, dims, 4, () => {
          const queries = chunk.map(head => k.v128(v128.load(q, 4 * head * dims)));
          for (let r = first; r < first + together; r++) {
            const value = k.v128(loadRow(rows, at, r * rowBytes));
            queries.forEach((of, i) => {
              k.set(acc[i][r], madd(value, of, acc[i][r]));
            });
          }
          k.increment(at, 4 * size);
          k.increment(q, 16);
        });
      }
      chunk.forEach((head, i) => {
        k.do(v128.store(out, transposeSum(k, acc[i], f32x4.add), 4 * head * stride));
      });
      k.increment(row, 4 * rowBytes);
      k.increment(out, 16);
    });
  }
}

/** Sums of a head's state = old x its correction + weights[head] . rows. */
function sumRows(
  k: Kernel,
  rows: Rows,
  data: I32,
  weights: I32,
  stride: number,
  count: I32,
  state: I32,
  stateStride: number,
  corrections: V128[],
): void {
  const { dims, size, heads } = rows;
  const madd = multiplyAdd(rows.relaxed);
  for (const chunk of inChunks(heads)) {
    // A token takes a multiplication's time and more to come out of a sum: only many sums keep the processor busy.
    const vectors = Array.from({ length: quadsOf(dims, chunk.length) }, (_, j) => j);
    const acc = chunk.map(() => vectors.map(() => k.v128()));
    const value = k.v128();
    k.for(0, dims, 4 * vectors.length, first => {
      const [row, w] = [k.i32(i32.add(data, i32.mul(first, size))), k.i32(weights)];
      const sums = k.i32(i32.add(state, i32.mul(first, 4)));
      const sumAt = (head: number, j: number) => head * stateStride + STATE_HEAD + 16 * j;
      chunk.forEach((head, i) => {
        for (const j of vectors) k.set(acc[i][j], f32x4.mul(v128.load(sums, sumAt(head, j)), corrections[head]));
      });
      k.for(0, count, 1, () => {
        const weight = chunk.map(head => k.v128(v128.load32Splat(w, 4 * head * stride)));
        for (const j of vectors) {
          k.set(value, loadRow(rows, row, 4 * size * j));
          chunk.forEach((_, i) => {
            k.set(acc[i][j], madd(value, weight[i], acc[i][j]));
          });
        }
        k.increment(row, dims * size);
        k.increment(w, 4);
      });
      chunk.forEach((head, i) => {
        for (const j of vectors) k.do(v128.store(sums, acc[i][j], sumAt(head, j)));
      });
    });
  }
}

/** Vectors of a row that are summed together: as many as divide it and leave registers for the rest. */
function quadsOf(dims: number, heads: number): number {
  let quads = 1;
  for (let n = 2; n * heads <= 10; n++) if (dims % (4 * n) === 0) quads = n;
  return quads;
}

/** Scores from `count` on, up to the next multiple of 4, count for nothing. */
function dropPadding(k: Kernel, scores: I32, heads: number, stride: number, count: I32): void {
  const padded = k.i32(i32.and(i32.add(count, 3), -4));
  k.for(count, padded, 1, t => {
    for (let head = 0; head < heads; head++) {
      k.do(f32.store(i32.add(scores, i32.mul(t, 4)), f32.const(NOWHERE), 4 * head * stride));
    }
  });
}

/** Softmax and sums of rows that are scored: `padded` scores, of which the first `count` have rows. */
export function sumScored(
  k: Kernel,
  rows: Rows,
  values: I32,
  scores: I32,
  stride: number,
  padded: I32,
  count: I32,
  state: I32,
): void {
  const stateStride = stateBytes(rows.dims);
  const corrections = Array.from({ length: rows.heads }, (_, head) => {
    const own = i32.add(state, head * stateStride);
    return k.v128(f32x4.splat(softmax(k, i32.add(scores, 4 * head * stride), padded, own, rows.relaxed)));
  });
  sumRows(k, rows, values, scores, stride, count, state, stateStride, corrections);
}

/** The whole of it for `count` rows of keys and values: scores, softmax, sums. `stride` is the room for scores a head. */
export function attendRows(
  k: Kernel,
  rows: Rows,
  keys: I32,
  values: I32,
  count: I32,
  query: I32,
  scores: I32,
  stride: number,
  state: I32,
): void {
  const n = k.i32(count);
  const padded = k.i32(i32.and(i32.add(n, 3), -4));
  scoreRows(k, rows, keys, query, padded, scores, stride);
  dropPadding(k, scores, rows.heads, stride, n);
  sumScored(k, rows, values, scores, stride, padded, n, state);
}
