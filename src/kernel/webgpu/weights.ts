/**
 * Matrices on the GPU. A row is cut into blocks of 32 values:
 *
 *   codes    of a block: 4 words of nibbles (value i in the low half of byte i, value 16 + i in the high half), or 8
 *            words of signed bytes, or 32 floats as the file has them (2 or 4 bytes each)
 *   scales   of an integer block: one f16 a group of 32 or 16; with minima, pairs of f16 scale, f16 minimum
 *
 * value = scale (code - zero) + minimum. Types of 2 and 3 bits are widened to nibbles, those of 5 and 6 and IQ4_NL to
 * bytes.
 *
 * 32 rows make a bundle, the last one filled up with zeros, and lie side by side, so that 32 invocations with a row each
 * read 512 bytes in one go. Codes are counted in vectors of 4 words, and a block has V of them: vector v of block b of
 * row r of bundle n is at ((n B + b) V + v) 32 + r, where a row has B blocks. Its scales are at (n B + b) 32 + r.
 *
 * Bundles that exceed the largest binding go on in further buffers.
 */
import { CapacityError, ShapeError } from '../../errors.ts';
import type { Weights } from '../device.ts';
import { toF16 } from '../float.ts';
import { createSplit, groupOf, type IntegerType, isInteger, type SplitBlock, splitters } from '../weights/split.ts';
import { type WeightType, weightBytes, weightFormats } from '../weights/types.ts';
import type { Gpu, Kernel } from './gpu.ts';

export const BLOCK = 32;
/** Rows that lie side by side. */
export const BUNDLE = 32;

export interface GpuFormat {
  name: string;
  /** 4 or 8 of an integer code; 16 or 32 of a float. */
  bits: 4 | 8 | 16 | 32;
  /** Upper halves of f32 rather than halves. */
  bf16?: boolean;
  /** Integers only: values a scale, the code of zero, and whether there are minima. */
  integer?: { group: 16 | 32; zero: number; minima: boolean };
}

/** Code of zero in nibbles; types not named here take bytes. */
const nibbles: Partial<Record<WeightType, number>> = { Q4_0: 8, Q4_1: 0, Q4_K: 0, Q2_K: 0, Q3_K: 4 };
const withMinima: readonly WeightType[] = ['Q4_1', 'Q5_1', 'Q2_K', 'Q4_K', 'Q5_K'];

export function formatOf(type: WeightType): GpuFormat {
  if (!isInteger(type)) return { name: type, bits: type === 'F32' ? 32 : 16, bf16: type === 'BF16' };
  const zero = nibbles[type];
  const minima = withMinima.includes(type);
  const group = groupOf(type);
  const bits = zero === undefined ? 8 : 4;
  return {
    name: `i${bits}g${group}${minima ? 'm' : ''}z${zero ?? 0}`,
    bits,
    integer: { group, zero: zero ?? 0, minima },
  };
}

/** Vectors of a block's codes, and 16-bit halves of its scales. */
export const codeVectors = ({ bits }: GpuFormat) => bits / 4;
export const scaleHalves = ({ integer }: GpuFormat) =>
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

const bundled = (rows: number) => Math.ceil(rows / BUNDLE) * BUNDLE;

interface Empty extends GpuWeights {
  /** Of a row. */
  codeBytes: number;
  scaleBytes: number;
}

/** Room for a matrix, in as many pieces as it takes. */
function emptyWeights(gpu: Gpu, most: number, type: WeightType, rows: number, cols: number): Empty {
  if (cols % BLOCK !== 0)
    throw new ShapeError(`The webgpu device cannot take ${type} rows of ${cols} values. Use device: 'js'.`);
  const format = formatOf(type);
  const codeBytes = (cols / BLOCK) * codeVectors(format) * 16;
  const scaleBytes = (cols / BLOCK) * scaleHalves(format) * 2;
  const pieceRows = Math.floor(most / codeBytes / BUNDLE) * BUNDLE;
  if (pieceRows === 0)
    throw new CapacityError(`${BUNDLE} rows of ${cols} values exceed what the GPU binds at once. Use device: 'wasm'.`);
  const pieces: Piece[] = [];
  for (let firstRow = 0; firstRow < rows; firstRow += pieceRows) {
    const count = Math.min(pieceRows, rows - firstRow);
    const codes = gpu.buffer(bundled(count) * codeBytes, `${type} codes`);
    const scales = gpu.buffer(bundled(count) * scaleBytes, `${type} scales`);
    pieces.push({ codes, scales, firstRow, rows: count });
  }
  return { type, rows, cols, format, pieces, codeBytes, scaleBytes };
}

