/**
 * Weight matrices on the GPU. A row consists of blocks of 32 values:
 *
 *   codes    per block: 4 words of nibbles (value i in the low half of byte i, value 16 + i in the high half), or 8 words
 *            of signed bytes, or 32 floats as in the file (2 or 4 bytes each)
 *   scales   per group of 32 or 16 values of an integer block: one f16 scale; with minima, f16 scale and f16 minimum
 *
 * value = scale (code - zero) + minimum. Types of 2 and 3 bits are widened to nibbles, those of 5 and 6 and IQ4_NL to
 * bytes.
 *
 * 32 rows form a row tile (the last is padded with zeros) and are interleaved, so that 32 invocations with one row each
 * read 512 contiguous bytes. In units of 16 bytes, vector v of block b of row r of tile n is at ((n B + b) V + v) 32 + r,
 * with B blocks per row and V vectors per block. Its scales are at (n B + b) 32 + r.
 *
 * A matrix that exceeds the largest binding is divided into pieces.
 */

import { CapacityError, ShapeError } from '../../errors.ts';
import type { Weights } from '../device.ts';
import { toF16 } from '../float.ts';
import {
  createSplitBlock,
  groupSize,
  isQuantized,
  type QuantizedType,
  type SplitBlock,
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
      `The webgpu device needs rows of a multiple of ${BLOCK} values; this ${type} matrix has ${cols}. Use device: 'js'.`,
    );
  const format = gpuFormat(type);
  const rowCodeBytes = (cols / BLOCK) * vectorsPerBlock(format) * 16;
  const rowScaleBytes = (cols / BLOCK) * scalesPerBlock(format) * 2;
  const pieceRows = Math.floor(maxBindingBytes / rowCodeBytes / ROW_TILE) * ROW_TILE;
  if (pieceRows === 0)
    throw new CapacityError(
      `${ROW_TILE} rows of ${cols} values exceed the largest binding of this GPU. Use device: 'wasm'.`,
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
  const rowBytes = weightBytes(type, cols);
  const blocks = cols / BLOCK;
  const [vectors, scaleCount] = [vectorsPerBlock(format), scalesPerBlock(format)];
  const codes = new Uint32Array(padToRowTile(rows) * blocks * vectors * 4);
  const scales = new Uint16Array(padToRowTile(rows) * blocks * scaleCount);
  const row = createRowPacker(type, format, cols);
  for (let r = 0; r < rows; r++) {
    row.read(source.subarray((first + r) * rowBytes, (first + r + 1) * rowBytes));
    const place = (n: number, of: number) => (Math.floor(r / ROW_TILE) * blocks * of + n) * ROW_TILE + (r % ROW_TILE);
    for (let v = 0; v < blocks * vectors; v++) {
      const at = 4 * place(v, vectors);
      for (let i = 0; i < 4; i++) codes[at + i] = row.codes[4 * v + i];
    }
    for (let b = 0; b < blocks; b++) {
      const at = scaleCount * place(b, 1);
      for (let i = 0; i < scaleCount; i++) scales[at + i] = row.scales[scaleCount * b + i];
    }
  }
  return { codes: new Uint8Array(codes.buffer), scales: new Uint8Array(scales.buffer) };
}

/** Converts one row at a time to codes (as words) and scales, in the order of blocks. */
function createRowPacker(type: WeightType, format: GpuFormat, cols: number) {
  const blocks = cols / BLOCK;
  const bytes = new Uint8Array(blocks * vectorsPerBlock(format) * 16);
  const scales = new Uint16Array(blocks * scalesPerBlock(format));
  const split = isQuantized(type) ? createSplitBlock(type) : undefined;
  return {
    codes: new Uint32Array(bytes.buffer),
    scales,
    read(from: Uint8Array) {
      if (isQuantized(type)) packBlocks(type, format, from, bytes, scales, split!);
      else bytes.set(from);
    },
  };
}

function packBlocks(
  type: QuantizedType,
  format: GpuFormat,
  from: Uint8Array,
  codes: Uint8Array,
  scales: Uint16Array,
  split: SplitBlock,
) {
  const { group, zero, minima } = format.integer!;
  const { block, bytes } = weightFormats[type];
  let [code, scale] = [0, 0];
  for (let at = 0; at < from.length; at += bytes) {
    splitters[type](from, at, split);
    for (let i = 0; i < block; i += BLOCK) {
      if (format.bits === 8) for (let j = 0; j < BLOCK; j++) codes[code++] = split.codes[i + j];
      else
        for (let j = 0; j < BLOCK / 2; j++)
          codes[code++] = (split.codes[i + j] + zero) | ((split.codes[i + j + BLOCK / 2] + zero) << 4);
    }
    for (let g = 0; g < block / group; g++) {
      scales[scale++] = toF16(split.scales[g]);
      if (minima) scales[scale++] = toF16(split.mins[g]);
    }
  }
}
