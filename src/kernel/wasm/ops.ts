/** Code snippets shared by several kernels. */
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

/** The largest int16. */
export const MAX_INT16 = 32767;

/** Keeps a divisor above zero; far below any value that matters. */
export const TINY = 1e-30;

/** Adding it to a float rounds to an integer, which is what the bits of the sum exceed ROUND_BITS by. */
export const ROUND = 1.5 * 2 ** 23;
const ROUND_BITS = 0x4b400000;

/** The integer that adding ROUND has left in the low bits. */
export const roundedToI32 = (shifted: V128): V128 => i32x4.sub(shifted, i32x4.const(ROUND_BITS));

/** The nearest integers of four values below 2^22. */
export const roundToI32 = (x: V128): V128 => roundedToI32(f32x4.add(x, f32x4.const(ROUND)));

/** Heads whose sums are kept in registers together. */
export const HEADS_PER_PASS = 4;

/** The heads of each pass. */
export const headPasses = (heads: number): number[][] =>
  Array.from({ length: Math.ceil(heads / HEADS_PER_PASS) }, (_, i) =>
    Array.from({ length: Math.min(HEADS_PER_PASS, heads - i * HEADS_PER_PASS) }, (_, j) => i * HEADS_PER_PASS + j),
  );

/** out = f(x), for `bytes` of vectors; without f, a copy. */
export function mapVectors(k: Kernel, bytes: number, x: I32, out: I32, f = (v: V128): V128 => v): void {
  k.for(0, bytes, 16, i => k.do(v128.store(i32.add(out, i), f(v128.load(i32.add(x, i))))));
}

/**
 * Constants of the f16 to f32 conversion: the f16 bits after a shift by 3, and the difference of the exponent biases.
 */
const F16_BITS = 0x8fffe000;
export const F16_TO_F32: { bits: V128; scale: V128 } = { bits: i32x4.const(F16_BITS), scale: f32x4.const(2 ** 112) };

/** Four f16, sign-extended and shifted left by 13, to f32. Handles subnormals, but not infinities and NaN. */
const shiftedF16ToF32 = (x: V128, { bits, scale } = F16_TO_F32): V128 => f32x4.mul(v128.and(x, bits), scale);

/** Four f16 in the low halves of 32-bit lanes to f32. */
export const lowF16ToF32 = (x: V128): V128 => shiftedF16ToF32(i32x4.shrS(i32x4.shl(x, 16), 3));

/** Loads four consecutive f16. */
export const loadF16x4 = (address: I32, offset = 0, constants = F16_TO_F32): V128 =>
  shiftedF16ToF32(i32x4.shl(v128.load16x4S(address, offset), 13), constants);

export function loadF16(address: I32, offset = 0): F32 {
  const shifted = i32.and(i32.shrS(i32.shl(i32.load16U(address, offset), 16), 3), F16_BITS | 0);
  return f32.mul(f32.fromBits(shifted), f32.const(2 ** 112));
}

interface SmallFloat {
  bits: number;
  mantissaBits: number;
  /** The difference of the exponent biases. */
  bias: number;
  max: number;
}
const F16: SmallFloat = { bits: 16, mantissaBits: 10, bias: 112, max: 65504 };
const FP8: SmallFloat = { bits: 8, mantissaBits: 3, bias: 120, max: 448 };

/** Four f32 to smaller floats in the low bits of each lane: rounds to nearest even and saturates. */
function narrowFloats(k: Kernel, x: V128, { bits, mantissaBits, bias, max }: SmallFloat): V128 {
  const dropped = 23 - mantissaBits;
  const value = k.v128(f32x4.max(f32x4.const(-max), f32x4.min(f32x4.const(max), x)));
  const scaled = k.v128(f32x4.mul(f32x4.abs(value), f32x4.const(2 ** -bias)));
  const even = v128.and(i32x4.shrU(scaled, dropped), i32x4.const(1));
  const half = i32x4.const(2 ** (dropped - 1) - 1);
  const rounded = i32x4.shrU(i32x4.add(i32x4.add(scaled, half), even), dropped);
  return v128.or(rounded, v128.and(i32x4.shrU(value, 32 - bits), i32x4.const(2 ** (bits - 1))));
}
export const f32ToF16 = (k: Kernel, x: V128): V128 => narrowFloats(k, x, F16);
export const f32ToFp8 = (k: Kernel, x: V128): V128 => narrowFloats(k, x, FP8);

