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
};

/** Number of values that share a scale. */
export const groupSize = (type: QuantizedType): 16 | 32 =>
  type === 'Q2_K' || type === 'Q3_K' || type === 'Q6_K' ? 16 : 32;

/** Buffers for one block. */
export function createSplitBlock(type: QuantizedType): blocks.SplitBlock {
  const { block } = weightFormats[type];
  const groups = block / groupSize(type);
  // Types without minima add -0, which preserves even the sign of a zero.
  return { codes: new Int8Array(block), scales: new Float64Array(groups), mins: new Float64Array(groups).fill(-0) };
}

export const isQuantized = (type: WeightType): type is QuantizedType => Object.hasOwn(splitters, type);
