/**
 * A page's scores to weights as bytes, for sums in integers. 2^score is made in 16 bits, eight tokens a vector, in parts of
 * the page's largest (`pagePowers`); times a factor of its token, if there are any, it becomes a byte, in steps that make
 * the largest nearly 127 (`pageBytes`).
 *
 * Weights of a step or less are not lost: what rounding takes from one is given to the token 16 further on, and the
 * first ones begin with a share of a step each, so that many of them together keep their sum. From there on a weight is
 * just rounded.
 */
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, lanes32, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { beforeLoop, dotBytes, laneWords, max4, maxOfAll, multiplyAdd, multiplyHigh, sum4, truncate } from '../ops.ts';
import type { AttendShape } from './attend.ts';

/** The largest weight. */
export const MOST = 127;

/** A score below all others: of a page where no token counts. */
const LOWEST = -1e6;

/**
 * ONE times 2^-x is about (z^2 + CONSTANT)^32, where z is START - STEPS x and all are parts of 2^15: 0.2 % off to 2^-6, 0.5 %
 * to 2^-12, zero from 2^-17 on. At its largest it is 127 steps of 256.
 */
const START = 24397;
const STEPS = 474.68;
const CONSTANT = 14595;
const SQUARINGS = 5;
const ONE = 32548;

/** The largest weight in 16 bits, before a byte is made of its upper half. */
const TOP = 126.5 * 256;

/** How large sums of bytes may be, of one lane or of half of the lanes. */
export interface Limit {
  lanes: 1 | 4;
  most: number;
  /** Of so many tokens each; of a page unless given. */
  run?: number;
}

export interface PagePowers {
  /** 2^top is what 1 is worth, in all lanes. */
  top: V128;
  /** Of all, in four parts. */
  sum: V128;
}

/**
 * A group's scores to whole numbers of 16 bits, in place: the first half of a head's room is theirs. `room` has POWERS_ROOM.
 * Here and below all heads are done with one thing before the next begins, so that none has to wait for its own.
 */
export function pagePowers(k: Kernel, shape: AttendShape, scores: I32, room: I32): PagePowers[] {
  const { group, pageTokens, relaxed } = shape;
  const heads = Array.from({ length: group }, (_, g) => k.i32(i32.add(scores, 4 * g * pageTokens)));
  const tops = heads.map(from => k.v128(maxOfAll(k, largest(k, pageTokens, from))));
  const square = multiplyHigh(relaxed);
  const power = k.v128();
  return heads.map((head, g) => {
    const top = tops[g];
    const [from, to] = [k.i32(head), k.i32(head)];
    const sums = [0, 1].map(() => k.v128(v128.zero));
    const [steps, start, constant] = beforeLoop(k, room, [
      f32x4.const(STEPS),
      f32x4.sub(f32x4.const(START + 0.5), f32x4.mul(top, f32x4.const(STEPS))),
      i16x8.const(CONSTANT),
    ]);
    k.for(0, pageTokens, 16, () => {
      sums.forEach((sum, n) => {
        const [a, b] = [0, 16].map(offset => {
          const below = multiplyAdd(relaxed)(v128.load(from, 32 * n + offset), steps, start);
          return truncate(relaxed)(below);
        });
        // What is far below becomes zero here.
        k.set(power, i16x8.narrowU(a, b));
        k.set(power, i16x8.add(square(power, power), constant));
        for (let i = 0; i < SQUARINGS; i++) k.set(power, square(power, power));
        k.set(sum, i32x4.add(sum, i32x4.dot(power, i16x8.const(1))));
        k.do(v128.store(to, power, 16 * n));
      });
      k.increment(from, 64);
      k.increment(to, 32);
    });
    return {
      top: k.v128(f32x4.sub(top, f32x4.const(Math.log2(ONE)))),
      sum: k.v128(f32x4.fromI32(i32x4.add(sums[0], sums[1]))),
    };
  });
}
export const POWERS_ROOM = 16 * 3;

