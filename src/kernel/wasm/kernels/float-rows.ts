/** Attention over rows of f32 or f16, for all query heads of a group at once. */
import { f32, f32x4, type I32, i32, index, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { headPasses, horizontalSums, loadF16x4, multiplyAdd } from '../ops.ts';
import { capScores, MASKED, onlineSoftmax, STATE_HEADER, stateBytes } from './online-softmax.ts';

export interface FloatRows {
  /** Bytes per value: f16 or f32. */
  size: 2 | 4;
  /** Values per row. */
  dims: number;
  heads: number;
  /** The number of scores per head that there is space for. */
  stride: number;
  /** Use fused multiply-adds if the engine has them. */
  relaxed: boolean;
}

/** Emits a loop over the parts of the rows that are contiguous in memory: their address, and number of rows. */
export type RowSpans = (emit: (address: I32, count: I32) => void) => void;

/** Rows in one piece. */
export const contiguous =
  (address: I32, count: I32): RowSpans =>
  emit =>
    emit(address, count);

const loadRow = ({ size }: FloatRows, address: I32, offset = 0): V128 =>
  size === 4 ? v128.load(address, offset) : loadF16x4(address, offset);

/** scores[head][stride] = query[head] . rows, four rows per iteration: the rows of a span are rounded up to a multiple of 4. */
export function scoreRows(k: Kernel, rows: FloatRows, spans: RowSpans, query: I32, scores: I32): void {
  const { dims, size, heads, stride } = rows;
  const madd = multiplyAdd(rows.relaxed);
  const rowBytes = dims * size;
  for (const pass of headPasses(heads)) {
    const acc = pass.map(() => [0, 1, 2, 3].map(() => k.v128()));
    const out = k.i32(scores);
    spans((address, count) => {
      const row = k.i32(address);
      k.for(0, count, 4, () => {
        for (const sum of acc.flat()) k.set(sum, v128.zero);
        // Sums and operands of an iteration must fit into registers: V8 loads all operands before it multiplies.
        const rowsPerPass = pass.length > 2 ? 2 : 4;
        for (let first = 0; first < 4; first += rowsPerPass) {
          const [at, q] = [k.i32(row), k.i32(query)];
          k.for(0, dims, 4, () => {
            const queries = pass.map(head => k.v128(v128.load(q, 4 * head * dims)));
            for (let r = first; r < first + rowsPerPass; r++) {
              const value = k.v128(loadRow(rows, at, r * rowBytes));
              for (const [i, query] of queries.entries()) k.set(acc[i][r], madd(value, query, acc[i][r]));
            }
            k.increment(at, 4 * size);
            k.increment(q, 16);
          });
        }
        for (const [i, head] of pass.entries())
          k.do(v128.store(out, horizontalSums(k, acc[i], f32x4.add), 4 * head * stride));
        k.increment(row, 4 * rowBytes);
        k.increment(out, 16);
      });
    });
  }
}

/** Updates the sums of each head's state: sums = sums x correction + weights[head] . rows. */
function sumRows(k: Kernel, rows: FloatRows, spans: RowSpans, weights: I32, state: I32, corrections: V128[]): void {
  const { dims, size, heads, stride } = rows;
  const stateStride = stateBytes(dims);
  const madd = multiplyAdd(rows.relaxed);
  for (const pass of headPasses(heads)) {
    // Many independent sums hide the latency of multiply-adds.
    const vectors = Array.from({ length: vectorsPerPass(dims, pass.length) }, (_, j) => j);
    const acc = pass.map(() => vectors.map(() => k.v128()));
    const value = k.v128();
    k.for(0, dims, 4 * vectors.length, first => {
      const w = k.i32(weights);
      const sums = k.i32(index(state, 4, first));
      const sumAt = (head: number, j: number) => head * stateStride + STATE_HEADER + 16 * j;
      for (const [i, head] of pass.entries())
        for (const j of vectors) k.set(acc[i][j], f32x4.mul(v128.load(sums, sumAt(head, j)), corrections[head]));
      spans((address, count) => {
        const row = k.i32(index(address, size, first));
        k.for(0, count, 1, () => {
          const weight = pass.map(head => k.v128(v128.load32Splat(w, 4 * head * stride)));
          for (const j of vectors) {
            k.set(value, loadRow(rows, row, 4 * size * j));
            for (const [i, _] of pass.entries()) k.set(acc[i][j], madd(value, weight[i], acc[i][j]));
          }
          k.increment(row, dims * size);
          k.increment(w, 4);
        });
      });
      for (const [i, head] of pass.entries())
        for (const j of vectors) k.do(v128.store(sums, acc[i][j], sumAt(head, j)));
    });
  }
}

/** Vectors of a row that are summed together: a divisor of the row that leaves enough registers. */
function vectorsPerPass(dims: number, heads: number): number {
  let vectors = 1;
  for (let n = 2; n * heads <= 10; n++) if (dims % (4 * n) === 0) vectors = n;
  return vectors;
}

/** Masks the scores of all heads in a range of rows. */
function maskRows(k: Kernel, { heads, stride }: FloatRows, scores: I32, from: I32, to: I32): void {
  k.for(from, to, 1, t => {
    for (let head = 0; head < heads; head++) {
      k.do(f32.store(index(scores, 4, t), f32.const(MASKED), 4 * head * stride));
    }
  });
}

/** Online softmax and weighted sum of rows that are scored. There are `padded` scores, at least as many as rows. */
export function softmaxAndSum(
  k: Kernel,
  rows: FloatRows,
  values: RowSpans,
  scores: I32,
  padded: I32,
  state: I32,
): void {
  const stateStride = stateBytes(rows.dims);
  const corrections = Array.from({ length: rows.heads }, (_, head) => {
    const headState = i32.add(state, head * stateStride);
    return k.v128(
      f32x4.splat(onlineSoftmax(k, i32.add(scores, 4 * head * rows.stride), padded, headState, rows.relaxed)),
    );
  });
  sumRows(k, rows, values, scores, state, corrections);
}

export interface RowsToAttend {
  /** Only the last span may have a number of rows that is not a multiple of 4. */
  keys: RowSpans;
  values: RowSpans;
  count: I32;
  /** The first rows, which are masked. */
  skip: I32;
}

/** Attends rows of keys and values. `softcap` is the bits of an f32, or 0. */
export function attendRows(
  k: Kernel,
  rows: FloatRows,
  { keys, values, count, skip }: RowsToAttend,
  { query, scores, state, softcap }: { query: I32; scores: I32; state: I32; softcap: I32 },
): void {
  const n = k.i32(count);
  const padded = k.i32(i32.and(i32.add(n, 3), -4));
  scoreRows(k, rows, keys, query, scores);
  for (let head = 0; head < rows.heads; head++) capScores(k, i32.add(scores, 4 * head * rows.stride), padded, softcap);
  maskRows(k, rows, scores, 0, i32.min(skip, n));
  maskRows(k, rows, scores, n, padded);
  softmaxAndSum(k, rows, values, scores, padded, state);
}
