/**
 * Weights for tests, in every type. Block types are quantized to the nearest code, without a search for scales;
 * superblock types are random codes, scaled to the wanted RMS, since a quantizer for them is long.
 */
import { toF16 } from '../../src/kernel/float.ts';
import { e2m1Levels, iq4Levels } from '../../src/kernel/weights/blocks.ts';
import { dequantize } from '../../src/kernel/weights/dequantize.ts';
import { type WeightType, weightBytes, weightFormats } from '../../src/kernel/weights/types.ts';
import type { Random } from './random.ts';

type EncodeBlock = (values: Float32Array, bytes: Uint8Array) => void;

const setF16 = (bytes: Uint8Array, offset: number, value: number) => {
  const code = toF16(value);
  bytes[offset] = code & 255;
  bytes[offset + 1] = code >> 8;
};
const clamp = (x: number, low: number, high: number) => Math.min(high, Math.max(low, x));

/** The value of largest magnitude, with its sign: it gets the code -2^(bits-1) exactly. */
const extreme = (values: Float32Array) => values.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a), 0);

/** Packs 4-bit codes in the order of the block formats: value i in the low nibble, i + 16 in the high one. */
const setNibbles = (codes: number[], bytes: Uint8Array, offset: number) => {
  for (let i = 0; i < 16; i++) bytes[offset + i] = (codes[i] & 15) | ((codes[i + 16] & 15) << 4);
};
const setFifthBits = (codes: number[], bytes: Uint8Array, offset: number) => {
  for (let i = 0; i < 32; i++) bytes[offset + (i >> 3)] |= (codes[i] >> 4) << (i & 7);
};

function quantizeSymmetric(values: Float32Array, bits: number) {
  const half = 2 ** (bits - 1);
  const scale = extreme(values) / -half;
  const inverse = scale === 0 ? 0 : 1 / scale;
  return { scale, codes: Array.from(values, x => clamp(Math.round(x * inverse) + half, 0, 2 * half - 1)) };
}

function quantizeMinMax(values: Float32Array, bits: number) {
  const min = values.reduce((a, b) => Math.min(a, b));
  const scale = (values.reduce((a, b) => Math.max(a, b)) - min) / (2 ** bits - 1);
  const inverse = scale === 0 ? 0 : 1 / scale;
  return { scale, min, codes: Array.from(values, x => clamp(Math.round((x - min) * inverse), 0, 2 ** bits - 1)) };
}

const nearestLevels = (values: Float32Array, scale: number, levels: Int8Array) =>
  Array.from(values, value => {
    const x = scale === 0 ? 0 : value / scale;
    return levels.reduce((best, level, i) => (Math.abs(level - x) < Math.abs(levels[best] - x) ? i : best), 0);
  });

const encoders: Partial<Record<WeightType, EncodeBlock>> = {
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
    const { scale, codes } = quantizeSymmetric(values, 4);
    setF16(bytes, 0, scale);
    setNibbles(codes, bytes, 2);
  },
  Q4_1: (values, bytes) => {
    const { scale, min, codes } = quantizeMinMax(values, 4);
    setF16(bytes, 0, scale);
    setF16(bytes, 2, min);
    setNibbles(codes, bytes, 4);
  },
  Q5_0: (values, bytes) => {
    const { scale, codes } = quantizeSymmetric(values, 5);
    setF16(bytes, 0, scale);
    setFifthBits(codes, bytes, 2);
    setNibbles(codes, bytes, 6);
  },
  Q5_1: (values, bytes) => {
    const { scale, min, codes } = quantizeMinMax(values, 5);
    setF16(bytes, 0, scale);
    setF16(bytes, 2, min);
    setFifthBits(codes, bytes, 4);
    setNibbles(codes, bytes, 8);
  },
  IQ4_NL: (values, bytes) => {
    const scale = extreme(values) / iq4Levels[0];
    setF16(bytes, 0, scale);
    setNibbles(nearestLevels(values, scale, iq4Levels), bytes, 2);
  },
  MXFP4: (values, bytes) => {
    for (let b = 0; b < 2; b++) {
      const block = values.subarray(32 * b, 32 * b + 32);
      const exponent = Math.max(-128, Math.ceil(Math.log2(Math.abs(extreme(block)) / 12)));
      bytes[17 * b] = exponent + 128;
      setNibbles(nearestLevels(block, 2 ** exponent, e2m1Levels), bytes, 17 * b + 1);
    }
  },
};

/** The types that `quantize` supports. */
export const quantizable = Object.keys(encoders) as WeightType[];

export function quantize(type: WeightType, values: Float32Array): Uint8Array<ArrayBuffer> {
  if (type === 'F32') return new Uint8Array(values.slice().buffer);
  const encode = encoders[type];
  if (!encode) throw new Error(`the test quantizer does not support ${type}; use randomWeights`);
  const { block, bytes: size } = weightFormats[type];
  const bytes = new Uint8Array(weightBytes(type, values.length));
  for (let i = 0, offset = 0; i < values.length; i += block, offset += size)
    encode(values.subarray(i, i + block), bytes.subarray(offset, offset + size));
  return bytes;
}

/** Byte offsets of a superblock's d and dmin, and the ratio dmin / d for which random codes have mean zero. */
const superblocks: Partial<Record<WeightType, { d: number; dmin?: number; ratio?: number }>> = {
  Q2_K: { d: 80, dmin: 82, ratio: 1.5 },
  Q3_K: { d: 108 },
  Q4_K: { d: 0, dmin: 2, ratio: 7.5 },
  Q5_K: { d: 0, dmin: 2, ratio: 15.5 },
  Q6_K: { d: 208 },
  IQ4_XS: { d: 0 },
};

/** Random weights of about the given RMS; `mean` applies to block types only. */
export function randomWeights(type: WeightType, count: number, rms: number, random: Random, mean = 0) {
  const layout = superblocks[type];
  if (!layout)
    return quantize(
      type,
      new Float32Array(count).map(() => mean + rms * random.normal()),
    );
  const bytes = new Uint8Array(weightBytes(type, count)).map(() => random.below(256));
  const setScale = (d: number) => {
    for (let offset = 0; offset < bytes.length; offset += weightFormats[type].bytes) {
      setF16(bytes, offset + layout.d, d);
      if (layout.dmin !== undefined) setF16(bytes, offset + layout.dmin, d * (layout.ratio ?? 0));
    }
  };
  setScale(1);
  const values = new Float32Array(count);
  dequantize(type, bytes, values);
  setScale(rms / Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / count));
  return bytes;
}
