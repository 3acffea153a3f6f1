/**
 * A page's scores to weights as bytes, for sums in integers. A weight is 2^score, times a factor of its token if there
 * are any, in steps that make the page's largest nearly 127.
 *
 * Weights of a step or less are not lost: what rounding takes from one is given to the token 16 further on, and the
 * first ones begin with a share of a step each, so that many of them together keep their sum. From there on a weight is
 * just rounded.
 */
import {
  type F32,
  f32,
  f32x4,
  type I32,
  i8x16,
  i16x8,
  i32,
  i32x4,
  type Local,
  lanes32,
  type V128,
  v128,
} from '../emit.ts';
import type { Kernel } from '../module.ts';
import { beforeLoop, dotBytes, max4, multiplyAdd, sum4, truncate } from '../ops.ts';
import type { AttendShape } from './attend.ts';
import { COARSE, exp2x4 } from './softmax.ts';

/** The largest weight. */
export const MOST = 127;

/** Half a step of room: what is handed on to a weight is never more than a whole one. */
const TOP = Math.log2(MOST - 0.5);

/** A score below all others: of a page where no token counts. */
const LOWEST = -1e6;

/** Factors of a page's tokens: [token] f32 each, none negative, and their logarithms by `roughLog2`. */
export interface Factors {
  values: I32;
  logs: I32;
}

/** How large sums of bytes may be, of one lane or of half of the lanes. */
export interface Limit {
  lanes: 1 | 4;
  most: number;
  /** Of so many tokens each; of a page unless given. */
  run?: number;
}

/** Logarithms of four factors that are 0.09 too large at most, and never too small. */
export function roughLog2(factors: V128): V128 {
  // The bits of a float, read as a whole number, are nearly its logarithm.
  const log = f32x4.add(f32x4.mul(f32x4.fromI32(factors), f32x4.const(2 ** -23)), f32x4.const(0.0861 - 127));
  return f32x4.max(log, f32x4.const(-30));
}

export interface PageWeights {
  /** 2^top is what a step is worth, in all lanes. */
  top: Local<'v128'>;
  /** Sum of the weights before factors, in such steps. */
  sum: V128;
  /** The same with each multiplied by what `also` says. */
  also: V128;
  /** Eight sums of bytes that meet in a lane: the largest of any run. */
  lanes: Local<'v128'>;
}

/** Of what the loop needs. */
export const WEIGHTS_ROOM = 16 * (2 + COARSE.length);

