/**
 * Weight matrices on the GPU. A row consists of blocks of 32 values:
 *
 *   codes    per block: 4 words of nibbles (value i in the low half of byte i, value 16 + i in the high half), or 8 words
 *            of signed bytes, or 32 floats as in the file (2 or 4 bytes each)
 *   scales   per group of 32 or 16 values of an integer block: one f16 scale; with minima, f16 scale and f16 minimum
 *
 * value = scale (code - zero) + minimum. Types of 2 and 3 bits are widened to nibbles, those of 5 and 6 and with
 * a table of levels to bytes.
 *
 * 32 rows form a row tile (the last is padded with zeros) and are interleaved, so that 32 invocations with one row each
 * read 512 contiguous bytes. In units of 16 bytes, vector v of block b of row r of tile n is at ((n B + b) V + v) 32 + r,
 * with B blocks per row and V vectors per block. Its scales are at (n B + b) 32 + r.
 *
 * A matrix that exceeds the largest binding is divided into pieces.
 */

import { CapacityError, ShapeError } from '../../util/errors.ts';
import type { Weights } from '../device.ts';
import { toF16 } from '../float.ts';
import { wordAt } from '../weights/blocks.ts';
import {
  createSplitBlock,
  groupSize,
  halvesOf,
  isQuantized,
  joinNibbles,
  type QuantizedType,
  splitters,
} from '../weights/split.ts';
import { type WeightType, weightBytes, weightFormats } from '../weights/types.ts';
import type { Gpu } from './gpu.ts';
import { type Kernel, u32, writeBuffer } from './kernel.ts';

export const BLOCK = 32;
/** Rows that are interleaved. */
export const ROW_TILE = 32;

export interface GpuFormat {
  name: string;
  /** 4 or 8 per integer code; 16 or 32 per float. */
  bits: 4 | 8 | 16 | 32;
  /** bfloat16 rather than f16. */
  bf16?: boolean;
  /** Only for integers. `group`: values per scale. `zero`: the code of 0. */
  integer?: { group: 16 | 32; zero: number; minima: boolean };
}

/** The code of 0, for types stored as nibbles; other types are stored as bytes. */
const NIBBLE_ZEROS: Partial<Record<WeightType, number>> = { Q4_0: 8, Q4_1: 0, Q4_K: 0, Q2_K: 0, Q3_K: 4 };
const TYPES_WITH_MINIMA: readonly WeightType[] = ['Q4_1', 'Q5_1', 'Q2_K', 'Q4_K', 'Q5_K'];

export function gpuFormat(type: WeightType): GpuFormat {
  if (!isQuantized(type)) return { name: type, bits: type === 'F32' ? 32 : 16, bf16: type === 'BF16' };
  const zero = NIBBLE_ZEROS[type];
  const minima = TYPES_WITH_MINIMA.includes(type);
  const group = groupSize(type);
  const bits = zero === undefined ? 8 : 4;
  return {
    name: `i${bits}g${group}${minima ? 'm' : ''}z${zero ?? 0}`,
    bits,
    integer: { group, zero: zero ?? 0, minima },
  };
}

/** vec4u of codes, and f16 numbers of scales and minima. */
export const vectorsPerBlock = ({ bits }: GpuFormat) => bits / 4;
export const scalesPerBlock = ({ integer }: GpuFormat) =>
  integer ? (BLOCK / integer.group) * (integer.minima ? 2 : 1) : 0;

export interface Piece {
  codes: GPUBuffer;
  scales: GPUBuffer;
  firstRow: number;
  rows: number;
}

export interface GpuWeights extends Weights {
  format: GpuFormat;
  pieces: readonly Piece[];
}

const padToRowTile = (rows: number) => Math.ceil(rows / ROW_TILE) * ROW_TILE;

interface AllocatedWeights extends GpuWeights {
  rowCodeBytes: number;
  rowScaleBytes: number;
}

