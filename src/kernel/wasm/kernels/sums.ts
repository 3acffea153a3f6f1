/**
 * Values in columns, summed under weights: bytes (levels of a table, or codes) times 7-bit weights. Products of a page are
 * added in 16-bit lanes, which is why weights that meet in a lane are kept within a limit.
 */
import { f32x4, type I32, i16x8, i32, i32x4, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { beforeLoop, dotBytes, sumOfFours } from '../ops.ts';
import type { AttendShape } from './attend.ts';
import { type Columns, columnAddresses, spanCodes } from './columns.ts';
import { STATE_HEAD, stateBytes } from './softmax.ts';
import { type Limit, MOST, POWERS_ROOM } from './weights.ts';

/** Heads whose sums are kept in registers together. */
const HEADS = 4;

/** A group's weights as bytes, [head][pageTokens]; then room for sums and such; then what fragments keep of a page. */
export const roomAt = ({ group, pageTokens }: AttendShape) => group * pageTokens;
export const sumScratch = (shape: AttendShape) =>
  roomAt(shape) +
  Math.max(POWERS_ROOM, WORTH_ROOM + (shape.pageTokens / runOf(shape.pageTokens)) * HEADS * shape.headDim * 16);

/** How far a vector of levels as bytes may be from what it is, of its length. */
const LEVEL_ERROR = 0.007;
/** Twice that many is the most for 7 bits. */
const MOST_LEVEL = 63;

/**
 * Levels of normal coordinates of unit vectors as whole numbers, and what 1 is worth: the smallest that are good enough,
 * for more of them fit into 16 bits; else the best.
 */
export function byteLevels(levels: Float32Array, dims: number): { bytes: number[]; step: number } {
  const largest = Math.max(...levels);
  const often = levels.map(x => Math.exp((-dims * x * x) / 2));
  const mean = (of: (x: number, i: number) => number) => levels.reduce((sum, x, i) => sum + often[i] * of(x, i), 0);
  let best = { error: Number.POSITIVE_INFINITY, bytes: [0], step: 1 };
  for (let size = 1; size < MOST_LEVEL + 0.5; size += 1 / 64) {
    const bytes = Array.from(levels, x => Math.round((x * size) / largest));
    const step = mean((x, i) => x * bytes[i]) / mean((_, i) => bytes[i] ** 2);
    const error = Math.sqrt(mean((x, i) => (bytes[i] * step - x) ** 2) / mean(x => x * x));
    if (error < best.error) best = { error, bytes, step };
    if (error < LEVEL_ERROR) break;
  }
  return best;
}

/** Of a head: what its old sums are multiplied by, what a sum is worth, and what is added to all. */
export interface Worth {
  correction: V128;
  unit: V128;
  constant?: V128;
}

export const WORTH_ROOM = 16 * 3;

export interface SumOptions {
  /** Codes to bytes: signed ones, or such of 7 bits that are not. */
  look(codes: V128, dimOfColumn: number): V128;
  signed: boolean;
  complement?: boolean;
  /** See `roomFor`. */
  narrow: boolean;
  /** In every turn of four dims. */
  touchNext(): void;
  /** Dims from here to there; all unless given. */
  from?: number;
  to?: number;
}

/** Tokens whose products are added in 16 bits. */
const RUN = 128;
const runOf = (pageTokens: number) => (pageTokens % RUN === 0 ? RUN : pageTokens);

/** How bytes up to `most` are added up: whether half of the lanes may be added in 16 bits, and what weights must keep to. */
export function roomFor(most: number, pageTokens: number): { narrow: boolean; limit?: Limit } {
  const narrow = most <= NARROW;
  const lanes = narrow ? 4 : 1;
  const limit = Math.floor(32767 / most);
  const all = ((runOf(pageTokens) * lanes) / 8) * MOST;
  return { narrow, limit: all <= limit ? undefined : { lanes, most: limit } };
}
const NARROW = 15;

/** Sums of states = old x correction + weights . bytes x unit + constant. */
export function sumColumns(
  k: Kernel,
  columns: Columns,
  shape: AttendShape,
  block: I32,
  weights: I32,
  worth: readonly Worth[],
  state: I32,
  { look, signed, narrow, touchNext, complement = false, from = 0, to: end = shape.headDim }: SumOptions,
): void {
  const { pageTokens, headDim, relaxed } = shape;
  const { dims, span } = columns;
  const run = runOf(pageTokens);
  const runs = pageTokens / run;
  const room = k.i32(i32.add(weights, roomAt(shape)));
  const each = Math.ceil(worth.length / Math.ceil(worth.length / HEADS));
  for (let first = 0; first < worth.length; first += each) {
    const heads = worth.slice(first, first + each);
    // Two dims at a time share the loads of weights; more sums than these do not fit into registers.
    const sums = heads.map(() => [k.v128(), k.v128()]);
    const bytes = [k.v128(), k.v128()];
    const [w, to] = [k.i32(), k.i32(i32.add(room, WORTH_ROOM))];
    // Lines of sums, [dim][run][head].
    const line = 16 * runs * heads.length;
    k.for(from, end, 4, dim => {
      for (let pair = 0; pair < 4; pair += 2) {
        for (let n = 0; n < runs; n++) {
          const at = Array.from({ length: 2 / dims }, (_, c) =>
            columnAddresses(k, columns, block, i32.add(i32.divU(dim, dims), pair / dims + c), n * run),
          );
          k.set(w, i32.add(weights, first * pageTokens + n * run));
          for (const sum of sums.flat()) k.set(sum, v128.zero);
          k.for(0, run, span, () => {
            const codes = at.map(addresses => spanCodes(k, columns, addresses, complement));
            for (let v = 0; v < span / 16; v++) {
              bytes.forEach((of, d) => {
                k.set(of, look(codes[Math.floor(d / dims)][v], d % dims));
              });
              heads.forEach((_, i) => {
                const weight = k.v128(v128.load(w, i * pageTokens + 16 * v));
                bytes.forEach((of, d) => {
                  const products = signed ? dotBytes(relaxed)(of, weight) : dotBytes(relaxed)(weight, of);
                  k.set(sums[i][d], i16x8.add(sums[i][d], products));
                });
              });
            }
            for (const addresses of at)
              addresses.forEach((address, p) => {
                const { width, strip } = columns.planes[p];
                k.increment(address, ((span * width) / 128) * strip);
              });
            k.increment(w, span);
          });
          sums.forEach((of, i) => {
            of.forEach((sum, d) => {
              k.do(v128.store(to, sum, (pair + d) * line + 16 * (n * heads.length + i)));
            });
          });
        }
      }
      if (first === 0) touchNext();
      k.increment(to, 4 * line);
    });
    takeSums(k, headDim, i32.add(room, WORTH_ROOM), heads, state, { room, runs, narrow, from, to: end, first });
  }
}

interface TakeOptions {
  /** For three vectors. */
  room: I32;
  runs: number;
  narrow: boolean;
  from: number;
  to: number;
  /** The group's head that the sums begin with. */
  first: number;
  /** What a sum of each dim is worth beside its unit, f32. */
  steps?: I32;
}

/** Adds up sums of eight, [dim][run][head], and takes them into the states. */
export function takeSums(
  k: Kernel,
  headDim: number,
  sums: I32,
  heads: readonly Worth[],
  state: I32,
  { room, runs, narrow, from, to, first, steps }: TakeOptions,
): void {
  const ones = k.v128(i16x8.const(1));
  heads.forEach((worth, i) => {
    const kept = [worth.correction, worth.unit, ...(worth.constant ? [worth.constant] : [])];
    const [correction, unit, constant] = beforeLoop(k, room, kept);
    const place = k.i32(i32.add(state, (first + i) * stateBytes(headDim) + STATE_HEAD + 4 * from));
    const at = k.i32(i32.add(sums, 16 * i));
    const line = 16 * runs * heads.length;
    const step = k.i32(steps ?? 0);
    k.for(from, to, 4, () => {
      const parts = Array.from({ length: runs }, (_, n) =>
        [0, 1, 2, 3].map(d => i32x4.dot(v128.load(at, d * line + 16 * n * heads.length), ones)),
      );
      // Sums of several runs are too large for 16 bits.
      const dims = [0, 1, 2, 3].map(d => k.v128(parts.map(part => part[d]).reduce(i32x4.add)));
      const sum = f32x4.mul(f32x4.fromI32(sumOfFours(k, dims, narrow && runs === 1)), unit);
      const value = steps === undefined ? sum : f32x4.mul(sum, v128.load(step));
      const old = f32x4.mul(v128.load(place), correction);
      k.do(v128.store(place, f32x4.add(old, constant ? f32x4.add(value, constant) : value)));
      k.increment(at, 4 * line);
      k.increment(place, 16);
      k.increment(step, 16);
    });
  });
}