/** The largest of a page's scores or factors, in one of four lanes. */
function largest(k: Kernel, pageTokens: number, from: I32): V128 {
  const most = [0, 1, 2, 3].map(() => k.v128(f32x4.const(LOWEST)));
  k.for(0, 4 * pageTokens, 64, i => {
    most.forEach((of, n) => {
      k.set(of, f32x4.max(of, v128.load(i32.add(from, i), 16 * n)));
    });
  });
  return most.reduce<V128>(f32x4.max, most[0]);
}

/** The sum of powers times other numbers of their tokens, [pageTokens] f32. */
export function powersTimes(k: Kernel, { pageTokens, relaxed }: AttendShape, powers: I32, others: I32): F32 {
  const [from, other] = [k.i32(powers), k.i32(others)];
  const [power, sum] = [k.v128(), k.v128(v128.zero)];
  k.for(0, pageTokens, 8, () => {
    k.set(power, v128.load(from));
    [i32x4.extendLowS, i32x4.extendHighS].forEach((extend, n) => {
      k.set(sum, multiplyAdd(relaxed)(f32x4.fromI32(extend(power)), v128.load(other, 16 * n), sum));
    });
    k.increment(from, 16);
    k.increment(other, 32);
  });
  return k.f32(sum4(k, sum));
}

/**
 * Factors of a page's tokens, [pageTokens] f32, none negative, as `pageBytes` takes them; behind them, as f32, what 1 is
 * worth.
 */
export function factorWords(k: Kernel, { pageTokens, relaxed }: AttendShape, factors: I32, out: I32): void {
  const [from, to] = [k.i32(factors), k.i32(out)];
  const one = k.f32(f32.max(max4(k, largest(k, pageTokens, from)), f32.const(1e-30)));
  k.do(f32.store(to, one, 2 * pageTokens));
  const parts = k.v128(f32x4.splat(f32.div(f32.const(32767), one)));
  k.for(0, pageTokens, 16, () => {
    for (const n of [0, 1]) {
      const [a, b] = [0, 16].map(i => truncate(relaxed)(f32x4.mul(v128.load(from, 32 * n + i), parts)));
      k.do(v128.store(to, i16x8.narrowS(a, b), 16 * n));
    }
    k.increment(from, 64);
    k.increment(to, 32);
  });
}
export const factorBytes = (pageTokens: number) => 2 * pageTokens + 16;

export interface PageBytes {
  /** What a step is worth, in 1s of the powers, in all lanes. */
  step: V128;
  /** The sum of all bytes, if asked for. */
  total(): F32;
}

interface BytesOptions {
  /** [pageTokens] of 16 bits, in parts of 2^15, of which the largest is nearly all. */
  factors?: I32;
  /** If sums of bytes would pass it, steps are larger. */
  limit?: Limit;
  counted?: boolean;
}

/** A group's weights out of its powers; `bytes` is [head][pageTokens]. */
export function pageBytes(
  k: Kernel,
  shape: AttendShape,
  powers: I32,
  bytes: I32,
  { factors, limit, counted = false }: BytesOptions,
): PageBytes[] {
  const { group, pageTokens, relaxed } = shape;
  const multiply = multiplyHigh(relaxed);
  // Powers times factors lie behind the powers.
  const behind = factors === undefined ? 0 : 2 * pageTokens;
  const heads = Array.from({ length: group }, (_, g) => k.i32(i32.add(powers, 4 * g * pageTokens)));
  const scales = heads.map(head => k.v128(measure(k, shape, head, behind, factors, limit)));
  // As a power of two that is no less than it, and the part of that it is.
  const split = scales.map(scale => {
    const above = v128.and(i32x4.add(scale, i32x4.const(0x7fffff)), i32x4.const(0x7f800000));
    const whole = k.v128(f32x4.max(above, f32x4.const(1)));
    const words = [f32x4.div(f32x4.mul(scale, f32x4.const(32767)), whole), whole].map(x => {
      const word = k.v128(truncate(relaxed)(x));
      return k.v128(i16x8.narrowS(word, word));
    });
    return { part: words[0], times: words[1] };
  });
  const value = k.v128();
  const words = [0, 1].map(() => k.v128());
  return heads.map((head, g) => {
    const { part, times } = split[g];
    const [from, to] = [k.i32(head), k.i32(i32.add(bytes, g * pageTokens))];
    const count = k.v128(v128.zero);
    const rest = words.map((_, n) =>
      k.v128(i16x8.const(...Array.from({ length: 8 }, (_, i) => (((8 * n + i) * 7) % 16) * 8 + 68))),
    );
    k.for(0, pageTokens, 16, () => {
      words.forEach((word, n) => {
        const weight = multiply(v128.load(from, behind + 16 * n), part);
        k.set(value, i16x8.add(factors === undefined ? weight : i16x8.mul(weight, times), rest[n]));
        k.set(word, i16x8.shrU(value, 8));
        // What is above a whole step; a half if there is more than one.
        k.set(rest[n], v128.and(i16x8.minS(value, i16x8.const(383)), i16x8.const(255)));
      });
      const packed = k.v128(i8x16.narrowS(words[0], words[1]));
      k.do(v128.store(to, packed));
      if (counted) k.set(count, i32x4.add(count, i32x4.dot(dotBytes(relaxed)(packed, i8x16.const(1)), i16x8.const(1))));
      k.increment(from, 32);
      k.increment(to, 16);
    });
    return { step: k.v128(f32x4.div(f32x4.const(256), scales[g])), total: () => sum4(k, f32x4.fromI32(count)) };
  });
}