function allocateWeights(
  gpu: Gpu,
  maxBindingBytes: number,
  type: WeightType,
  rows: number,
  cols: number,
): AllocatedWeights {
  if (cols % BLOCK !== 0)
    throw new ShapeError(
      option =>
        `The webgpu device needs rows of a multiple of ${BLOCK} values; this ${type} matrix has ${cols}. Use ` +
        `${option('device', 'js')}.`,
    );
  const format = gpuFormat(type);
  const rowCodeBytes = (cols / BLOCK) * vectorsPerBlock(format) * 16;
  const rowScaleBytes = (cols / BLOCK) * scalesPerBlock(format) * 2;
  const pieceRows = Math.floor(maxBindingBytes / rowCodeBytes / ROW_TILE) * ROW_TILE;
  if (pieceRows === 0)
    throw new CapacityError(
      option =>
        `${ROW_TILE} rows of ${cols} values exceed the largest binding of this GPU. Use ${option('device', 'wasm')}.`,
    );
  const pieces: Piece[] = [];
  for (let firstRow = 0; firstRow < rows; firstRow += pieceRows) {
    const count = Math.min(pieceRows, rows - firstRow);
    const codes = gpu.createBuffer(padToRowTile(count) * rowCodeBytes, `${type} codes`);
    const scales = gpu.createBuffer(padToRowTile(count) * rowScaleBytes, `${type} scales`);
    pieces.push({ codes, scales, firstRow, rows: count });
  }
  return { type, rows, cols, format, pieces, rowCodeBytes, rowScaleBytes };
}

/** Codes and scales of a matrix. */
export function matrixBytes(type: WeightType, rows: number, cols: number): number {
  const format = gpuFormat(type);
  return padToRowTile(rows) * (cols / BLOCK) * (16 * vectorsPerBlock(format) + 2 * scalesPerBlock(format));
}

export async function loadWeights(
  gpu: Gpu,
  maxBindingBytes: number,
  type: WeightType,
  rows: number,
  cols: number,
  fill: (into: Uint8Array, start: number) => Promise<void>,
): Promise<GpuWeights> {
  const source = new Uint8Array(weightBytes(type, rows * cols));
  await fill(source, 0);
  const { rowCodeBytes, rowScaleBytes, ...weights } = allocateWeights(gpu, maxBindingBytes, type, rows, cols);
  await gpu.waitForAllocations();
  for (const { codes, scales, firstRow, rows: count } of weights.pieces) {
    // In small runs of rows, to bound the memory of packed copies.
    const run = Math.max(ROW_TILE, Math.floor((8 << 20) / rowCodeBytes / ROW_TILE) * ROW_TILE);
    for (let row = 0; row < count; row += run) {
      const n = Math.min(run, count - row);
      const packed = packRows(type, weights.format, source, firstRow + row, n, cols);
      gpu.upload(codes, row * rowCodeBytes, packed.codes);
      if (packed.scales.length > 0) gpu.upload(scales, row * rowScaleBytes, packed.scales);
    }
  }
  return weights;
}