/** The low halves of eight 32-bit lanes as one vector. */
export const packLow16 = (a: V128, b: V128): V128 =>
  v128.shuffle(a, b, [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29]);

export function storeF16(k: Kernel, address: I32, value: F32, offset = 0): void {
  k.do(i32.store16(address, i32x4.lane(f32ToF16(k, f32x4.splat(value)), 0), offset));
}

/** Sum of the four lanes, in a fixed order. */
export function reduceAdd(k: Kernel, x: V128): F32 {
  const v = k.v128(x);
  return f32.add(f32.add(f32x4.lane(v, 0), f32x4.lane(v, 1)), f32.add(f32x4.lane(v, 2), f32x4.lane(v, 3)));
}

/** Maximum of the four lanes. Uses vector instructions: the scalar maximum compiles to unpredictable branches. */
export const reduceMax = (k: Kernel, x: V128): F32 => f32x4.lane(reduceMaxSplat(k, x), 0);

/** The maximum of the four lanes, in all lanes. */
export function reduceMaxSplat(k: Kernel, x: V128): V128 {
  const v = k.v128(x);
  const two = k.v128(f32x4.max(v, v128.shuffle(v, v, lanes32(2, 3, 0, 1))));
  return f32x4.max(two, v128.shuffle(two, two, lanes32(1, 0, 3, 2)));
}

/** exp of four values, clamped to [-87, 88]: a power of two times a polynomial, accurate to 2e-7. */
export function exp(k: Kernel, x: V128): V128 {
  const v = k.v128(f32x4.max(f32x4.const(-87), f32x4.min(f32x4.const(88), x)));
  const shifted = k.v128(f32x4.add(f32x4.mul(v, f32x4.const(Math.LOG2E)), f32x4.const(ROUND)));
  const n = k.v128(f32x4.sub(shifted, f32x4.const(ROUND)));
  // ln 2 in two parts, so that the difference is exact.
  const r = k.v128(
    f32x4.sub(f32x4.sub(v, f32x4.mul(n, f32x4.const(0.693359375))), f32x4.mul(n, f32x4.const(-2.1219444e-4))),
  );
  let p = f32x4.const(1 / 720);
  for (const c of [1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1]) p = f32x4.add(f32x4.mul(p, r), f32x4.const(c));
  return f32x4.mul(p, i32x4.shl(i32x4.add(shifted, i32x4.const(127)), 23));
}

/** Lane i of the result is the sum of the lanes of vector i, in f32 or i32 depending on `add`. */
export function horizontalSums(k: Kernel, [a, b, c, d]: readonly V128[], add: (a: V128, b: V128) => V128): V128 {
  const ab = k.v128(add(v128.shuffle(a, b, lanes32(0, 1, 4, 5)), v128.shuffle(a, b, lanes32(2, 3, 6, 7))));
  const cd = k.v128(add(v128.shuffle(c, d, lanes32(0, 1, 4, 5)), v128.shuffle(c, d, lanes32(2, 3, 6, 7))));
  return add(v128.shuffle(ab, cd, lanes32(0, 2, 4, 6)), v128.shuffle(ab, cd, lanes32(1, 3, 5, 7)));
}

/** Transposes a 4 x 4 matrix of 32-bit lanes. */
export function transpose4x4(k: Kernel, [a, b, c, d]: readonly V128[]): V128[] {
  const [ab, cd] = [k.v128(v128.shuffle(a, b, lanes32(0, 4, 1, 5))), k.v128(v128.shuffle(c, d, lanes32(0, 4, 1, 5)))];
  const [ef, gh] = [k.v128(v128.shuffle(a, b, lanes32(2, 6, 3, 7))), k.v128(v128.shuffle(c, d, lanes32(2, 6, 3, 7)))];
  return [
    v128.shuffle(ab, cd, lanes32(0, 1, 4, 5)),
    v128.shuffle(ab, cd, lanes32(2, 3, 6, 7)),
    v128.shuffle(ef, gh, lanes32(0, 1, 4, 5)),
    v128.shuffle(ef, gh, lanes32(2, 3, 6, 7)),
  ];
}

