/** Small pieces of code that several kernels are made of. */
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
} from './emit.ts';
import type { Kernel } from './module.ts';

/** The bits of an f16 that is moved down by 3 in the high half of a lane; its exponent is then 112 too low. */
export const HALF: { bits: V128; scale: V128 } = { bits: i32x4.const(0x8fffe000), scale: f32x4.const(2 ** 112) };

/** Four f16, each in the high half of a 32-bit lane, to f32: subnormals too. Infinities and NaN are not expected. */
export const highHalfToFloat = (x: V128, { bits, scale } = HALF): V128 =>
  f32x4.mul(v128.and(i32x4.shrS(x, 3), bits), scale);

/** The same for low halves. */
export const halfToFloat = (x: V128): V128 => highHalfToFloat(i32x4.shl(x, 16));

/** Four f16 side by side in memory. */
export const loadHalf4 = (address: I32, offset = 0): V128 => halfToFloat(v128.load16x4U(address, offset));

/** One f16 in memory. */
export function loadHalf(address: I32, offset = 0): F32 {
  const shifted = i32.and(i32.shrS(i32.shl(i32.load16U(address, offset), 16), 3), 0x8fffe000 | 0);
  return f32.mul(f32.fromBits(shifted), f32.const(2 ** 112));
}

/** Four f32 to f16 in the low half of each lane; ties to even, saturating. */
export function floatToHalf(k: Kernel, x: V128): V128 {
  const value = k.v128(f32x4.max(f32x4.const(-65504), f32x4.min(f32x4.const(65504), x)));
  const scaled = k.v128(f32x4.mul(f32x4.abs(value), f32x4.const(2 ** -112)));
  const even = v128.and(i32x4.shrU(scaled, 13), i32x4.const(1));
  const rounded = i32x4.shrU(i32x4.add(i32x4.add(scaled, i32x4.const(0xfff)), even), 13);
  return v128.or(rounded, v128.and(i32x4.shrU(value, 16), i32x4.const(0x8000)));
}

/** The low halves of eight 32-bit lanes, side by side. */
export const packLow16 = (a: V128, b: V128): V128 =>
  v128.shuffle(a, b, [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29]);

/** Stores one f16. */
export function storeHalf(k: Kernel, address: I32, value: F32, offset = 0): void {
  k.do(i32.store16(address, i32x4.lane(floatToHalf(k, f32x4.splat(value)), 0), offset));
}

/** Sum of the four lanes, always in the same order. */
export function sum4(k: Kernel, x: V128): F32 {
  const v = k.v128(x);
  return f32.add(f32.add(f32x4.lane(v, 0), f32x4.lane(v, 1)), f32.add(f32x4.lane(v, 2), f32x4.lane(v, 3)));
}

/** Largest of the four lanes. As vectors: the scalar maximum is made of branches that nobody can foretell. */
export const max4 = (k: Kernel, x: V128): F32 => f32x4.lane(maxOfAll(k, x), 0);

/** The same in all lanes. */
export function maxOfAll(k: Kernel, x: V128): V128 {
  const v = k.v128(x);
  const two = k.v128(f32x4.max(v, v128.shuffle(v, v, lanes32(2, 3, 0, 1))));
  return f32x4.max(two, v128.shuffle(two, two, lanes32(1, 0, 3, 2)));
}

/** exp of four values, 0 below -87: a power of two times a polynomial, good to 2e-7. */
export function exp4(k: Kernel, x: V128): V128 {
  const v = k.v128(f32x4.max(f32x4.const(-87), f32x4.min(f32x4.const(88), x)));
  // Adding 1.5 x 2^23 rounds to a whole number, which is then in the low bits too.
  const magic = f32x4.const(12582912);
  const shifted = k.v128(f32x4.add(f32x4.mul(v, f32x4.const(Math.LOG2E)), magic));
  const n = k.v128(f32x4.sub(shifted, magic));
  // ln 2 in two parts, so that the difference keeps its last bits.
  const r = k.v128(
    f32x4.sub(f32x4.sub(v, f32x4.mul(n, f32x4.const(0.693359375))), f32x4.mul(n, f32x4.const(-2.1219444e-4))),
  );
  let p = f32x4.const(1 / 720);
  for (const c of [1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1]) p = f32x4.add(f32x4.mul(p, r), f32x4.const(c));
  return f32x4.mul(p, i32x4.shl(i32x4.add(shifted, i32x4.const(127)), 23));
}

/** Lane i of the result is the sum of the lanes of vector i; works for i32x4 too with its own add. */
export function transposeSum(k: Kernel, [a, b, c, d]: readonly V128[], add: (a: V128, b: V128) => V128): V128 {
  const ab = k.v128(add(v128.shuffle(a, b, lanes32(0, 1, 4, 5)), v128.shuffle(a, b, lanes32(2, 3, 6, 7))));
  const cd = k.v128(add(v128.shuffle(c, d, lanes32(0, 1, 4, 5)), v128.shuffle(c, d, lanes32(2, 3, 6, 7))));
  return add(v128.shuffle(ab, cd, lanes32(0, 2, 4, 6)), v128.shuffle(ab, cd, lanes32(1, 3, 5, 7)));
}

