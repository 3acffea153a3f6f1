/**
 * Weights for tests, in every type. The block types are quantized plainly (nearest code, no search); the superblock
 * types are random codes under scales chosen to give the wanted size, since a good quantizer for them is long.
 */
import { toF16 } from '../src/kernel/float.ts';
import { iq4Levels } from '../src/kernel/weights/blocks.ts';
import { dequantize } from '../src/kernel/weights/dequantize.ts';
import { type WeightType, weightBytes, weightFormats } from '../src/kernel/weights/types.ts';
import type { Random } from './random.ts';

type EncodeBlock = (values: Float32Array, bytes: Uint8Array) => void;

const setF16 = (bytes: Uint8Array, at: number, value: number) => {
  const code = toF16(value);
  bytes[at] = code & 255;
  bytes[at + 1] = code >> 8;
};
const clamp = (x: number, low: number, high: number) => Math.min(high, Math.max(low, x));

/** The value furthest from zero, with its sign: the code -2^(bits-1) is given to it exactly. */
const extreme = (values: Float32Array) => values.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a), 0);

/** Writes 4-bit codes as the block formats keep them: value i low, value i + 16 high. */
const setNibbles = (codes: number[], bytes: Uint8Array, at: number) => {
  for (let i = 0; i < 16; i++) bytes[at + i] = (codes[i] & 15) | ((codes[i + 16] & 15) << 4);
};
const setFifthBits = (codes: number[], bytes: Uint8Array, at: number) => {
  for (let i = 0; i < 32; i++) bytes[at + (i >> 3)] |= (codes[i] >> 4) << (i & 7);
};

function centred(values: Float32Array, bits: number) {
  const half = 2 ** (bits - 1);
  const scale = extreme(values) / -half;
  const inverse = scale === 0 ? 0 : 1 / scale;
  return { scale, codes: Array.from(values, x => clamp(Math.round(x * inverse) + half, 0, 2 * half - 1)) };
}

function ranged(values: Float32Array, bits: number) {
  const min = values.reduce((a, b) => Math.min(a, b));
  const scale = (values.reduce((a, b) => Math.max(a, b)) - min) / (2 ** bits - 1);
  const inverse = scale === 0 ? 0 : 1 / scale;
  return { scale, min, codes: Array.from(values, x => clamp(Math.round((x - min) * inverse), 0, 2 ** bits - 1)) };
}

const encoders: Partial<Record<WeightType, EncodeBlock>> = {
  F32: (values, bytes) => bytes.set(new Uint8Array(values.buffer, values.byteOffset, 4)),
  F16: (values, bytes) => setF16(bytes, 0, values[0]),
  BF16: (values, bytes) => {
    const word = new Uint32Array(Float32Array.of(values[0]).buffer)[0];
    const rounded = (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
    bytes[0] = rounded & 255;
    bytes[1] = rounded >> 8;
  },
  Q8_0: (values, bytes) => {
    const scale = Math.abs(extreme(values)) / 127;
    setF16(bytes, 0, scale);
    for (let i = 0; i < 32; i++) bytes[2 + i] = scale === 0 ? 0 : Math.round(values[i] / scale);
  },
  Q4_0: (values, bytes) => {
    const { scale, codes } = centred(values, 4);
    setF16(bytes, 0, scale);
    setNibbles(codes, bytes, 2);
  },
  Q4_1: (values, bytes) => {
    const { scale, min, codes } = ranged(values, 4);
    setF16(bytes, 0, scale);
    setF16(bytes, 2, min);
    setNibbles(codes, bytes, 4);
  },
  Q5_0: (values, bytes) => {
    const { scale, codes } = centred(values, 5);
    setF16(bytes, 0, scale);
    setFifthBits(codes, bytes, 2);
    setNibbles(codes, bytes, 6);
  },
  Q5_1: (values, bytes) => {
    const { scale, min, codes } = ranged(values, 5);
    setF16(bytes, 0, scale);
    setF16(bytes, 2, min);
    setFifthBits(codes, bytes, 4);
    setNibbles(codes, bytes, 8);
  },
  IQ4_NL: (values, bytes) => {
    const scale = extreme(values) / iq4Levels[0];
    const nearest = (x: number) =>
      iq4Levels.reduce((best, level, i) => (Math.abs(level - x) < Math.abs(iq4Levels[best] - x) ? i : best), 0);
    setF16(bytes, 0, scale);
    setNibbles(
      Array.from(values, x => nearest(scale === 0 ? 0 : x / scale)),
      bytes,
      2,
    );
  },
};

/** The types that `quantize` knows. */
export const quantizable = Object.keys(encoders) as WeightType[];

export function quantize(type: WeightType, values: Float32Array): Uint8Array<ArrayBuffer> {
  const encode = encoders[type];
  if (!encode) throw new Error(`the test quantizer does not know ${type}; randomWeights does`);
  const { block, bytes: size } = weightFormats[type];
  const bytes = new Uint8Array(weightBytes(type, values.length));
  for (let from = 0, at = 0; from < values.length; from += block, at += size)
    encode(values.subarray(from, from + block), bytes.subarray(at, at + size));
  return bytes;
}

/** Where a superblock keeps d and dmin, and the ratio dmin / d that makes uniformly random codes average to zero. */
const superblocks: Partial<Record<WeightType, { d: number; dmin?: number; ratio?: number }>> = {
  Q2_K: { d: 80, dmin: 82, ratio: 1.5 },
  Q3_K: { d: 108 },
  Q4_K: { d: 0, dmin: 2, ratio: 7.5 },
  Q5_K: { d: 0, dmin: 2, ratio: 15.5 },
  Q6_K: { d: 208 },
};

/** Random weights of about the given size (root mean square), around `mean` where the type is quantized plainly. */
export function randomWeights(type: WeightType, count: number, size: number, random: Random, mean = 0) {
  const layout = superblocks[type];
  if (!layout)
    return quantize(
      type,
      Float32Array.from({ length: count }, () => mean + size * random.normal()),
    );
  const bytes = Uint8Array.from({ length: weightBytes(type, count) }, () => random.below(256));
  const setScale = (d: number) => {
    for (let at = 0; at < bytes.length; at += weightFormats[type].bytes) {
      setF16(bytes, at + layout.d, d);
      if (layout.dmin !== undefined) setF16(bytes, at + layout.dmin, d * (layout.ratio ?? 0));
    }
  };
  setScale(1);
  const values = new Float32Array(count);
  dequantize(type, bytes, values);
  setScale(size / Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / count));
  return bytes;
}
