/**
 * Weights as the GEMV and GEMM kernels read them: tiles of interleaved rows, so that each lane holds one row and nothing is
 * summed across lanes. A tile has R rows: four, or eight where the engine joins two vectors to one of 256 bits. A block is
 * R rows x 32 columns:
 *
 *   scales   per group of 16 or 32 columns: R x f16
 *   mins     the same, if the type has them: value = scale x code + min
 *   codes    8 bits: 8 x 4 R bytes; byte 4 r + b of line i holds column 4 i + b of row r
 *            4, 5 and 6 bits: 4 x 4 R bytes; byte 4 r + b of line i holds the low four bits of columns 4 i + b (low
 *            nibble) and 16 + 4 i + b of row r
 *   high     the fifth bits: 4 R bytes; bit i of byte 4 r + b belongs to column 4 i + b of row r
 *            the fifth and sixth bits: 2 x 4 R bytes; bits 2 i and 2 i + 1 of byte 4 r + b of line h belong to column
 *            16 h + 4 i + b of row r
 *
 * Q4_1 and Q8_0 take as many bytes as in the file, other types a few more: Q2_K and Q3_K are widened to 4 bits, and the
 * products of the scales of superblocks are rounded to f16. Float types stay as they are in the file.
 */
import { fromF16, toF16 } from '../float.ts';
import { e2m1Levels, iq4Levels } from '../weights/blocks.ts';
import { dequantize } from '../weights/dequantize.ts';
import {
  bitsAboveNibbles,
  createSplitBlock,
  halvesOf,
  joinNibbles,
  type QuantizedType,
  splitters,
} from '../weights/split.ts';
import { type WeightType, weightBytes, weightFormats } from '../weights/types.ts';

export interface PackedFormat {
  /** 16 and 32: plain rows of f16, bf16 or f32. */
  bits: 4 | 5 | 6 | 8 | 16 | 32;
  group: 16 | 32;
  mins: boolean;
  /** Added to codes to make them unsigned; the minima compensate for it. */
  zeroPoint?: number;
  /** 4-bit codes are indices of these. */
  levels?: keyof typeof levelTables;
  /**
   * Added to codes of up to 6 bits, or to levels, to make them unsigned: int8 dot products need that. Their sums begin with
   * what compensates for it. Absent if codes need all 8 bits, or are below 16 already.
   */
  codeOffset?: number;
}

export const levelTables = { iq4: iq4Levels, e2m1: e2m1Levels };

export const packedFormats: Record<WeightType, PackedFormat> = {
  F32: { bits: 32, group: 32, mins: false },
  F16: { bits: 16, group: 32, mins: false },
  BF16: { bits: 16, group: 32, mins: false },
  Q4_0: { bits: 4, group: 32, mins: true, zeroPoint: 8 },
  Q4_1: { bits: 4, group: 32, mins: true },
  Q4_K: { bits: 4, group: 32, mins: true },
  Q2_K: { bits: 4, group: 16, mins: true },
  Q3_K: { bits: 4, group: 16, mins: true, zeroPoint: 4 },
  Q5_0: { bits: 5, group: 32, mins: false, codeOffset: 16 },
  Q5_1: { bits: 5, group: 32, mins: true, codeOffset: 0 },
  Q5_K: { bits: 5, group: 32, mins: true, codeOffset: 0 },
  Q6_K: { bits: 6, group: 16, mins: false, codeOffset: 32 },
  Q8_0: { bits: 8, group: 32, mins: false },
  IQ4_NL: { bits: 4, group: 32, mins: false, levels: 'iq4' },
  IQ4_XS: { bits: 4, group: 32, mins: false, levels: 'iq4' },
  MXFP4: { bits: 4, group: 32, mins: false, levels: 'e2m1', codeOffset: 16 },
};

/** Vectors of four rows in a tile. V8 does not join the lookup of levels. */
export const tileVectors = ({ levels }: PackedFormat, wide: boolean): 1 | 2 => (wide && !levels ? 2 : 1);

/** Bytes of a block's scales and of the whole block, per vector of its tile. */
export const scaleBytes = ({ group, mins }: PackedFormat) => (32 / group) * 8 * (mins ? 2 : 1);
export const blockBytes = (format: PackedFormat) => scaleBytes(format) + 16 * format.bits;

export function packedBytes(type: WeightType, rows: number, cols: number, wide: boolean): number {
  const format = packedFormats[type];
  if (format.bits >= 16) return weightBytes(type, rows * cols);
  const vectors = tileVectors(format, wide);
  return Math.ceil(rows / (4 * vectors)) * vectors * (cols / 32) * blockBytes(format);
}