export async function loadWeights(
  gpu: Gpu,
  most: number,
  type: WeightType,
  rows: number,
  cols: number,
  fill: (into: Uint8Array, start: number) => Promise<void>,
): Promise<GpuWeights> {
  const source = new Uint8Array(weightBytes(type, rows * cols));
  await fill(source, 0);
  const { codeBytes, scaleBytes, ...weights } = emptyWeights(gpu, most, type, rows, cols);
  await gpu.allocated();
  for (const { codes, scales, firstRow, rows: count } of weights.pieces) {
    // In runs of rows, so that no more than a little is held twice in main memory.
    const run = Math.max(BUNDLE, Math.floor((8 << 20) / codeBytes / BUNDLE) * BUNDLE);
    for (let row = 0; row < count; row += run) {
      const n = Math.min(run, count - row);
      const packed = packRows(type, weights.format, source, firstRow + row, n, cols);
      gpu.upload(codes, row * codeBytes, packed.codes);
      if (packed.scales.length > 0) gpu.upload(scales, row * scaleBytes, packed.scales);
    }
  }
  return weights;
}

/** Words of a random generator, or all the same. */
const fillWords: Kernel = {
  name: 'fill',
  params: ['words', 'seed', 'value'],
  buffers: ['write out: array<u32>'],
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

/** A matrix of random codes, made where it stays: to time models that nobody has to download. */
export function randomWeights(gpu: Gpu, most: number, type: IntegerType, rows: number, cols: number): GpuWeights {
  const { codeBytes: _, scaleBytes: __, ...weights } = emptyWeights(gpu, most, type, rows, cols);
  // Small enough that activations stay of ordinary size.
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

/** `rows` rows from `first` on, which begins a bundle. */
function packRows(type: WeightType, format: GpuFormat, source: Uint8Array, first: number, rows: number, cols: number) {
  const rowBytes = weightBytes(type, cols);
  const blocks = cols / BLOCK;
  const [vectors, halves] = [codeVectors(format), scaleHalves(format)];
  const codes = new Uint32Array(bundled(rows) * blocks * vectors * 4);
  const scales = new Uint16Array(bundled(rows) * blocks * halves);
  const row = createRow(type, format, cols);
  for (let r = 0; r < rows; r++) {
    row.read(source.subarray((first + r) * rowBytes, (first + r + 1) * rowBytes));
    const place = (n: number, of: number) => (Math.floor(r / BUNDLE) * blocks * of + n) * BUNDLE + (r % BUNDLE);
    for (let v = 0; v < blocks * vectors; v++) {
      const at = 4 * place(v, vectors);
      for (let i = 0; i < 4; i++) codes[at + i] = row.codes[4 * v + i];
    }
    for (let b = 0; b < blocks; b++) {
      const at = halves * place(b, 1);
      for (let i = 0; i < halves; i++) scales[at + i] = row.scales[halves * b + i];
    }
  }
  return { codes: new Uint8Array(codes.buffer), scales: new Uint8Array(scales.buffer) };
}

/** One row: its codes as words and its scales, block after block. */
function createRow(type: WeightType, format: GpuFormat, cols: number) {
  const blocks = cols / BLOCK;
  const bytes = new Uint8Array(blocks * codeVectors(format) * 16);
  const scales = new Uint16Array(blocks * scaleHalves(format));
  const split = isInteger(type) ? createSplit(type) : undefined;
  return {
    codes: new Uint32Array(bytes.buffer),
    scales,
    read(from: Uint8Array) {
      if (isInteger(type)) packBlocks(type, format, from, bytes, scales, split!);
      else bytes.set(from);
    },
  };
}

function packBlocks(
  type: IntegerType,
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
