/**
 * Weight blocks of 32 values: integer codes with one f16 scale, and a minimum in some types. Each function splits the
 * block at `bytes[at]` into codes, scales and minima of its groups: value = scale x code + minimum. Numbers are little
 * endian. In types with nibbles, byte i holds value i in its low half and value i + 16 in its high half.
 */
import { fromF16 } from '../float.ts';

export interface SplitBlock {
  /** One per value. */
  codes: Int8Array;
  /** One per group. */
  scales: Float64Array;
  mins: Float64Array;
}

export type SplitFunction = (bytes: Uint8Array, at: number, out: SplitBlock) => void;

export const f16 = (bytes: Uint8Array, at: number) => fromF16(bytes[at] | (bytes[at + 1] << 8));

/** 0-1 scale, 2-33 signed bytes. */
export const splitQ8_0: SplitFunction = (bytes, at, { codes, scales }) => {
  scales[0] = f16(bytes, at);
  for (let i = 0; i < 32; i++) codes[i] = bytes[at + 2 + i];
};

function nibbles(bytes: Uint8Array, at: number, codes: Int8Array, zero: number): void {
  for (let i = 0; i < 16; i++) {
    const pair = bytes[at + i];
    codes[i] = (pair & 15) - zero;
    codes[i + 16] = (pair >> 4) - zero;
  }
}

/** 0-1 scale, 2-17 nibbles, 8 is zero. */
export const splitQ4_0: SplitFunction = (bytes, at, { codes, scales }) => {
  scales[0] = f16(bytes, at);
  nibbles(bytes, at + 2, codes, 8);
};

/** 0-1 scale, 2-3 minimum, 4-19 nibbles. */
export const splitQ4_1: SplitFunction = (bytes, at, { codes, scales, mins }) => {
  scales[0] = f16(bytes, at);
  mins[0] = f16(bytes, at + 2);
  nibbles(bytes, at + 4, codes, 0);
};

/** The fifth bits of 32 values: four bytes, bit i belongs to value i. */
function addFifthBits(bytes: Uint8Array, at: number, codes: Int8Array): void {
  for (let i = 0; i < 32; i++) codes[i] += ((bytes[at + (i >> 3)] >> (i & 7)) & 1) << 4;
}

/** 0-1 scale, 2-5 fifth bits, 6-21 nibbles, 16 is zero. */
export const splitQ5_0: SplitFunction = (bytes, at, { codes, scales }) => {
  scales[0] = f16(bytes, at);
  nibbles(bytes, at + 6, codes, 16);
  addFifthBits(bytes, at + 2, codes);
};

/** 0-1 scale, 2-3 minimum, 4-7 fifth bits, 8-23 nibbles. */
export const splitQ5_1: SplitFunction = (bytes, at, { codes, scales, mins }) => {
  scales[0] = f16(bytes, at);
  mins[0] = f16(bytes, at + 2);
  nibbles(bytes, at + 8, codes, 0);
  addFifthBits(bytes, at + 4, codes);
};

/** The levels of IQ4_NL: denser near zero. */
export const iq4Levels = Int8Array.of(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);

/** 0-1 scale, 2-17 nibbles that index the levels. */
export const splitIQ4_NL: SplitFunction = (bytes, at, { codes, scales }) => {
  scales[0] = f16(bytes, at);
  nibbles(bytes, at + 2, codes, 0);
  for (let i = 0; i < 32; i++) codes[i] = iq4Levels[codes[i]];
};
