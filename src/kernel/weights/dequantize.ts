/** Weights back to floats, block by block: the definition that every fast matmul is tested against. */
import { ShapeError } from '../../errors.ts';
import * as blocks from './blocks.ts';
import * as superblocks from './superblocks.ts';
import { type WeightType, weightBytes, weightFormats } from './types.ts';

const decoders: Record<WeightType, blocks.DecodeBlock> = {
  F32: blocks.decodeF32,
  F16: blocks.decodeF16,
  BF16: blocks.decodeBF16,
  Q8_0: blocks.decodeQ8_0,
  Q4_0: blocks.decodeQ4_0,
  Q4_1: blocks.decodeQ4_1,
  Q5_0: blocks.decodeQ5_0,
  Q5_1: blocks.decodeQ5_1,
  Q2_K: superblocks.decodeQ2_K,
  Q3_K: superblocks.decodeQ3_K,
  Q4_K: superblocks.decodeQ4_K,
  Q5_K: superblocks.decodeQ5_K,
  Q6_K: superblocks.decodeQ6_K,
  IQ4_NL: blocks.decodeIQ4_NL,
};

/** Decodes all of `bytes` into `out`, which must have exactly the room. */
export function dequantize(type: WeightType, bytes: Uint8Array, out: Float32Array): void {
  const needed = weightBytes(type, out.length);
  if (bytes.length !== needed)
    throw new ShapeError(`${out.length} ${type} values take ${needed} bytes, not ${bytes.length}.`);
  const format = weightFormats[type];
  const decode = decoders[type];
  for (let at = 0, to = 0; at < bytes.length; at += format.bytes, to += format.block) decode(bytes, at, out, to);
}
