/**
 * Values in columns, summed under weights: signed bytes (levels of a table, or codes) times 7-bit weights. Products are
 * added in 16-bit lanes for as many tokens as cannot overflow there.
 */
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { dotBytes, multiplyAdd, transposeSum } from '../ops.ts';
import type { AttendShape } from './attend.ts';
import { type Columns, codesAt, columnAddresses } from './columns.ts';
import { STATE_HEAD, stateBytes } from './softmax.ts';

/** Heads whose sums are kept in registers together. */
const HEADS = 4;

/** A group's weights as bytes, [head][pageTokens]; then what fragments keep: f32 [head][pageTokens] at most. */
export const behindWeights = ({ group, pageTokens }: AttendShape) => group * pageTokens;
export const sumScratch = ({ group, pageTokens }: AttendShape) => 5 * group * pageTokens;

/** The largest weight. */
const MOST = 127;
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

/** From here on a weight is just rounded: nothing is gained by handing on what is lost. */
const HEAVY = 1;

/**
 * A head's weights, of which the largest is given, as bytes; gives what a step of these is worth. Weights of a step or
 * less are not lost: what rounding takes from one is given to the token 16 further on, and the first ones begin with a
 * share of a step each, so that many of them together keep their sum.
 */
export function byteWeights(
  k: Kernel,
  { pageTokens, relaxed }: AttendShape,
  weights: I32,
  largest: F32,
  out: I32,
): F32 {
  const magic = f32x4.const(12582912);
  // Half a step of room: what is added to a weight is never more.
  const unit = k.f32(f32.mul(f32.max(largest, f32.const(1e-30)), f32.const(1 / (MOST - 0.5))));
  const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), unit)));
  const [from, to] = [k.i32(weights), k.i32(out)];
  const rest = [0, 1, 2, 3].map(n =>
    k.v128(f32x4.const(...[0, 1, 2, 3].map(i => (((4 * n + i) * 7) % 16) / 16 - 15 / 32))),
  );
  const [value, rounded] = [k.v128(), k.v128()];
  const words = rest.map(() => k.v128());
  k.for(0, pageTokens, 16, () => {
    words.forEach((word, n) => {
      k.set(value, multiplyAdd(relaxed)(v128.load(from, 16 * n), inverse, rest[n]));
      k.set(rounded, f32x4.add(value, magic));
      k.set(word, i32x4.sub(rounded, i32x4.const(0x4b400000)));
      const missed = f32x4.sub(value, f32x4.sub(rounded, magic));
      k.set(rest[n], v128.and(missed, f32x4.gt(f32x4.const(HEAVY), value)));
    });
    const [a, b] = [i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3])];
    k.do(v128.store(to, i8x16.narrowS(a, b)));
    k.increment(from, 64);
    k.increment(to, 16);
  });
  return unit;
}

/** Of a head: what its old sums are multiplied by, what a sum is worth, and what is added to all. */
export interface Worth {
  correction: V128;
  unit: V128;
  constant?: V128;
}

export interface SumOptions {
  /** Codes to signed bytes, and how large these are. */
  look(codes: V128, dimOfColumn: number): V128;
  most: number;
  /** Dims from here to there; all unless given. */
  from?: number;
  to?: number;
}

/** Tokens whose code is unrolled: whole lines of a page, or pieces of long ones. */
const turnOf = ({ span }: Columns, pageTokens: number) => (pageTokens <= 256 ? pageTokens : span);

/** Sums of states = old x correction + weights . bytes x unit + constant, column by column. */
export function sumColumns(
  k: Kernel,
  columns: Columns,
  shape: AttendShape,
  block: I32,
  weights: I32,
  worth: readonly Worth[],
  state: I32,
  { look, most, from = 0, to = shape.headDim }: SumOptions,
): void {
  const { pageTokens, headDim, relaxed } = shape;
  const perTurn = 4 / columns.dims;
  const turn = turnOf(columns, pageTokens);
  // Vectors whose products fit into 16 bits together.
  const together = Math.floor(32767 / (2 * MOST * most));
  const ones = i16x8.const(1);
  const [codes, bytes] = [k.v128(), k.v128()];
  for (let first = 0; first < worth.length; first += HEADS) {
    const heads = worth.slice(first, first + HEADS);
    const sums = heads.map(() => [0, 1, 2, 3].map(() => k.v128()));
    const short = heads.map(() => Array.from({ length: columns.dims }, () => k.v128()));
    k.for(from / columns.dims, to / columns.dims, perTurn, column => {
      for (const sum of sums.flat()) k.set(sum, v128.zero);
      for (let c = 0; c < perTurn; c++) {
        const at = columnAddresses(k, columns, block, i32.add(column, c), 0);
        const w = k.i32(i32.add(weights, first * pageTokens));
        k.for(0, pageTokens, turn, () => {
          for (let n = 0; n < turn / 16; n++) {
            const step = (16 * n) % columns.span;
            const line = (p: number) => ((16 * n - step) * columns.planes[p].width) / 8;
            k.set(codes, codesAt(columns, at, line, step / 16));
            const opens = n % together === 0;
            const closes = (n + 1) % together === 0 || 16 * (n + 1) === turn;
            for (let d = 0; d < columns.dims; d++) {
              k.set(bytes, look(codes, d));
              heads.forEach((_, i) => {
                const products = dotBytes(relaxed)(bytes, v128.load(w, i * pageTokens + 16 * n));
                k.set(short[i][d], opens ? products : i16x8.add(short[i][d], products));
                const sum = sums[i][c * columns.dims + d];
                if (closes) k.set(sum, i32x4.add(sum, i32x4.dot(short[i][d], ones)));
              });
            }
          }
          at.forEach((address, p) => {
            k.increment(address, (turn * columns.planes[p].width) / 8);
          });
          k.increment(w, turn);
        });
      }
      heads.forEach(({ correction, unit, constant }, i) => {
        const place = i32.add(state, i32.mul(column, 4 * columns.dims));
        const offset = (first + i) * stateBytes(headDim) + STATE_HEAD;
        const old = f32x4.mul(v128.load(place, offset), correction);
        const value = f32x4.mul(f32x4.fromI32(transposeSum(k, sums[i], i32x4.add)), unit);
        k.do(v128.store(place, f32x4.add(old, constant ? f32x4.add(value, constant) : value), offset));
      });
    });
  }
}