/** One head's; `bytes` is [pageTokens], `room` has WEIGHTS_ROOM. If sums of bytes pass the limit, all are made half as large, and so on. */
export function pageWeights(
  k: Kernel,
  { pageTokens, relaxed }: AttendShape,
  scores: I32,
  bytes: I32,
  room: I32,
  { factors, also, limit }: { factors?: Factors; also?: I32; limit?: Limit },
): PageWeights {
  const madd = multiplyAdd(relaxed);
  const top = k.v128(f32x4.sub(f32x4.splat(max4(k, largest(k, pageTokens, scores, factors))), f32x4.const(TOP)));
  const [from, to, factor, other] = [k.i32(), k.i32(), k.i32(), k.i32()];
  const [lanes, met] = [k.v128(), k.v128()];
  const run = limit?.run ?? pageTokens;
  const sum = [k.v128(), k.v128()];
  const sums = [k.v128(), k.v128()];
  const rest = [0, 1, 2, 3].map(() => k.v128());
  const words = rest.map(() => k.v128());
  const [x, shifted, weight, value] = [k.v128(), k.v128(), k.v128(), k.v128()];
  const magic = f32x4.const(12582912);

  const pass = () => {
    // Whole parts of scores less the top go straight into exponents, for the top's own is whole, too: the rest of it goes
    // into the powers.
    const whole = k.v128(f32x4.sub(f32x4.add(top, magic), magic));
    const part = k.v128(exp2x4(k, f32x4.sub(whole, top)));
    const [base, low, ...powers] = beforeLoop(k, room, [
      f32x4.sub(magic, whole),
      f32x4.sub(whole, f32x4.const(100)),
      ...COARSE.map(power => f32x4.mul(part, f32x4.const(power))),
    ]);
    k.set(from, scores);
    k.set(to, bytes);
    if (factors) k.set(factor, factors.values);
    if (also) k.set(other, also);
    for (const local of [lanes, ...sum, ...sums]) k.set(local, v128.zero);
    rest.forEach((local, n) => {
      k.set(local, f32x4.const(...[0, 1, 2, 3].map(i => (((4 * n + i) * 7) % 16) / 32 + 17 / 64)));
    });
    const sixteen = () => {
      words.forEach((word, n) => {
        k.set(x, f32x4.max(v128.load(from, 16 * n), low));
        k.set(shifted, f32x4.add(x, base));
        k.set(x, f32x4.sub(x, f32x4.sub(shifted, base)));
        const power = powers.slice(1).reduce<V128>((p, c) => madd(p, x, c), powers[0]);
        k.set(weight, i32x4.add(power, i32x4.shl(shifted, 23)));
        k.set(sum[n % 2], f32x4.add(sum[n % 2], weight));
        if (also) k.set(sums[n % 2], madd(weight, v128.load(other, 16 * n), sums[n % 2]));
        k.set(value, factors ? madd(weight, v128.load(factor, 16 * n), rest[n]) : f32x4.add(weight, rest[n]));
        k.set(word, truncate(relaxed)(value));
        // What is above a whole step; a half if there is more than one.
        k.set(value, f32x4.min(value, f32x4.const(1.5)));
        k.set(rest[n], f32x4.sub(value, v128.and(f32x4.ge(value, f32x4.const(1)), f32x4.const(1))));
      });
      const [a, b] = [i16x8.narrowS(words[0], words[1]), i16x8.narrowS(words[2], words[3])];
      const packed = k.v128(i8x16.narrowS(a, b));
      k.do(v128.store(to, packed));
      k.set(met, i16x8.add(met, dotBytes(relaxed)(packed, i8x16.const(1))));
      k.increment(from, 64);
      k.increment(to, 16);
      if (factors) k.increment(factor, 64);
      if (also) k.increment(other, 64);
    };
    k.for(0, pageTokens / run, 1, () => {
      k.set(met, v128.zero);
      k.for(0, run, 16, sixteen);
      k.set(lanes, i16x8.maxS(lanes, met));
    });
  };
  if (!limit) pass();
  else {
    const again = k.i32(1);
    k.while(again, () => {
      pass();
      k.set(again, v128.anyTrue(over(k, lanes, limit)));
      k.set(top, f32x4.add(top, f32x4.splat(f32.fromI32(again))));
    });
  }
  return { top, sum: f32x4.add(sum[0], sum[1]), also: f32x4.add(sums[0], sums[1]), lanes };
}

/** The largest score, with a factor's logarithm added. */
function largest(k: Kernel, pageTokens: number, scores: I32, factors: Factors | undefined): V128 {
  const most = [0, 1, 2, 3].map(() => k.v128(f32x4.const(LOWEST)));
  const [from, logs] = [k.i32(scores), k.i32(factors?.logs ?? 0)];
  k.for(0, 4 * pageTokens, 64, i => {
    most.forEach((of, n) => {
      const score = v128.load(i32.add(from, i), 16 * n);
      k.set(of, f32x4.max(of, factors ? f32x4.add(score, v128.load(i32.add(logs, i), 16 * n)) : score));
    });
  });
  return most.reduce<V128>(f32x4.max, most[0]);
}

/** Ones in the lanes that pass the limit. */
function over(k: Kernel, lanes: V128, { lanes: together, most }: Limit): V128 {
  if (together === 1) return i16x8.gtS(lanes, i16x8.const(most));
  const pairs = k.v128(i32x4.dot(lanes, i16x8.const(1)));
  return i32x4.gtS(i32x4.add(pairs, v128.shuffle(pairs, pairs, lanes32(1, 0, 3, 2))), i32x4.const(most));
}

/** The sum of a head's bytes. */
export const sumOfBytes = (k: Kernel, { lanes }: PageWeights): F32 =>
  sum4(k, f32x4.fromI32(i32x4.dot(lanes, i16x8.const(1))));
