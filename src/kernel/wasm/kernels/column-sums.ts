/**
 * Weighted sums of values stored in columns: bytes (table levels or plain codes) times quantized probabilities.
 * Products are added in 16-bit lanes, so the probabilities that are added in one lane are limited.
 */
import { f32x4, type I32, i16x8, i32, i32x4, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { addDotInt8, dotSumsI32, HEADS_PER_PASS, hoist, horizontalSumsI32, MAX_INT16 } from '../ops.ts';
import type { AttentionShape } from './attend.ts';
import { type CodeColumns, columnAddresses, spanCodes } from './code-columns.ts';
import { STATE_HEADER, stateBytes } from './online-softmax.ts';
import { EXPONENTIATE_SCRATCH, MAX_PROBABILITY, type SumLimit } from './quantized-probabilities.ts';

/** Scratch: quantized probabilities, [head][pageTokens]; then sums; then whatever the emitter stores per page. */
export const updateScratchOffset = ({ group, pageTokens }: AttentionShape) => group * pageTokens;
export const columnSumScratch = (shape: AttentionShape) =>
  updateScratchOffset(shape) +
  Math.max(
    EXPONENTIATE_SCRATCH,
    UPDATE_SCRATCH + (shape.pageTokens / runTokens(shape.pageTokens)) * HEADS_PER_PASS * shape.headDim * 16,
  );

/** Max relative error of a vector whose levels are rounded to bytes. */
const MAX_LEVEL_ERROR = 0.007;
/** Bytes are within +-63: the range fits into 7 bits. */
const MAX_LEVEL = 63;

/**
 * Rounds levels to integers times a step: the smallest integers within MAX_LEVEL_ERROR, because more products of them
 * fit into 16 bits, otherwise the most accurate. Errors are weighted for normally distributed coordinates of unit
 * vectors.
 */
export function quantizeLevels(levels: Float32Array, dims: number): { bytes: number[]; step: number } {
  const maxLevel = Math.max(...levels);
  const density = levels.map(x => Math.exp((-dims * x * x) / 2));
  const mean = (value: (x: number, i: number) => number) =>
    levels.reduce((sum, x, i) => sum + density[i] * value(x, i), 0);
  const power = mean(x => x * x);
  let best = { error: Number.POSITIVE_INFINITY, bytes: [0], step: 1 };
  for (let size = 1; size < MAX_LEVEL + 0.5; size += 1 / 64) {
    const bytes = Array.from(levels, x => Math.round((x * size) / maxLevel));
    const step = mean((x, i) => x * bytes[i]) / mean((_, i) => bytes[i] ** 2);
    const error = Math.sqrt(mean((x, i) => (bytes[i] * step - x) ** 2) / power);
    if (error < best.error) best = { error, bytes, step };
    if (error < MAX_LEVEL_ERROR) break;
  }
  return best;
}

/** How one head's state is updated: state = correction x state + scale x sums + offset. */
export interface StateUpdate {
  correction: V128;
  scale: V128;
  offset?: V128;
}

export const UPDATE_SCRATCH = 16 * 3;

export interface SumOptions {
  /** Maps codes to bytes: signed, or 7-bit unsigned. */
  lookup(codes: V128, dimInColumn: number): V128;
  signed: boolean;
  twosComplement?: boolean;
  /** See `accumulatorLimits`. */
  narrow: boolean;
  /** Called once per four dims. */
  prefetchNext(): void;
  /** Range of dims. Default: all. */
  from?: number;
  to?: number;
}

/** Tokens whose products are added in 16 bits. */
const RUN_TOKENS = 128;
export const runTokens = (pageTokens: number) => (pageTokens % RUN_TOKENS === 0 ? RUN_TOKENS : pageTokens);

/** For bytes up to `max`: whether half of the lanes may be added in 16 bits, and the limit for probabilities. */
export function accumulatorLimits(max: number, pageTokens: number): { narrow: boolean; limit?: SumLimit } {
  const narrow = max <= MAX_NARROW_CODE;
  const lanes = narrow ? 4 : 1;
  const limit = Math.floor(MAX_INT16 / max);
  const maxSum = ((runTokens(pageTokens) * lanes) / 8) * MAX_PROBABILITY;
  return { narrow, limit: maxSum <= limit ? undefined : { lanes, max: limit } };
}
const MAX_NARROW_CODE = 15;

/**
 * Adds the weighted sums of a page's columns to the states: correction x state + scale x (probabilities . bytes) +
 * offset.
 */
export function sumColumns(
  k: Kernel,
  columns: CodeColumns,
  shape: AttentionShape,
  block: I32,
  probabilities: I32,
  updates: readonly StateUpdate[],
  state: I32,
  { lookup, signed, narrow, prefetchNext, twosComplement = false, from = 0, to: end = shape.headDim }: SumOptions,
): void {
  const { pageTokens } = shape;
  const addDot = addDotInt8(shape);
  const { dims, span } = columns;
  const run = runTokens(pageTokens);
  const runs = pageTokens / run;
  const scratch = k.i32(i32.add(probabilities, updateScratchOffset(shape)));
  const passHeads = Math.ceil(updates.length / Math.ceil(updates.length / HEADS_PER_PASS));
  for (let first = 0; first < updates.length; first += passHeads) {
    const heads = updates.slice(first, first + passHeads);
    // Two dims share the loads of probabilities; more sums do not fit into registers.
    const sums = heads.map(() => [k.v128(), k.v128()]);
    const bytes = [k.v128(), k.v128()];
    const [p, to] = [k.i32(), k.i32(i32.add(scratch, UPDATE_SCRATCH))];
    // Sums are [dim][run][head].
    const dimStride = 16 * runs * heads.length;
    k.for(from, end, 4, dim => {
      for (let pair = 0; pair < 4; pair += 2) {
        for (let n = 0; n < runs; n++) {
          const at = Array.from({ length: 2 / dims }, (_, c) =>
            columnAddresses(k, columns, block, i32.add(i32.divU(dim, dims), pair / dims + c), n * run),
          );
          k.set(p, i32.add(probabilities, first * pageTokens + n * run));
          for (const sum of sums.flat()) k.set(sum, v128.zero);
          k.for(0, run, span, () => {
            const codes = at.map(addresses => spanCodes(k, columns, addresses, twosComplement));
            for (let v = 0; v < span / 16; v++) {
              for (const [d, local] of bytes.entries()) k.set(local, lookup(codes[Math.floor(d / dims)][v], d % dims));
              heads.forEach((_, i) => {
                const probability = k.v128(v128.load(p, i * pageTokens + 16 * v));
                bytes.forEach((local, d) => {
                  const factors = signed ? ([local, probability] as const) : ([probability, local] as const);
                  k.set(sums[i][d], addDot(sums[i][d], ...factors));
                });
              });
            }
            for (const addresses of at)
              addresses.forEach((address, plane) => {
                const { width, stripBytes } = columns.planes[plane];
                k.increment(address, ((span * width) / 128) * stripBytes);
              });
            k.increment(p, span);
          });
          for (const [i, headSums] of sums.entries())
            for (const [d, sum] of headSums.entries())
              k.do(v128.store(to, sum, (pair + d) * dimStride + 16 * (n * heads.length + i)));
        }
      }
      if (first === 0) prefetchNext();
      k.increment(to, 4 * dimStride);
    });
    const options = { scratch, runs, narrow, from, to: end, first };
    addSumsToStates(k, shape, i32.add(scratch, UPDATE_SCRATCH), heads, state, options);
  }
}

interface AddSumsOptions {
  /** UPDATE_SCRATCH bytes. */
  scratch: I32;
  runs: number;
  narrow: boolean;
  from: number;
  to: number;
  /** Index in the group of the first head. */
  first: number;
  /** A factor per dim, f32. */
  steps?: I32;
}

/** Reduces the sums, [dim][run][head] vectors of eight i16 or four i32, and adds them to the states. */
export function addSumsToStates(
  k: Kernel,
  shape: AttentionShape,
  sums: I32,
  heads: readonly StateUpdate[],
  state: I32,
  { scratch, runs, narrow, from, to, first, steps }: AddSumsOptions,
): void {
  const ones = k.v128(i16x8.const(1));
  heads.forEach((update, i) => {
    const [correction, scale, offset] = hoist(k, scratch, [
      update.correction,
      update.scale,
      ...(update.offset ? [update.offset] : []),
    ]);
    const target = k.i32(i32.add(state, (first + i) * stateBytes(shape.headDim) + STATE_HEADER + 4 * from));
    const at = k.i32(i32.add(sums, 16 * i));
    const dimStride = 16 * runs * heads.length;
    const step = k.i32(steps ?? 0);
    k.for(from, to, 4, () => {
      const parts = Array.from({ length: runs }, (_, n) =>
        [0, 1, 2, 3].map(d => dotSumsI32(shape, v128.load(at, d * dimStride + 16 * n * heads.length), ones)),
      );
      // Sums over several runs do not fit into 16 bits.
      const dims = [0, 1, 2, 3].map(d => k.v128(parts.map(part => part[d]).reduce(i32x4.add)));
      const sum = f32x4.mul(f32x4.fromI32(horizontalSumsI32(k, dims, narrow && runs === 1)), scale);
      const value = steps === undefined ? sum : f32x4.mul(sum, v128.load(step));
      const old = f32x4.mul(v128.load(target), correction);
      k.do(v128.store(target, f32x4.add(old, offset ? f32x4.add(value, offset) : value)));
      k.increment(at, 4 * dimStride);
      k.increment(target, 16);
      k.increment(step, 16);
    });
  });
}
