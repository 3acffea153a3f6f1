/**
 * Weight superblocks ("K" types): 256 values in groups of 16 or 32. Each group has an integer scale, and a minimum in some
 * types; f16 factors d and dmin scale those.
 *
 * Two-bit codes are stored in halves of 128 values: 32 bytes per half, value 32 s + i of the half in bits 2s, 2s + 1 of
 * byte i.
 */
import { f16, type SplitFunction } from './blocks.ts';

const twoBits = (bytes: Uint8Array, at: number, i: number) =>
  (bytes[at + (i >> 7) * 32 + (i & 31)] >> (((i >> 5) & 3) * 2)) & 3;

/** 0-15 scale (low nibble) and minimum (high) of 16 groups of 16, 16-79 two-bit codes, 80-81 d, 82-83 dmin. */
export const splitQ2_K: SplitFunction = (bytes, at, { codes, scales, mins }) => {
  const d = f16(bytes, at + 80);
  const dmin = f16(bytes, at + 82);
  for (let g = 0; g < 16; g++) {
    scales[g] = d * (bytes[at + g] & 15);
    mins[g] = -dmin * (bytes[at + g] >> 4);
  }
  for (let i = 0; i < 256; i++) codes[i] = twoBits(bytes, at + 16, i);
};

/**
 * 0-31 third bits (bit i / 32 of byte i % 32; 4 is subtracted if it is clear), 32-95 two-bit codes, 96-107 sixteen
 * six-bit scales for groups of 16 (32 is zero), 108-109 d. Scale g: its low four bits in the low (g < 8) or high half
 * of byte g % 8, its high two bits from bit 2 (g / 4) of byte 8 + g % 4.
 */
export const splitQ3_K: SplitFunction = (bytes, at, { codes, scales }) => {
  const d = f16(bytes, at + 108);
  for (let g = 0; g < 16; g++) {
    const low = (bytes[at + 96 + (g & 7)] >> (g < 8 ? 0 : 4)) & 15;
    const high = (bytes[at + 104 + (g & 3)] >> ((g >> 2) * 2)) & 3;
    scales[g] = d * ((low | (high << 4)) - 32);
  }
  for (let i = 0; i < 256; i++) {
    const thirdBit = (bytes[at + (i & 31)] >> (i >> 5)) & 1;
    codes[i] = twoBits(bytes, at + 32, i) - (thirdBit ? 0 : 4);
  }
};

/**
 * Eight six-bit scales and eight six-bit minima in 12 bytes, for Q4_K and Q5_K: scales 0-3 in the low six bits of bytes
 * 0-3, minima 0-3 in those of bytes 4-7. Scales 4-7 have their low four bits in the low half of bytes 8-11 and their high
 * two in the top of bytes 0-3; minima 4-7 in the high half of bytes 8-11 and the top of bytes 4-7.
 */
function groupScales(bytes: Uint8Array, at: number, scales: Float64Array, mins: Float64Array): void {
  const [d, dmin] = [f16(bytes, at), f16(bytes, at + 2)];
  const packed = at + 4;
  for (let g = 0; g < 4; g++) {
    scales[g] = d * (bytes[packed + g] & 63);
    mins[g] = -dmin * (bytes[packed + 4 + g] & 63);
    scales[g + 4] = d * ((bytes[packed + 8 + g] & 15) | ((bytes[packed + g] >> 6) << 4));
    mins[g + 4] = -dmin * ((bytes[packed + 8 + g] >> 4) | ((bytes[packed + 4 + g] >> 6) << 4));
  }
}

/** 256 nibbles: 32 bytes hold two groups of 32, low and high. */
const nibble = (bytes: Uint8Array, at: number, i: number) =>
  (bytes[at + (i >> 6) * 32 + (i & 31)] >> (((i >> 5) & 1) * 4)) & 15;

/** 0-1 d, 2-3 dmin, 4-15 scales and minima of 8 groups of 32, 16-143 nibbles. */
export const splitQ4_K: SplitFunction = (bytes, at, { codes, scales, mins }) => {
  groupScales(bytes, at, scales, mins);
  for (let i = 0; i < 256; i++) codes[i] = nibble(bytes, at + 16, i);
};

/** 0-1 d, 2-3 dmin, 4-15 scales and minima, 16-47 fifth bits (bit g of byte i for value i of group g), 48-175 nibbles. */
export const splitQ5_K: SplitFunction = (bytes, at, { codes, scales, mins }) => {
  groupScales(bytes, at, scales, mins);
  for (let i = 0; i < 256; i++) {
    codes[i] = nibble(bytes, at + 48, i) | (((bytes[at + 16 + (i & 31)] >> (i >> 5)) & 1) << 4);
  }
};

/**
 * 0-127 low four bits (64 bytes per half of 128 values: the first 64 in the low nibbles, the rest in the high ones),
 * 128-191 high two bits (in the layout of two-bit codes), 192-207 signed scales of 16 groups of 16, 208-209 d. 32 is zero.
 */
export const splitQ6_K: SplitFunction = (bytes, at, { codes, scales }) => {
  const d = f16(bytes, at + 208);
  for (let g = 0; g < 16; g++) scales[g] = d * ((bytes[at + 192 + g] << 24) >> 24);
  for (let i = 0; i < 256; i++) {
    const low = (bytes[at + (i >> 7) * 64 + (i & 63)] >> (((i >> 6) & 1) * 4)) & 15;
    codes[i] = (low | (twoBits(bytes, at + 128, i) << 4)) - 32;
  }
};