/** Lane i of the result is the sum of the i32 lanes of vector i; `narrow` if sums of any two lanes fit into 16 bits. */
export function horizontalSumsI32(k: Kernel, vectors: readonly V128[], narrow: boolean): V128 {
  if (!narrow) return horizontalSums(k, vectors, i32x4.add);
  const ones = i16x8.const(1);
  const pairs = [0, 2].map(i => i32x4.dot(i16x8.narrowS(vectors[i], vectors[i + 1]), ones));
  return i32x4.dot(i16x8.narrowS(pairs[0], pairs[1]), ones);
}

/** Lookup in a 16-entry byte table, for indices 0 to 15. */
export const swizzle = (relaxed: boolean) => (relaxed ? i8x16.relaxedSwizzle : i8x16.swizzle);

/** a b + c. */
export const multiplyAdd = (relaxed: boolean) => (a: V128, b: V128, c: V128) =>
  relaxed ? f32x4.relaxedMadd(a, b, c) : f32x4.add(c, f32x4.mul(a, b));

/** f32 to i32, rounding toward zero; values must fit. */
export const truncate = (relaxed: boolean) => (relaxed ? i32x4.relaxedTrunc : i32x4.fromF32);

/**
 * Dot product of int8 and 7-bit unsigned values: 16 products, added in pairs to eight i16. Which products form a pair
 * depends on `relaxed`; the total does not.
 */
export const dotInt8 = (relaxed: boolean) => (a: V128, b: V128) =>
  relaxed ? i16x8.relaxedDot(a, b) : i16x8.add(i16x8.extmulLowS(a, b), i16x8.extmulHighS(a, b));

/** Adds the products of `dotInt8` to a sum, or begins one: eight i16, or four i32 with `dotAdd`. */
export const addDotInt8 =
  ({ relaxed, dotAdd }: { relaxed: boolean; dotAdd: boolean }) =>
  (sum: V128 | undefined, a: V128, b: V128): V128 => {
    if (dotAdd) return i32x4.relaxedDotAdd(a, b, sum ?? v128.zero);
    const products = dotInt8(relaxed)(a, b);
    return sum ? i16x8.add(sum, products) : products;
  };

/** Sums of `addDotInt8` as four i32. */
export const dotSumsI32 = ({ dotAdd }: { dotAdd: boolean }, sums: V128, ones: V128): V128 =>
  dotAdd ? sums : i32x4.dot(sums, ones);

/** Q15 product: a b / 2^15, rounded. */
export const multiplyQ15 = (relaxed: boolean) => (relaxed ? i16x8.relaxedQ15mulr : i16x8.q15mulr);

/** The sums of 16 values by the lane of `dotInt8` that adds them: lanes 0 to 3, lanes 4 to 7. Values are two i16x8. */
export const dotLaneSumsI16 = ([a, b]: readonly V128[], relaxed: boolean): V128[] =>
  relaxed
    ? [a, b].map(x => i32x4.dot(x, i16x8.const(1)))
    : [i32x4.extendLowS, i32x4.extendHighS].map(extend => i32x4.add(extend(a), extend(b)));

/** The sums of 16 values by the lane of `dotInt8` that adds them. Values are four f32x4. */
export const dotLaneSumsF32 = ([a, b, c, d]: readonly V128[], relaxed: boolean): V128[] =>
  relaxed
    ? [a, b, c, d].map(x => f32x4.add(x, v128.shuffle(x, x, lanes32(1, 0, 3, 2))))
    : [f32x4.add(a, c), f32x4.add(b, d)];

/**
 * Keeps values in registers across a loop by storing and reloading them: V8 sinks expressions that only the loop uses
 * into it and recomputes them in every iteration, but it does not move loads.
 */
export function hoist(k: Kernel, scratch: I32, values: readonly V128[]): Local<'v128'>[] {
  const at = k.i32(scratch);
  for (const [i, value] of values.entries()) k.do(v128.store(at, value, 16 * i));
  return values.map((_, i) => k.v128(v128.load(at, 16 * i)));
}

/** The range [from, to) of `count` items that this chunk processes, in multiples of `unit`. */
export function chunkRange(k: Kernel, count: I32, unit: number, chunk: I32, chunks: I32): { from: I32; to: I32 } {
  const units = k.i32(i32.divU(i32.add(count, unit - 1), unit));
  const from = k.i32(i32.mul(i32.divU(i32.mul(units, chunk), chunks), unit));
  const to = k.i32(i32.mul(i32.divU(i32.mul(units, i32.add(chunk, 1)), chunks), unit));
  k.set(to, i32.min(to, count));
  return { from, to };
}
