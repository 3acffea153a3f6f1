/**
 * Weight blocks of 32 values: integer codes with one f16 scale, and a minimum in some types. Each function splits the
 * block at `halves[at]` into codes, scales and minima of its groups: value = scale x code + minimum. Numbers are little
 * endian. In types with nibbles, byte i holds value i in its low half and value i + 16 in its high half.
 *
 * A model has billions of codes, so they are split four at a time, as the bytes of a word. Blocks begin at even addresses
 * only: they are read in halves of words. Offsets in comments are in bytes.
 */
import { fromF16 } from '../float.ts';

export interface SplitBlock {
  /** One per value. */
  codes: Int8Array;
  /** The same memory: word i holds codes 4 i to 4 i + 3. */
  words: Int32Array;
  /** One per group. */
  scales: Float64Array;
  mins: Float64Array;
}

export type SplitFunction = (halves: Uint16Array, at: number, out: SplitBlock) => void;

/** A byte in each of the four bytes of a word. */
export const inEachByte = (byte: number): number => Math.imul(byte, 0x01010101);

/** Words in a block's bytes, from half `at` on. */
export const wordAt = (halves: Uint16Array, at: number, word: number): number =>
  halves[at + 2 * word] | (halves[at + 2 * word + 1] << 16);

export const byteAt = (halves: Uint16Array, at: number, byte: number): number =>
  (halves[at + (byte >> 1)] >> ((byte & 1) << 3)) & 255;

/** Subtracts `zero` from each byte, 0 to 127. The top bit is set meanwhile, so that no byte borrows from the next. */
export const subtractFromBytes = (word: number, zero: number): number =>
  ((word | inEachByte(0x80)) - inEachByte(zero)) ^ inEachByte(0x80);

/** 0-1 scale, 2-33 signed bytes. */
export const splitQ8_0: SplitFunction = (halves, at, { words, scales }) => {
  scales[0] = fromF16(halves[at]);
  for (let i = 0; i < 8; i++) words[i] = wordAt(halves, at + 1, i);
};

function nibbles(halves: Uint16Array, at: number, words: Int32Array, zero: number): void {
  for (let i = 0; i < 4; i++) {
    const pairs = wordAt(halves, at, i);
    words[i] = subtractFromBytes(pairs & 0x0f0f0f0f, zero);
    words[i + 4] = subtractFromBytes((pairs >>> 4) & 0x0f0f0f0f, zero);
  }
}

/** 0-1 scale, 2-17 nibbles, 8 is zero. */
export const splitQ4_0: SplitFunction = (halves, at, { words, scales }) => {
  scales[0] = fromF16(halves[at]);
  nibbles(halves, at + 1, words, 8);
};

/** 0-1 scale, 2-3 minimum, 4-19 nibbles. */
export const splitQ4_1: SplitFunction = (halves, at, { words, scales, mins }) => {
  scales[0] = fromF16(halves[at]);
  mins[0] = fromF16(halves[at + 1]);
  nibbles(halves, at + 2, words, 0);
};

/** Bits 0 to 3 of a number, as the lowest bits of the bytes of a word. */
const spreadBits = (bits: number): number => ((bits & 15) * 0x00204081) & 0x01010101;

/** Nibbles at `codesAt`, with the fifth bits of the 32 values at `bitsAt`: bit i belongs to value i. */
function fiveBits(halves: Uint16Array, bitsAt: number, codesAt: number, words: Int32Array, zero: number): void {
  const bits = wordAt(halves, bitsAt, 0);
  nibbles(halves, codesAt, words, 0);
  for (let i = 0; i < 8; i++) words[i] = subtractFromBytes(words[i] | (spreadBits(bits >>> (4 * i)) << 4), zero);
}

/** 0-1 scale, 2-5 fifth bits, 6-21 nibbles, 16 is zero. */
export const splitQ5_0: SplitFunction = (halves, at, { words, scales }) => {
  scales[0] = fromF16(halves[at]);
  fiveBits(halves, at + 1, at + 3, words, 16);
};

/** 0-1 scale, 2-3 minimum, 4-7 fifth bits, 8-23 nibbles. */
export const splitQ5_1: SplitFunction = (halves, at, { words, scales, mins }) => {
  scales[0] = fromF16(halves[at]);
  mins[0] = fromF16(halves[at + 1]);
  fiveBits(halves, at + 2, at + 4, words, 0);
};

/** The levels of IQ4_NL: denser near zero. */
export const iq4Levels = Int8Array.of(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);

/** 0-1 scale, 2-17 nibbles that index the levels. */
export const splitIQ4_NL: SplitFunction = (halves, at, { codes, words, scales }) => {
  scales[0] = fromF16(halves[at]);
  nibbles(halves, at + 1, words, 0);
  for (let i = 0; i < 32; i++) codes[i] = iq4Levels[codes[i]];
};

/** Twice the values of a four-bit float, without its sign: two bits of exponent, one of mantissa. */
const e2m1Magnitudes = [0, 1, 2, 3, 4, 6, 8, 12];
export const e2m1Levels = Int8Array.from([...e2m1Magnitudes, ...e2m1Magnitudes.map(x => -x)]);

/** Two blocks of: 0 scale (a power of two: its exponent plus 127), 1-16 nibbles, four-bit floats. */
export const splitMXFP4: SplitFunction = (halves, at, { codes, scales }) => {
  for (let b = 0; b < 2; b++) {
    scales[b] = 2 ** (byteAt(halves, at, 17 * b) - 128);
    for (let i = 0; i < 16; i++) {
      const pair = byteAt(halves, at, 17 * b + 1 + i);
      codes[32 * b + i] = e2m1Levels[pair & 15];
      codes[32 * b + 16 + i] = e2m1Levels[pair >> 4];
    }
  }
};
