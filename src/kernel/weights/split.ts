/** Splits the blocks of any quantized weight type into codes, scales and minima, for dequantizing and repacking. */
import * as blocks from './blocks.ts';
import * as superblocks from './superblocks.ts';
import { type WeightType, weightFormats } from './types.ts';

export type { SplitBlock } from './blocks.ts';
export type QuantizedType = Exclude<WeightType, 'F32' | 'F16' | 'BF16'>;

export const splitters: Record<QuantizedType, blocks.SplitFunction> = {
  Q8_0: blocks.splitQ8_0,
  Q4_0: blocks.splitQ4_0,
  Q4_1: blocks.splitQ4_1,
  Q5_0: blocks.splitQ5_0,
  Q5_1: blocks.splitQ5_1,
  Q2_K: superblocks.splitQ2_K,
  Q3_K: superblocks.splitQ3_K,
  Q4_K: superblocks.splitQ4_K,
  Q5_K: superblocks.splitQ5_K,
  Q6_K: superblocks.splitQ6_K,
  IQ4_NL: blocks.splitIQ4_NL,
  IQ4_XS: superblocks.splitIQ4_XS,
  MXFP4: blocks.splitMXFP4,
};

/** Number of values that share a scale. */
export const groupSize = (type: QuantizedType): 16 | 32 =>
  type === 'Q2_K' || type === 'Q3_K' || type === 'Q6_K' ? 16 : 32;

/** Buffers for one block. */
export function createSplitBlock(type: QuantizedType): blocks.SplitBlock {
  const { block } = weightFormats[type];
  const groups = block / groupSize(type);
  const codes = new Int8Array(block);
  const words = new Int32Array(codes.buffer);
  // Types without minima add -0, which preserves even the sign of a zero.
  return { codes, words, scales: new Float64Array(groups), mins: new Float64Array(groups).fill(-0) };
}

/** The bytes of whole blocks as splitters read them; copied only from an odd address. */
export function halvesOf(bytes: Uint8Array): Uint16Array {
  const { buffer, byteOffset, byteLength } = bytes.byteOffset % 2 === 0 ? bytes : bytes.slice();
  return new Uint16Array(buffer, byteOffset, byteLength / 2);
}

export const isQuantized = (type: WeightType): type is QuantizedType => Object.hasOwn(splitters, type);

/** Four codes of -zero to 15 - zero, and four others, in the low and high halves of bytes: code + zero. */
export const joinNibbles = (low: number, high: number, zero: number): number =>
  addToNibbles(low, zero) | (addToNibbles(high, zero) << 4);

const addToNibbles = (word: number, zero: number): number => addToBytes(word, zero) & 0x0f0f0f0f;

/** The `count` bits above the low halves of four codes + zero, as the lowest bits of bytes. */
export const bitsAboveNibbles = (word: number, zero: number, count: number): number =>
  (addToBytes(word, zero) >>> 4) & blocks.inEachByte(2 ** count - 1);

/** All but the top bits of the sums. Flipping the top bits makes all bytes positive: no carries. */
const addToBytes = (word: number, zero: number): number => (word ^ blocks.inEachByte(0x80)) + blocks.inEachByte(zero);
