/** WGSL that loads from the pool of pages. */
import type { PageLayout } from '../../page-layout.ts';

/** Loads from `pool: array<u32>`: bytes at any offset, larger types at even offsets. */
export const poolLoads = /* wgsl */ `
/** These read the page pool at a byte offset. */
fn read_byte(at: u32) -> u32 { return (pool[at >> 2] >> (8 * (at & 3))) & 255; }
fn read_f16(at: u32) -> f32 { return unpack2x16float(pool[at >> 2] >> (8 * (at & 2))).x; }
fn read_f32(at: u32) -> f32 {
  let low = pool[at >> 2] >> (8 * (at & 2));
  return bitcast<f32>(select(low, (low & 0xffff) | (pool[(at >> 2) + 1] << 16), (at & 2) == 2));
}
fn read_word(at: u32) -> u32 {
  let low = pool[at / 4];
  return select(low, (low >> 16) | (pool[at / 4 + 1] << 16), (at & 2) == 2);
}
struct Eight { low: vec4f, high: vec4f }
/** Four fp8 numbers as two pairs of f16 (even, odd), scaled by 2^-8. */
fn fp8_to_f16(codes: u32) -> vec2u {
  let even = ((codes << 8) & 0x80008000) | ((codes << 7) & 0x3f803f80);
  let odd = (codes & 0x80008000) | ((codes >> 1) & 0x3f803f80);
  return vec2u(even, odd);
}
/** Four fp8 numbers, scaled by 2^-8. */
fn scaled_fp8(codes: u32) -> vec4f {
  let both = fp8_to_f16(codes);
  let even = unpack2x16float(both.x);
  let odd = unpack2x16float(both.y);
  return vec4f(even.x, odd.x, even.y, odd.y);
}
fn unpack_fp8(codes: u32) -> vec4f { return 256.0 * scaled_fp8(codes); }
fn unpack_f16x8(words: vec4u) -> Eight {
  return Eight(
    vec4f(unpack2x16float(words.x), unpack2x16float(words.y)),
    vec4f(unpack2x16float(words.z), unpack2x16float(words.w)),
  );
}`;

/** Four f16 scalars at an offset that is a multiple of 4. */
export const readF16x4 = /* wgsl */ `
fn read_f16x4(at: u32) -> vec4f {
  return vec4f(unpack2x16float(pool[at / 4]), unpack2x16float(pool[at / 4 + 1]));
}`;

/** The offset of a head's block, for pages with blocks. */
export const blockOffset = ({ sharedBytes, blockBytes }: PageLayout, page: string) =>
  blockBytes > 0 ? `${page} + ${sharedBytes} + head * ${blockBytes}` : page;
