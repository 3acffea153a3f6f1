/**
 * Small floats: IEEE half (f16), bfloat16 and fp8 e4m3. Encoders round to nearest even and saturate: a finite input never
 * becomes Infinity. Decoders are lookup tables.
 */
const word = new Float32Array(1);
const bits = new Uint32Array(word.buffer);
/** Powers of two from 2^-128 up. A table because `**` would dominate the cost of encoding, and of the tables below. */
const POWERS = Float64Array.from({ length: 192 }, (_, i) => 2 ** (i - 128));

function roundHalfEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}

function decodeSmall(code: number, mantissa: number, minExponent: number, signBit: number): number {
  const magnitude = code & (signBit - 1);
  const exponent = magnitude >> mantissa;
  const fraction = magnitude & ((1 << mantissa) - 1);
  const value =
    exponent === 0
      ? fraction * POWERS[128 + minExponent - mantissa]
      : (fraction + (1 << mantissa)) * POWERS[128 + exponent - 1 + minExponent - mantissa];
  return code & signBit ? -value : value;
}

/** f16: 1 sign, 5 exponent, 10 mantissa bits. Saturates at 65504; NaN becomes 0. */
export function toF16(x: number): number {
  if (Number.isNaN(x)) return 0;
  word[0] = x;
  const sign = (bits[0] >>> 16) & 0x8000;
  // Next to 0.5, a unit in the last place of an f32 is that of a subnormal f16: the addition rounds.
  const isSubnormal = (bits[0] & 0x7fffffff) < 0x38800000;
  if (isSubnormal) word[0] = Math.abs(word[0]) + 0.5;
  const magnitude = bits[0] & 0x7fffffff;
  if (isSubnormal) return sign | (magnitude - 0x3f000000);
  // To nearest even, without the last 13 bits of the mantissa. A carry increments the exponent, as it should.
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | Math.min((rounded >>> 13) - (112 << 10), 0x7bff);
}

const f16Table = new Float32Array(65536).map((_, code) => {
  if ((code & 0x7c00) !== 0x7c00) return decodeSmall(code, 10, -14, 0x8000);
  if (code & 0x3ff) return Number.NaN;
  return code & 0x8000 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
});
export const fromF16 = (code: number): number => f16Table[code];

/** fp8 e4m3: 1 sign, 4 exponent, 3 mantissa bits, no infinities. Saturates at 448. */
export function toFp8(x: number): number {
  word[0] = x;
  const sign = bits[0] >>> 31;
  const magnitude = Math.abs(word[0]);
  const exponent = Math.max(((bits[0] >>> 23) & 255) - 127, -6);
  // In units in the last place the code is an integer. A carry out of the mantissa increments the exponent, as it should.
  const units = roundHalfEven(magnitude * POWERS[128 + 3 - exponent]);
  const code = Math.min(units + ((exponent + 6) << 3), 0x7e);
  return sign === 1 ? code + 0x80 : code;
}

const fp8Table = Float32Array.from({ length: 256 }, (_, code) =>
  (code & 0x7f) === 0x7f ? Number.NaN : decodeSmall(code, 3, -6, 0x80),
);
export const fromFp8 = (code: number): number => fp8Table[code];

/** bfloat16 is the upper 16 bits of an f32. */
export function fromBf16(code: number): number {
  bits[0] = code << 16;
  return word[0];
}

/** The bits of an f32. */
export function floatBits(x: number): number {
  word[0] = x;
  return bits[0];
}
