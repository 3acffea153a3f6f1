/** WGSL snippets that many kernels share. */

/** f32 to f16 bits: rounds to nearest even and saturates, like kernel/float.ts (pack2x16float may round either way). */
export const toF16 = /* wgsl */ `
fn to_f16(x: f32) -> u32 {
  let a = min(abs(x), 65504.0);
  let bits = bitcast<u32>(a);
  let normal = (bits - (112u << 23u) + 0xfffu + ((bits >> 13u) & 1u)) >> 13u;
  let code = select(normal, u32(round(a * 16777216.0)), a < 0.00006103515625);
  return min(code, 0x7bffu) | select(0u, 0x8000u, bitcast<u32>(x) >= 0x80000000u);
}`;

export const toFp8 = /* wgsl */ `
fn to_fp8(x: f32) -> u32 {
  let a = min(abs(x), 448.0);
  let bits = bitcast<u32>(a);
  let normal = (bits - (120u << 23u) + 0x7ffffu + ((bits >> 20u) & 1u)) >> 20u;
  let code = select(normal, u32(round(a * 512.0)), a < 0.015625);
  return min(code, 0x7eu) | select(0u, 0x80u, bitcast<u32>(x) >= 0x80000000u);
}`;

/** The two f16 values of a word, as f32. */
export const unpackHalves = /* wgsl */ `
fn low_half(word: u32) -> f32 { return unpack2x16float(word).x; }
fn high_half(word: u32) -> f32 { return unpack2x16float(word).y; }`;

/** The text for 0 to n - 1: loops that are unrolled in the source, so that arrays become registers. */
export const each = (n: number, text: (i: number) => string, join = '\n'): string =>
  Array.from({ length: n }, (_, i) => text(i)).join(join);

/**
 * `rope_rotate(pair, cos_sin)`: rotates a pair of dims by RoPE. Shared by all kernels, so that they get the same bits.
 */
export const ropeRotate = /* wgsl */ `
fn rope_rotate(x: vec2f, by: vec2f) -> vec2f { return vec2f(fma(x.x, by.x, -(x.y * by.y)), fma(x.x, by.y, x.y * by.x)); }`;

/** A float literal that reads back as the same f32. */
export function float(x: number): string {
  const text = String(Math.fround(x));
  return `f32(${/[.e]/.test(text) ? text : `${text}.0`})`;
}

/** Cosine and sine of an angle, made in f64. */
export const cosSin = (angle: number): [number, number] => [Math.cos(angle), Math.sin(angle)];

/** Bits of `a` where the mask is 1, else of `b`. */
const selectBits = (a: string, b: string, mask: string) => `(((${a} ^ ${b}) & ${mask}) ^ ${b})`;

/**
 * Transposes the 4 x 4 bytes of x0 to x3: y0 gets the first byte of each. On an H200 `insertBits` is one instruction.
 */
export const transpose4x4Bytes = /* wgsl */ `
      let even0 = ${selectBits('x0', '(x1 << 8u)', '0x00ff00ffu')};
      let odd0 = ${selectBits('(x0 >> 8u)', 'x1', '0x00ff00ffu')};
      let even1 = ${selectBits('x2', '(x3 << 8u)', '0x00ff00ffu')};
      let odd1 = ${selectBits('(x2 >> 8u)', 'x3', '0x00ff00ffu')};
      let y0 = insertBits(even0, even1, 16u, 16u);
      let y1 = insertBits(odd0, odd1, 16u, 16u);
      let y2 = insertBits(even1, even0 >> 16u, 0u, 16u);
      let y3 = insertBits(odd1, odd0 >> 16u, 0u, 16u);`;

/** The largest component of a vec4. */
export const maxOf4 = (v: string): string => `max(max(${v}.x, ${v}.y), max(${v}.z, ${v}.w))`;

/** The sum of the four bytes of a word. */
export const sumOfBytes = (word: string): string => `dot4U8Packed(${word}, 0x01010101u)`;

/** A word with the same byte four times. */
export const repeatByte = (byte: number): string => `0x${byte.toString(16).padStart(2, '0').repeat(4)}u`;

/** 1.5 x 2^23: adding it to a small float leaves the nearest integer in the lowest bits. */
export const ROUND_MAGIC = 'vec4f(12582912.0)';

/** Packs four floats, rounded so and at most 255, into the bytes of a word; subtracts the bits of ROUND_MAGIC. */
export const packRounded = ([a, b, c, d]: readonly string[], type: 'u32' | 'vec4u'): string =>
  `((${a} + (${b} << ${type}(8))) + ((${c} << ${type}(16)) + (${d} << ${type}(24))) - ${type}(0x8b400000u))`;
