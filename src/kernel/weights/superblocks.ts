/**
 * Weight superblocks ("K" types and IQ4_XS): 256 values in groups of 16 or 32. Each group has an integer scale, and a minimum in some
 * types; f16 factors d and dmin scale those. Codes are split as in blocks.ts, as bytes of words.
 *
 * Two-bit codes are stored in halves of 128 values: 32 bytes per half, value 32 s + i of the half in bits 2s, 2s + 1 of
 * byte i.
 */
import { fromF16 } from '../float.ts';
import { byteAt, iq4Levels, type SplitFunction, subtractFromBytes, wordAt } from './blocks.ts';

/** The two-bit codes of values 4 i to 4 i + 3. */
const twoBits = (halves: Uint16Array, at: number, i: number): number =>
  (wordAt(halves, at, ((i >> 5) << 3) | (i & 7)) >>> (((i >> 3) & 3) * 2)) & 0x03030303;

/** 0-15 scale (low nibble) and minimum (high) of 16 groups of 16, 16-79 two-bit codes, 80-81 d, 82-83 dmin. */
export const splitQ2_K: SplitFunction = (halves, at, { words, scales, mins }) => {
  const d = fromF16(halves[at + 40]);
  const dmin = fromF16(halves[at + 41]);
  for (let g = 0; g < 16; g++) {
    const byte = byteAt(halves, at, g);
    scales[g] = d * (byte & 15);
    mins[g] = -dmin * (byte >> 4);
  }
  for (let i = 0; i < 64; i++) words[i] = twoBits(halves, at + 8, i);
};

/**
 * 0-31 third bits (bit i / 32 of byte i % 32; 4 is subtracted if it is clear), 32-95 two-bit codes, 96-107 sixteen
 * six-bit scales for groups of 16 (32 is zero), 108-109 d. Scale g: its low four bits in the low (g < 8) or high half
 * of byte g % 8, its high two bits from bit 2 (g / 4) of byte 8 + g % 4.
 */
export const splitQ3_K: SplitFunction = (halves, at, { words, scales }) => {
  const d = fromF16(halves[at + 54]);
  for (let g = 0; g < 16; g++) {
    const low = (byteAt(halves, at + 48, g & 7) >> (g < 8 ? 0 : 4)) & 15;
    const high = (byteAt(halves, at + 52, g & 3) >> ((g >> 2) * 2)) & 3;
    scales[g] = d * ((low | (high << 4)) - 32);
  }
  for (let i = 0; i < 64; i++) {
    const thirdBits = (wordAt(halves, at, i & 7) >>> (i >> 3)) & 0x01010101;
    words[i] = subtractFromBytes(twoBits(halves, at + 16, i) | (thirdBits << 2), 4);
  }
};

/**
 * Eight six-bit scales and eight six-bit minima in 12 bytes, for Q4_K and Q5_K: scales 0-3 in the low six bits of bytes
 * 0-3, minima 0-3 in those of bytes 4-7. Scales 4-7 have their low four bits in the low half of bytes 8-11 and their high
 * two in the top of bytes 0-3; minima 4-7 in the high half of bytes 8-11 and the top of bytes 4-7.
 */
function groupScales(halves: Uint16Array, at: number, scales: Float64Array, mins: Float64Array): void {
  const [d, dmin] = [fromF16(halves[at]), fromF16(halves[at + 1])];
  for (let g = 0; g < 4; g++) {
    const [scale, min, low] = [byteAt(halves, at + 2, g), byteAt(halves, at + 4, g), byteAt(halves, at + 6, g)];
    scales[g] = d * (scale & 63);
    mins[g] = -dmin * (min & 63);
    scales[g + 4] = d * ((low & 15) | ((scale >> 6) << 4));
    mins[g + 4] = -dmin * ((low >> 4) | ((min >> 6) << 4));
  }
}

/** The low four bits of values 4 i to 4 i + 3: 32 bytes hold two groups of 32, low and high. */
const nibbles = (halves: Uint16Array, at: number, i: number): number =>
  (wordAt(halves, at, ((i >> 4) << 3) | (i & 7)) >>> (((i >> 3) & 1) * 4)) & 0x0f0f0f0f;

/** 0-1 d, 2-3 dmin, 4-15 scales and minima of 8 groups of 32, 16-143 nibbles. */
export const splitQ4_K: SplitFunction = (halves, at, { words, scales, mins }) => {
  groupScales(halves, at, scales, mins);
  for (let i = 0; i < 64; i++) words[i] = nibbles(halves, at + 8, i);
};

/** 0-1 d, 2-3 dmin, 4-15 scales and minima, 16-47 fifth bits (bit g of byte i for value i of group g), 48-175 nibbles. */
export const splitQ5_K: SplitFunction = (halves, at, { words, scales, mins }) => {
  groupScales(halves, at, scales, mins);
  for (let i = 0; i < 64; i++) {
    const fifthBits = (wordAt(halves, at + 8, i & 7) >>> (i >> 3)) & 0x01010101;
    words[i] = nibbles(halves, at + 24, i) | (fifthBits << 4);
  }
};

/**
 * 0-127 low four bits (64 bytes per half of 128 values: the first 64 in the low nibbles, the rest in the high ones),
 * 128-191 high two bits (in the layout of two-bit codes), 192-207 signed scales of 16 groups of 16, 208-209 d. 32 is zero.
 */
export const splitQ6_K: SplitFunction = (halves, at, { words, scales }) => {
  const d = fromF16(halves[at + 104]);
  for (let g = 0; g < 16; g++) scales[g] = d * ((byteAt(halves, at + 96, g) << 24) >> 24);
  for (let i = 0; i < 64; i++) {
    const low = (wordAt(halves, at, ((i >> 5) << 4) | (i & 15)) >>> (((i >> 4) & 1) * 4)) & 0x0f0f0f0f;
    words[i] = subtractFromBytes(low | (twoBits(halves, at + 64, i) << 4), 32);
  }
};

/**
 * 0-1 d, 2-3 the high two bits of eight six-bit scales for groups of 32 (from bit 2 g on; 32 is zero), 4-7 their low four
 * bits, 8-135 nibbles that index the levels of IQ4_NL: 16 bytes per group, value i low, value 16 + i high.
 */
export const splitIQ4_XS: SplitFunction = (halves, at, { codes, scales }) => {
  const d = fromF16(halves[at]);
  for (let g = 0; g < 8; g++) {
    const low = (byteAt(halves, at + 2, g >> 1) >> (4 * (g & 1))) & 15;
    const high = (halves[at + 1] >> (2 * g)) & 3;
    scales[g] = d * ((low | (high << 4)) - 32);
    for (let i = 0; i < 16; i++) {
      const pair = byteAt(halves, at + 4, 16 * g + i);
      codes[32 * g + i] = iq4Levels[pair & 15];
      codes[32 * g + 16 + i] = iq4Levels[pair >> 4];
    }
  }
};