/**
 * Takes factors into a head's powers and gives what the products are to be multiplied by, in all lanes: their largest is
 * the largest weight, unless lanes would pass the limit.
 */
function measure(
  k: Kernel,
  { pageTokens, relaxed }: AttendShape,
  powers: I32,
  behind: number,
  factors: I32 | undefined,
  limit: Limit | undefined,
): V128 {
  if (factors === undefined && !limit) return f32x4.const(1);
  const multiply = multiplyHigh(relaxed);
  const [from, factor] = [k.i32(powers), k.i32(factors ?? 0)];
  const most = k.v128(v128.zero);
  const run = limit?.run ?? pageTokens;
  const words = [0, 1].map(() => k.v128());
  const lanes = words.map(() => k.v128());
  const together = k.v128(v128.zero);
  k.for(0, pageTokens / run, 1, () => {
    for (const sum of lanes) k.set(sum, v128.zero);
    k.for(0, run, 16, () => {
      words.forEach((word, n) => {
        k.set(word, v128.load(from, 16 * n));
        if (factors === undefined) return;
        k.set(word, multiply(word, v128.load(factor, 16 * n)));
        k.do(v128.store(from, word, behind + 16 * n));
        k.set(most, i16x8.maxS(most, word));
      });
      if (limit)
        laneWords(words, relaxed).forEach((sum, n) => {
          k.set(lanes[n], i32x4.add(lanes[n], sum));
        });
      k.increment(from, 32);
      k.increment(factor, 32);
    });
    if (limit) k.set(together, i32x4.maxS(together, met(k, lanes, limit)));
  });
  const bound = (of: V128, room: number) =>
    f32x4.div(f32x4.const(room), f32x4.max(maxOfAll(k, f32x4.fromI32(of)), f32x4.const(1)));
  const largest = i32x4.maxS(i32x4.extendLowS(most), i32x4.extendHighS(most));
  const all = factors === undefined ? f32x4.const(1) : f32x4.min(bound(largest, TOP), f32x4.const(MOST_SCALE));
  // Each byte may be almost one more than its weight.
  return limit ? f32x4.min(all, bound(together, 256 * (limit.most - (limit.lanes * run) / 8))) : all;
}
/** So much smaller than the largest may factors of tokens that matter be before bits are lost. */
const MOST_SCALE = 128;

/** The largest of sums of lanes, one by one or four together. */
function met(k: Kernel, lanes: readonly V128[], { lanes: together }: Limit): V128 {
  if (together === 1) return i32x4.maxS(lanes[0], lanes[1]);
  const halves = lanes.map(sum => {
    const pairs = k.v128(i32x4.add(sum, v128.shuffle(sum, sum, lanes32(2, 3, 0, 1))));
    return i32x4.add(pairs, v128.shuffle(pairs, pairs, lanes32(1, 0, 3, 2)));
  });
  return i32x4.maxS(halves[0], halves[1]);
}