/** Packs whole rows of the file's bytes. Missing rows of the last tile are zeros. `out` begins at a multiple of four. */
export function packWeights(
  type: QuantizedType,
  source: Uint8Array,
  cols: number,
  out: Uint8Array,
  wide: boolean,
): void {
  const format = packedFormats[type];
  const { group, bits, mins, levels, zeroPoint = 0, codeOffset = 0 } = format;
  // Indices of levels have no offset.
  const zero = levels ? 0 : zeroPoint + codeOffset;
  const indices = levels && levelIndices(levelTables[levels]);
  const { block, bytes } = weightFormats[type];
  const vectors = tileVectors(format, wide);
  const tileRows = 4 * vectors;
  const [size, groups, codesOffset] = [vectors * blockBytes(format), 32 / group, vectors * scaleBytes(format)];
  const tileBytes = packedBytes(type, tileRows, cols, wide);
  const rowHalves = weightBytes(type, cols) / 2;
  const split = createSplitBlock(type);
  const splitBlock = splitters[type];
  const halves = halvesOf(source);
  const words = new Int32Array(out.buffer, out.byteOffset, out.length / 4);
  const scales = new Uint16Array(out.buffer, out.byteOffset, out.length / 2);
  out.fill(0);
  for (let row = 0, from = 0; from < halves.length; row++) {
    const r = row % tileRows;
    let to = Math.floor(row / tileRows) * tileBytes;
    for (const end = from + rowHalves; from < end; from += bytes / 2) {
      splitBlock(halves, from, split);
      for (let start = 0; start < block; start += 32, to += size) {
        for (let g = 0; g < groups; g++) {
          const scale = split.scales[start / group + g];
          scales[to / 2 + tileRows * g + r] = toF16(scale);
          if (mins)
            scales[to / 2 + tileRows * (groups + g) + r] = toF16(split.mins[start / group + g] - zeroPoint * scale);
        }
        const [code, target] = [start / 4, (to + codesOffset) / 4 + r];
        if (indices) for (let i = start; i < start + 32; i++) split.codes[i] = indices[split.codes[i] & 255];
        if (bits === 8) for (let i = 0; i < 8; i++) words[target + tileRows * i] = split.words[code + i];
        else
          for (let i = 0; i < 4; i++)
            words[target + tileRows * i] = joinNibbles(split.words[code + i], split.words[code + i + 4], zero);
        for (let i = 0, high = bits - 4; i < 8 && high < 4; i++)
          words[target + (4 + ((i * high) >> 3)) * tileRows] |=
            bitsAboveNibbles(split.words[code + i], zero, high) << ((i * high) & 7);
      }
    }
  }
}

/** Dequantizes one row to the values that the kernels compute with: for embeddings and tests. */
export function unpackRow(
  type: WeightType,
  packed: Uint8Array,
  row: number,
  cols: number,
  out: Float32Array,
  wide: boolean,
): void {
  const format = packedFormats[type];
  if (format.bits >= 16) {
    const bytes = weightBytes(type, cols);
    dequantize(type, packed.subarray(row * bytes, (row + 1) * bytes), out);
    return;
  }
  const vectors = tileVectors(format, wide);
  const tileRows = 4 * vectors;
  const size = vectors * blockBytes(format);
  const groups = 32 / format.group;
  const r = row % tileRows;
  for (let block = 0; block < cols / 32; block++) {
    const at = (Math.floor(row / tileRows) * (cols / 32) + block) * size;
    const codes = at + vectors * scaleBytes(format);
    for (let c = 0; c < 32; c++) {
      const g = Math.floor(c / format.group);
      const scale = readF16(packed, at, tileRows * g + r);
      const min = format.mins ? readF16(packed, at, tileRows * (groups + g) + r) : 0;
      out[32 * block + c] = scale * readCode(format, packed, codes, c, r, tileRows) + min;
    }
  }
}

function readCode(
  { bits, levels, codeOffset = 0 }: PackedFormat,
  packed: Uint8Array,
  at: number,
  c: number,
  r: number,
  tileRows: number,
) {
  const lineBytes = 4 * tileRows;
  /** Of column c, if a line has four columns. */
  const byteOf = (c: number) => packed[at + lineBytes * (c >> 2) + 4 * r + (c & 3)];
  if (bits === 8) return (byteOf(c) << 24) >> 24;
  const nibble = (byteOf(c & 15) >> (c < 16 ? 0 : 4)) & 15;
  if (levels) return levelTables[levels][nibble];
  const high = bits - 4;
  const bit = (c >> 2) * high;
  const byte = packed[at + lineBytes * (4 + (bit >> 3)) + 4 * r + (c & 3)];
  return nibble + (((byte >> (bit & 7)) & (2 ** high - 1)) << 4) - codeOffset;
}

/** The index of each level, by its byte. */
function levelIndices(levels: Int8Array): Uint8Array {
  const indices = new Uint8Array(256);
  for (const [index, level] of levels.entries()) indices[level & 255] = index;
  return indices;
}

const readF16 = (bytes: Uint8Array, at: number, index: number) =>
  fromF16(bytes[at + 2 * index] | (bytes[at + 2 * index + 1] << 8));
