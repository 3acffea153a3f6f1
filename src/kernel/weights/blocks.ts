/**
 * Weight blocks of one value or 32: plain floats, and integer codes with one f16 scale (and perhaps a minimum).
 * Each function decodes the block at `bytes[at]` into `out[to ...]`. Numbers are little endian. Where codes are
 * nibbles, byte i holds value i in its low half and value i + 16 in its high half.
 */
import { fromBf16, fromF16 } from '../float.ts';

export type DecodeBlock = (bytes: Uint8Array, at: number, out: Float32Array, to: number) => void;

const u16 = (bytes: Uint8Array, at: number) => bytes[at] | (bytes[at + 1] << 8);
export const f16 = (bytes: Uint8Array, at: number) => fromF16(u16(bytes, at));
const signed = (byte: number) => (byte << 24) >> 24;

const word = new Float32Array(1);
const wordBytes = new Uint8Array(word.buffer);

/** 0-3 the float. */
export const decodeF32: DecodeBlock = (bytes, at, out, to) => {
  for (let i = 0; i < 4; i++) wordBytes[i] = bytes[at + i];
  out[to] = word[0];
};

/** 0-1 the half. */
export const decodeF16: DecodeBlock = (bytes, at, out, to) => {
  out[to] = f16(bytes, at);
};

/** 0-1 the upper half of the float. */
export const decodeBF16: DecodeBlock = (bytes, at, out, to) => {
  out[to] = fromBf16(u16(bytes, at));
};

/** 0-1 scale, 2-33 signed bytes. */
export const decodeQ8_0: DecodeBlock = (bytes, at, out, to) => {
  const scale = f16(bytes, at);
  for (let i = 0; i < 32; i++) out[to + i] = scale * signed(bytes[at + 2 + i]);
};

/** 0-1 scale, 2-17 nibbles, 8 is zero. */
export const decodeQ4_0: DecodeBlock = (bytes, at, out, to) => {
  const scale = f16(bytes, at);
  for (let i = 0; i < 16; i++) {
    const pair = bytes[at + 2 + i];
    out[to + i] = scale * ((pair & 15) - 8);
    out[to + i + 16] = scale * ((pair >> 4) - 8);
  }
};

/** 0-1 scale, 2-3 minimum, 4-19 nibbles. */
export const decodeQ4_1: DecodeBlock = (bytes, at, out, to) => {
  const scale = f16(bytes, at);
  const min = f16(bytes, at + 2);
  for (let i = 0; i < 16; i++) {
    const pair = bytes[at + 4 + i];
    out[to + i] = scale * (pair & 15) + min;
    out[to + i + 16] = scale * (pair >> 4) + min;
  }
};

/** The fifth bits of 32 values: four bytes, bit i belongs to value i. */
const fifthBit = (bytes: Uint8Array, at: number, i: number) => ((bytes[at + (i >> 3)] >> (i & 7)) & 1) << 4;

/** 0-1 scale, 2-5 fifth bits, 6-21 nibbles, 16 is zero. */
export const decodeQ5_0: DecodeBlock = (bytes, at, out, to) => {
  const scale = f16(bytes, at);
  for (let i = 0; i < 16; i++) {
    const pair = bytes[at + 6 + i];
    out[to + i] = scale * (((pair & 15) | fifthBit(bytes, at + 2, i)) - 16);
    out[to + i + 16] = scale * (((pair >> 4) | fifthBit(bytes, at + 2, i + 16)) - 16);
  }
};

/** 0-1 scale, 2-3 minimum, 4-7 fifth bits, 8-23 nibbles. */
export const decodeQ5_1: DecodeBlock = (bytes, at, out, to) => {
  const scale = f16(bytes, at);
  const min = f16(bytes, at + 2);
  for (let i = 0; i < 16; i++) {
    const pair = bytes[at + 8 + i];
    out[to + i] = scale * ((pair & 15) | fifthBit(bytes, at + 4, i)) + min;
    out[to + i + 16] = scale * ((pair >> 4) | fifthBit(bytes, at + 4, i + 16)) + min;
  }
};

/** The levels of IQ4_NL: denser near zero, as weights are. */
export const iq4Levels = Int8Array.of(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);

/** 0-1 scale, 2-17 nibbles that index the levels. */
export const decodeIQ4_NL: DecodeBlock = (bytes, at, out, to) => {
  const scale = f16(bytes, at);
  for (let i = 0; i < 16; i++) {
    const pair = bytes[at + 2 + i];
    out[to + i] = scale * iq4Levels[pair & 15];
    out[to + i + 16] = scale * iq4Levels[pair >> 4];
  }
};