/** Lane j of vector i to lane i of vector j. */
export function transpose4(k: Kernel, [a, b, c, d]: readonly V128[]): V128[] {
  const [ab, cd] = [k.v128(v128.shuffle(a, b, lanes32(0, 4, 1, 5))), k.v128(v128.shuffle(c, d, lanes32(0, 4, 1, 5)))];
  const [ef, gh] = [k.v128(v128.shuffle(a, b, lanes32(2, 6, 3, 7))), k.v128(v128.shuffle(c, d, lanes32(2, 6, 3, 7)))];
  return [
    v128.shuffle(ab, cd, lanes32(0, 1, 4, 5)),
    v128.shuffle(ab, cd, lanes32(2, 3, 6, 7)),
    v128.shuffle(ef, gh, lanes32(0, 1, 4, 5)),
    v128.shuffle(ef, gh, lanes32(2, 3, 6, 7)),
  ];
}

/** Lane i of the result is the sum of the four lanes of vector i; `narrow` if sums of any two fit into 16 bits. */
export function sumOfFours(k: Kernel, vectors: readonly V128[], narrow: boolean): V128 {
  if (!narrow) return transposeSum(k, vectors, i32x4.add);
  const ones = i16x8.const(1);
  const pairs = [0, 2].map(i => i32x4.dot(i16x8.narrowS(vectors[i], vectors[i + 1]), ones));
  return i32x4.dot(i16x8.narrowS(pairs[0], pairs[1]), ones);
}

/** A 16-entry table look-up for indices 0 to 15. */
export const swizzle = (relaxed: boolean) => (relaxed ? i8x16.relaxedSwizzle : i8x16.swizzle);

/** a b + c. */
export const multiplyAdd = (relaxed: boolean) => (a: V128, b: V128, c: V128) =>
  relaxed ? f32x4.relaxedMadd(a, b, c) : f32x4.add(c, f32x4.mul(a, b));

/** Towards zero, for what fits into 32 bits. */
export const truncate = (relaxed: boolean) => (relaxed ? i32x4.relaxedTrunc : i32x4.fromF32);

/** int8 times 7-bit unsigned, 16 products added up to 8 of 16 bits: which with which differs, their sum does not. */
export const dotBytes = (relaxed: boolean) => (a: V128, b: V128) =>
  relaxed ? i16x8.relaxedDot(a, b) : i16x8.add(i16x8.extmulLowS(a, b), i16x8.extmulHighS(a, b));

/** Parts of 2^15: a b / 2^15, rounded. */
export const multiplyHigh = (relaxed: boolean) => (relaxed ? i16x8.relaxedQ15mulr : i16x8.q15mulr);

/** What `dotBytes` of 16 bytes adds up in its lower and its upper lanes: from two vectors of eight bytes' values each. */
export const laneWords = ([a, b]: readonly V128[], relaxed: boolean): V128[] =>
  relaxed
    ? [a, b].map(x => i32x4.dot(x, i16x8.const(1)))
    : [i32x4.extendLowS, i32x4.extendHighS].map(extend => i32x4.add(extend(a), extend(b)));

/** What `dotBytes` of 16 bytes adds up in its lanes: from four vectors of four bytes' values each. */
export const laneSums = ([a, b, c, d]: readonly V128[], relaxed: boolean): V128[] =>
  relaxed
    ? [a, b, c, d].map(x => f32x4.add(x, v128.shuffle(x, x, lanes32(1, 0, 3, 2))))
    : [f32x4.add(a, c), f32x4.add(b, d)];

/**
 * Values by way of memory. What a loop alone uses V8 moves into it, to be computed anew in every turn; loads stay where
 * they are.
 */
export function beforeLoop(k: Kernel, room: I32, values: readonly V128[]): Local<'v128'>[] {
  const at = k.i32(room);
  values.forEach((value, i) => {
    k.do(v128.store(at, value, 16 * i));
  });
  return values.map((_, i) => k.v128(v128.load(at, 16 * i)));
}

/** This chunk's share of `count` things: [from, to), whole multiples of `unit`. */
export function share(k: Kernel, count: I32, unit: number, chunk: I32, chunks: I32): { from: I32; to: I32 } {
  const units = k.i32(i32.divU(i32.add(count, unit - 1), unit));
  const from = k.i32(i32.mul(i32.divU(i32.mul(units, chunk), chunks), unit));
  const to = k.i32(i32.mul(i32.divU(i32.mul(units, i32.add(chunk, 1)), chunks), unit));
  k.set(to, i32.select(i32.ltS(to, count), to, count));
  return { from, to };
}
