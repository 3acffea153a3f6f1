/**
 * Weights as the matmul kernels want them: four rows interleaved, so that a lane is a row and nothing is summed across
 * lanes. A block is four rows x 32 columns:
 *
 *   scales   per group of 16 or 32 columns: 4 x f16
 *   mins     the same, where the type has them: value = scale x code + min
 *   codes    4 bits: 4 x 16 bytes; byte 4 r + b of vector i holds columns 4 i + b (low nibble) and 16 + 4 i + b of row r
 *            8 bits: 8 x 16 bytes; byte 4 r + b of vector i holds column 4 i + b of row r
 *
 * Q4_1 and Q8_0 take the room they take in the file, other four-bit types a little more. Types of 2, 3, 5 and 6 bits
 * are widened to the next of the two, and the products of scales of K types are rounded to f16. Float types stay rows
 * of floats.
 */
import { fromF16, toF16 } from '../float.ts';
import { dequantize } from '../weights/dequantize.ts';
import { createSplit, type IntegerType, splitters } from '../weights/split.ts';
import { type WeightType, weightBytes, weightFormats } from '../weights/types.ts';

export interface PackedFormat {
  /** 16 and 32: rows of f16, bf16 or f32, as in the file. */
  bits: 4 | 8 | 16 | 32;
  group: 16 | 32;
  mins: boolean;
  /** Added to codes to make them unsigned, and taken off the minima. */
  zero?: number;
}

export const packedFormats: Record<WeightType, PackedFormat> = {
  F32: { bits: 32, group: 32, mins: false },
  F16: { bits: 16, group: 32, mins: false },
  BF16: { bits: 16, group: 32, mins: false },
  Q4_0: { bits: 4, group: 32, mins: true, zero: 8 },
  Q4_1: { bits: 4, group: 32, mins: true },
  Q4_K: { bits: 4, group: 32, mins: true },
  Q2_K: { bits: 4, group: 16, mins: true },
  Q3_K: { bits: 4, group: 16, mins: true, zero: 4 },
  Q5_0: { bits: 8, group: 32, mins: false },
  Q5_1: { bits: 8, group: 32, mins: true },
  Q5_K: { bits: 8, group: 32, mins: true },
  Q6_K: { bits: 8, group: 16, mins: false },
  Q8_0: { bits: 8, group: 32, mins: false },
  IQ4_NL: { bits: 8, group: 32, mins: false },
};

export const scaleBytes = ({ group, mins }: PackedFormat) => (32 / group) * 8 * (mins ? 2 : 1);
export const blockBytes = (format: PackedFormat) => scaleBytes(format) + 16 * format.bits;

export function packedBytes(type: WeightType, rows: number, cols: number): number {
  const format = packedFormats[type];
  if (format.bits >= 16) return weightBytes(type, rows * cols);
  return Math.ceil(rows / 4) * (cols / 32) * blockBytes(format);
}

/** Packs whole rows of a file's bytes; the last block may lack rows, which are then zeros. */
export function packMatrix(type: IntegerType, source: Uint8Array, cols: number, out: Uint8Array): void {
  const rowBytes = weightBytes(type, cols);
  const size = packedBytes(type, 4, cols);
  out.fill(0);
  for (let at = 0, to = 0; at < source.length; at += 4 * rowBytes, to += size) {
    const four = [0, 1, 2, 3].map(r => source.subarray(at + r * rowBytes, at + (r + 1) * rowBytes));
    const there = four.filter(row => row.length > 0);
    packRows(type, there, out.subarray(to, to + size));
  }
}

/** Packs four rows (fewer at the end) into their blocks, which hold zeros. */
function packRows(type: IntegerType, rows: readonly Uint8Array[], out: Uint8Array): void {
  const format = packedFormats[type];
  const { group, bits, mins, zero = 0 } = format;
  const { block, bytes } = weightFormats[type];
  const size = blockBytes(format);
  const groups = 32 / group;
  const codesAt = scaleBytes(format);
  const split = createSplit(type);
  rows.forEach((row, r) => {
    for (let at = 0, to = 0; at < row.length; at += bytes) {
      splitters[type](row, at, split);
      for (let start = 0; start < block; start += 32, to += size) {
        for (let g = 0; g < groups; g++) {
          const scale = split.scales[start / group + g];
          writeHalf(out, to, 4 * g + r, scale);
          if (mins) writeHalf(out, to, 4 * groups + 4 * g + r, split.mins[start / group + g] - zero * scale);
        }
        const codes = to + codesAt;
        if (bits === 8) {
          for (let c = 0; c < 32; c++) out[codes + byteAt(c, r)] = split.codes[start + c];
        } else {
          for (let c = 0; c < 16; c++) {
            const pair = (split.codes[start + c] + zero) | ((split.codes[start + 16 + c] + zero) << 4);
            out[codes + byteAt(c, r)] = pair;
          }
        }
      }
    }
  });
}

/** One row back to floats: what the kernels compute with, for embeddings and tests. */
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
      const scale = readHalf(packed, at, 4 * g + r);
      const min = format.mins ? readHalf(packed, at, 4 * groups + 4 * g + r) : 0;
      const nibbles = packed[codes + byteAt(c & 15, r)];
      const code =
        format.bits === 8 ? (packed[codes + byteAt(c, r)] << 24) >> 24 : c < 16 ? nibbles & 15 : nibbles >> 4;
      out[32 * block + c] = scale * code + min;
    }
  }
}

/** Of column c of row r among the codes of a block. */
const byteAt = (c: number, r: number) => 16 * (c >> 2) + 4 * r + (c & 3);

function writeHalf(bytes: Uint8Array, at: number, index: number, value: number): void {
  const half = toF16(value);
  bytes[at + 2 * index] = half;
  bytes[at + 2 * index + 1] = half >> 8;
}

const readHalf = (bytes: Uint8Array, at: number, index: number) =>
  fromF16(bytes[at + 2 * index] | (bytes[at + 2 * index + 1] << 8));