const fillWords: Kernel = {
  name: 'fill',
  summary: 'Fills a buffer with random words, or with one value.',
  params: u32('words', 'seed', 'value'),
  buffers: [writeBuffer('out', 'u32')],
  size: 256,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let i = (group.y * 65535 + group.x) * 256 + lane;
  if (i >= p.words) { return; }
  var x = (i ^ p.seed) * 0x9e3779b1u;
  x = (x ^ (x >> 15)) * 0x85ebca77u;
  x = (x ^ (x >> 13)) * 0xc2b2ae3du;
  out[i] = select(x ^ (x >> 16), p.value, p.value != 0);
}`,
};

/** A matrix of random codes, generated on the GPU: for benchmarks without a model file. */
export function randomWeights(
  gpu: Gpu,
  maxBindingBytes: number,
  type: QuantizedType,
  rows: number,
  cols: number,
): GpuWeights {
  const { rowCodeBytes: _, rowScaleBytes: __, ...weights } = allocateWeights(gpu, maxBindingBytes, type, rows, cols);
  // Keeps activations in a normal range.
  const scale = toF16(1 / (4 * Math.sqrt(cols)));
  for (const { codes, scales, firstRow } of weights.pieces) {
    for (const [buffer, value] of [
      [codes, 0],
      [scales, scale | (scale << 16)],
    ] as const) {
      const groups = Math.ceil(buffer.size / 4 / 256);
      const params = [buffer.size / 4, firstRow + rows, value];
      gpu.run(fillWords, params, [buffer], [Math.min(groups, 65535), Math.ceil(groups / 65535)]);
    }
  }
  return weights;
}

/** Packs `rows` rows from `first` on, which starts a row tile. */
function packRows(type: WeightType, format: GpuFormat, source: Uint8Array, first: number, rows: number, cols: number) {
  const blocks = cols / BLOCK;
  const [vectors, scaleCount] = [vectorsPerBlock(format), scalesPerBlock(format)];
  const codes = new Int32Array(padToRowTile(rows) * blocks * vectors * 4);
  const scales = new Uint16Array(padToRowTile(rows) * blocks * scaleCount);
  const rowBytes = weightBytes(type, cols);
  const halves = halvesOf(source.subarray(first * rowBytes, (first + rows) * rowBytes));
  const packRow = isQuantized(type) ? createRowPacker(type, format) : copyFloats;
  for (let r = 0; r < rows; r++) {
    // Of the row's first block, in vectors and in blocks; those of the next block are ROW_TILE times as many further on.
    const tile = Math.floor(r / ROW_TILE) * blocks * ROW_TILE;
    const to = { codes, vector: tile * vectors + (r % ROW_TILE), scales, block: tile + (r % ROW_TILE) };
    packRow(halves.subarray((r * rowBytes) / 2, ((r + 1) * rowBytes) / 2), to);
  }
  return { codes: new Uint8Array(codes.buffer), scales: new Uint8Array(scales.buffer) };
}

/** Where a row goes. */
interface RowTarget {
  codes: Int32Array;
  /** The row's first vector among the codes, and its first block among the scales. */
  vector: number;
  scales: Uint16Array;
  block: number;
}

function copyFloats(halves: Uint16Array, { codes, vector }: RowTarget): void {
  for (let from = 0, to = 4 * vector; from < halves.length; from += 8, to += 4 * ROW_TILE)
    for (let i = 0; i < 4; i++) codes[to + i] = wordAt(halves, from, i);
}

function createRowPacker(type: QuantizedType, format: GpuFormat) {
  const { group, zero, minima } = format.integer!;
  const { block, bytes } = weightFormats[type];
  const split = createSplitBlock(type);
  const { words, scales: groupScales, mins } = split;
  const splitBlock = splitters[type];
  const [vectors, scaleCount, groups] = [vectorsPerBlock(format), scalesPerBlock(format), BLOCK / group];
  const [blockHalves, blocks] = [bytes / 2, block / BLOCK];
  return (halves: Uint16Array, { codes, vector, scales, block: firstBlock }: RowTarget): void => {
    let code = 4 * vector;
    let scale = scaleCount * firstBlock;
    for (let at = 0; at < halves.length; at += blockHalves) {
      splitBlock(halves, at, split);
      for (let b = 0; b < blocks; b++) {
        const word = 8 * b;
        if (vectors === 1)
          for (let i = 0; i < 4; i++) codes[code + i] = joinNibbles(words[word + i], words[word + 4 + i], zero);
        else
          for (let i = 0; i < 4; i++) {
            codes[code + i] = words[word + i];
            codes[code + 4 * ROW_TILE + i] = words[word + 4 + i];
          }
        for (let g = 0; g < groups; g++) {
          if (minima) {
            scales[scale + 2 * g] = toF16(groupScales[groups * b + g]);
            scales[scale + 2 * g + 1] = toF16(mins[groups * b + g]);
          } else scales[scale + g] = toF16(groupScales[groups * b + g]);
        }
        code += 4 * ROW_TILE * vectors;
        scale += ROW_TILE * scaleCount;
      }
    }
  };
}
