/**
 * Weights as the GEMV and GEMM kernels read them: tiles of four interleaved rows, so that each lane holds one row and
 * nothing is summed across lanes. A block is four rows x 32 columns:
 *
 *   scales   per group of 16 or 32 columns: 4 x f16
 *   mins     the same, if the type has them: value = scale x code + min
 *   codes    4 bits: 4 x 16 bytes; byte 4 r + b of vector i holds columns 4 i + b (low nibble) and 16 + 4 i + b of row r
 *            8 bits: 8 x 16 bytes; byte 4 r + b of vector i holds column 4 i + b of row r
 *
 * Q4_1 and Q8_0 take as many bytes as in the file, other 4-bit types a few more. Types of 2, 3, 5 and 6 bits are
 * widened to 4 or 8 bits, and the products of the scales of K types are rounded to f16. Float types stay as they are in
 * the file.
 */
import { fromF16, toF16 } from '../float.ts';
import { dequantize } from '../weights/dequantize.ts';
import { createSplitBlock, halvesOf, joinNibbles, type QuantizedType, splitters } from '../weights/split.ts';
import { type WeightType, weightBytes, weightFormats } from '../weights/types.ts';

export interface PackedFormat {
  /** 16 and 32: plain rows of f16, bf16 or f32. */
  bits: 4 | 8 | 16 | 32;
  group: 16 | 32;
  mins: boolean;
  /** Added to codes to make them unsigned; the minima compensate for it. */
  zeroPoint?: number;
  /** 8-bit codes plus this are 0 to 63: dot products with int8 fit into int16. Absent if codes need all bits. */
  sixBitOffset?: number;
}

export const packedFormats: Record<WeightType, PackedFormat> = {
  F32: { bits: 32, group: 32, mins: false },
  F16: { bits: 16, group: 32, mins: false },
  BF16: { bits: 16, group: 32, mins: false },
  Q4_0: { bits: 4, group: 32, mins: true, zeroPoint: 8 },
  Q4_1: { bits: 4, group: 32, mins: true },
  Q4_K: { bits: 4, group: 32, mins: true },
  Q2_K: { bits: 4, group: 16, mins: true },
  Q3_K: { bits: 4, group: 16, mins: true, zeroPoint: 4 },
  Q5_0: { bits: 8, group: 32, mins: false, sixBitOffset: 16 },
  Q5_1: { bits: 8, group: 32, mins: true, sixBitOffset: 0 },
  Q5_K: { bits: 8, group: 32, mins: true, sixBitOffset: 0 },
  Q6_K: { bits: 8, group: 16, mins: false, sixBitOffset: 32 },
  Q8_0: { bits: 8, group: 32, mins: false },
  IQ4_NL: { bits: 8, group: 32, mins: false },
  MXFP4: { bits: 8, group: 32, mins: false, sixBitOffset: 16 },
};

export const scaleBytes = ({ group, mins }: PackedFormat) => (32 / group) * 8 * (mins ? 2 : 1);
export const blockBytes = (format: PackedFormat) => scaleBytes(format) + 16 * format.bits;

export function packedBytes(type: WeightType, rows: number, cols: number): number {
  const format = packedFormats[type];
  if (format.bits >= 16) return weightBytes(type, rows * cols);
  return Math.ceil(rows / 4) * (cols / 32) * blockBytes(format);
}

/** Packs whole rows of the file's bytes. Missing rows of the last tile are zeros. `out` begins at a multiple of four. */
export function packWeights(type: QuantizedType, source: Uint8Array, cols: number, out: Uint8Array): void {
  const format = packedFormats[type];
  const { group, bits, mins, zeroPoint = 0 } = format;
  const { block, bytes } = weightFormats[type];
  const [size, groups, codesOffset] = [blockBytes(format), 32 / group, scaleBytes(format)];
  const tileBytes = packedBytes(type, 4, cols);
  const rowHalves = weightBytes(type, cols) / 2;
  const split = createSplitBlock(type);
  const splitBlock = splitters[type];
  const halves = halvesOf(source);
  const words = new Int32Array(out.buffer, out.byteOffset, out.length / 4);
  const scales = new Uint16Array(out.buffer, out.byteOffset, out.length / 2);
  out.fill(0);
  for (let row = 0, from = 0; from < halves.length; row++) {
    const r = row & 3;
    let to = (row >> 2) * tileBytes;
    for (const end = from + rowHalves; from < end; from += bytes / 2) {
      splitBlock(halves, from, split);
      for (let start = 0; start < block; start += 32, to += size) {
        for (let g = 0; g < groups; g++) {
          const scale = split.scales[start / group + g];
          scales[to / 2 + 4 * g + r] = toF16(scale);
          if (mins) scales[to / 2 + 4 * (groups + g) + r] = toF16(split.mins[start / group + g] - zeroPoint * scale);
        }
        const [code, target] = [start / 4, (to + codesOffset) / 4 + r];
        if (bits === 8) for (let i = 0; i < 8; i++) words[target + 4 * i] = split.words[code + i];
        else
          for (let i = 0; i < 4; i++)
            words[target + 4 * i] = joinNibbles(split.words[code + i], split.words[code + i + 4], zeroPoint);
      }
    }
  }
}

/** Dequantizes one row to the values that the kernels compute with: for embeddings and tests. */
export function unpackRow(type: WeightType, packed: Uint8Array, row: number, cols: number, out: Float32Array): void {
  const format = packedFormats[type];
  if (format.bits >= 16) {
    const bytes = weightBytes(type, cols);
    dequantize(type, packed.subarray(row * bytes, (row + 1) * bytes), out);
    return;
  }
  const size = blockBytes(format);
  const groups = 32 / format.group;
  const r = row & 3;
  for (let block = 0; block < cols / 32; block++) {
    const at = ((row >> 2) * (cols / 32) + block) * size;
    const codes = at + scaleBytes(format);
    for (let c = 0; c < 32; c++) {
      const g = Math.floor(c / format.group);
      const scale = readF16(packed, at, 4 * g + r);
      const min = format.mins ? readF16(packed, at, 4 * groups + 4 * g + r) : 0;
      const nibbles = packed[codes + codeByteOffset(c & 15, r)];
      const code =
        format.bits === 8 ? (packed[codes + codeByteOffset(c, r)] << 24) >> 24 : c < 16 ? nibbles & 15 : nibbles >> 4;
      out[32 * block + c] = scale * code + min;
    }
  }
}

/** Offset of the byte of column c and row r among a block's codes. */
const codeByteOffset = (c: number, r: number) => 16 * (c >> 2) + 4 * r + (c & 3);

const readF16 = (bytes: Uint8Array, at: number, index: number) =>
  fromF16(bytes[at + 2 * index] | (bytes[at + 2 * index + 1] << 8));
