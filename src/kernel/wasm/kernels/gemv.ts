/**
 * GEMV: one row of quantized activations (quantize-activations.ts) times weights packed in tiles of four rows
 * (pack-weights.ts), one lane per row of weights. gemm.ts, for several rows, adds the blocks in the same order with the
 * same operations, so a row's result does not depend on its batch.
 */
import { f32x4, type I32, i8x16, i16x8, i32, i32x4, index, type Local, lanes16, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { chunkRange, F16_TO_F32, highF16ToF32, lowF16ToF32, multiplyAdd, reduceAdd, swizzle } from '../ops.ts';
import { blockBytes, levelTables, type PackedFormat, scaleBytes } from '../pack-weights.ts';
import { chunked } from '../task.ts';
import { ACTIVATION_TILE, type ActivationType } from './quantize-activations.ts';

export const gemmKernelName = ({ bits, group, mins, levels, codeOffset }: PackedFormat, kernel: 'gemv' | 'gemm') =>
  `${kernel}${bits}g${group}${mins ? 'm' : ''}${levels ?? ''}${codeOffset === undefined ? '' : `+${codeOffset}`}`;

/** What the kernels may use, and how precise they are. */
export interface ArithmeticOptions {
  relaxed: boolean;
  precise: boolean;
  /** Use `i32x4.relaxedDotAdd`. */
  dotAdd: boolean;
  /** The engine joins two vectors of 128 bits to one of 256. */
  wide: boolean;
}

export interface GemmArithmetic {
  /** int8 and offset8: dot products of bytes; int16: activations and codes are widened to 16 bits. */
  activations: ActivationType;
  /** Use fused multiply-adds. */
  fused: boolean;
  /** int8 products are added in 32 bits, by one instruction, instead of 16. */
  dotAdd: boolean;
  /** The engine joins two vectors of 128 bits to one of 256. */
  wide: boolean;
}

/** Codes are below 16. */
const isNibble = ({ bits, levels }: PackedFormat) => bits === 4 && !levels;

/**
 * Bytes suffice for codes below 16, for codes below 128 if their products are added in 32 bits, and for activations that
 * are not precise.
 */
export function gemmArithmetic(
  format: PackedFormat,
  { relaxed, precise, dotAdd, wide }: ArithmeticOptions,
): GemmArithmetic {
  const int8 = !precise && relaxed && (isNibble(format) || format.codeOffset !== undefined);
  const activations = !int8 ? 'int16' : format.codeOffset ? 'offset8' : 'int8';
  return { activations, fused: relaxed, dotAdd: int8 && dotAdd, wide };
}

/**
 * Number of positions from which weights are read alternately, four rows at a time. Hardware prefetch stops at the end
 * of a memory page; with several streams, the others are still in the middle of one. 25 % faster for weights that are
 * not in a cache.
 */
const STREAMS = 4;

/** All kernels that multiply by weights take the same arguments. `bias` is 0 for none; `rows` is 1 for `gemv`. */
export const gemmSignature = (name: string) =>
  chunked(name, 'x', 'w', 'out', 'bias', 'accumulate', 'rows', 'outputs', 'cols', 'scratch');
export type GemmSignature = ReturnType<typeof gemmSignature>;
type GemmKernel = Kernel<GemmSignature['params'][number]>;

export function gemv(format: PackedFormat, arithmetic: GemmArithmetic): Kernel {
  const k = new Kernel(gemmSignature(gemmKernelName(format, 'gemv')));
  const { x, w, outputs, cols, scratch, chunk, chunks } = k.params;
  const blocks = k.i32(i32.shrU(cols, 5));
  const { from, to } = chunkRange(k, outputs, 4, chunk, chunks);
  const rowTileBytes = k.i32(i32.mul(blocks, blockBytes(format)));
  const [sum, activations, block] = [k.v128(), k.i32(), k.i32()];
  const constants = loadConstants(k, format, arithmetic, scratch);
  const streamRows = k.i32(i32.mul(i32.divU(i32.add(i32.sub(to, from), 4 * STREAMS - 1), 4 * STREAMS), 4));
  k.for(from, i32.add(from, streamRows), 4, first => {
    k.for(first, index(first, STREAMS, streamRows), streamRows, o => {
      k.if(i32.ltS(o, to), () => {
        k.set(sum, v128.zero);
        k.set(activations, x);
        k.set(block, index(w, rowTileBytes, i32.shrU(o, 2)));
        k.for(0, blocks, 1, () => {
          addBlock(k, format, arithmetic, block, activations, sum, constants);
          k.increment(block, blockBytes(format));
          k.increment(activations, ACTIVATION_TILE[arithmetic.activations].size);
        });
        storeOutputs(k, sum, 0, o);
      });
    });
  });
  return k;
}

/**
 * V8 rematerializes a vector constant at every use, with three instructions; a value loaded from memory stays in a
 * register. They take CONSTANT_BYTES of `scratch`.
 */
export function loadConstants(k: Kernel, format: PackedFormat, arithmetic: GemmArithmetic, scratch: I32) {
  let offset = 0;
  const load = (constant: V128) => {
    k.do(v128.store(scratch, constant, offset));
    const local = k.v128(v128.load(scratch, offset));
    offset += 16;
    return local;
  };
  const { nibble, high, levels, offset: codeOffset } = codeConstants(format, arithmetic);
  return {
    codes: { nibble: load(nibble), high: load(high), levels: load(levels), offset: load(codeOffset) },
    ones: load(i16x8.const(1)),
    f16: { bits: load(F16_TO_F32.bits), scale: load(F16_TO_F32.scale) },
  };
}

/** Whole cache lines: what follows them is read in vectors of 256 bits. */
export const CONSTANT_BYTES = 128;
export type Constants = ReturnType<typeof loadConstants>;

/** out[row][o...] = (out +) sum (+ bias), for four outputs or as many as are left. */
export function storeOutputs(k: GemmKernel, sum: Local<'v128'>, row: I32, o: I32): void {
  const { out, outputs, bias, accumulate } = k.params;
  const at = k.i32(index(out, 4, row, [outputs, o]));
  k.if(bias, () => k.set(sum, f32x4.add(sum, v128.load(index(bias, 4, o)))));
  k.if(accumulate, () => k.set(sum, f32x4.add(v128.load(at), sum)));
  const left = k.i32(i32.sub(outputs, o));
  k.if(
    i32.geS(left, 4),
    () => k.do(v128.store(at, sum)),
    () => {
      for (let lane = 0; lane < 3; lane++) {
        k.if(i32.gtS(left, lane), () => k.do(v128.store32Lane(at, sum, lane, 4 * lane)));
      }
    },
  );
}

/** sum += scale x activation scale x integer dot (+ min x sum of activations), for one block. */
function addBlock(
  k: Kernel,
  format: PackedFormat,
  arithmetic: GemmArithmetic,
  block: I32,
  activations: I32,
  sum: Local<'v128'>,
  constants: Constants,
): void {
  const int8 = arithmetic.activations !== 'int16';
  const tile = ACTIVATION_TILE[arithmetic.activations];
  const groups = 32 / format.group;
  const madd = multiplyAdd(arithmetic.fused);
  const codes = (int8 ? int8Codes : int16Codes)(k, format, arithmetic, block, constants.codes);
  const scales = blockScales(k, format, block, constants.f16);
  const n = codes.length / groups;
  for (let g = 0; g < groups; g++) {
    const pairs = codes.slice(g * n, (g + 1) * n).map((code, i) => {
      return [v128.load(activations, 16 * (g * n + i)), code] as const;
    });
    const initial = initialSum(format, arithmetic, activations, g);
    const dot = arithmetic.dotAdd
      ? dotAddInt8(k, pairs, initial)
      : int8
        ? dotInt8(format, pairs, constants.ones, initial)
        : dotInt16(pairs);
    const scaled = f32x4.mul(scales[g], v128.load(activations, tile.scales));
    k.set(sum, madd(scaled, f32x4.fromI32(dot), sum));
    if (!format.mins) continue;
    const total = v128.load(activations, tile.sums + 16 * sumIndex(format, g));
    k.set(sum, madd(scales[groups + g], total, sum));
  }
}

/** Index of a group's sums in a tile of activations: of the first half of a block, the second half, or the whole. */
export const sumIndex = ({ group }: PackedFormat, g: number) => (group === 16 ? g : 2);

/** What a row's sums of int8 products begin with if not zero: minus the offset of the codes x the sum of the activations. */
export const initialSum = (
  format: PackedFormat,
  { activations }: GemmArithmetic,
  tile: I32,
  g: number,
  row = 0,
): V128 | undefined =>
  format.codeOffset && activations === 'offset8'
    ? i32x4.shl(
        v128.load32Splat(tile, ACTIVATION_TILE.offset8.sums + 16 * sumIndex(format, g) + 4 * row),
        Math.log2(format.codeOffset),
      )
    : undefined;

/** The scales of a block, one vector per group, then its minima. */
export function blockScales(k: Kernel, format: PackedFormat, block: I32, f16 = F16_TO_F32): V128[] {
  const count = scaleBytes(format) / 8;
  return Array.from({ length: Math.ceil(count / 2) }, (_, i) => k.v128(v128.load(block, 16 * i)))
    .flatMap(eight => [
      v128.shuffle(v128.zero, eight, lanes16(0, 8, 1, 9, 2, 10, 3, 11)),
      v128.shuffle(v128.zero, eight, lanes16(4, 12, 5, 13, 6, 14, 7, 15)),
    ])
    .slice(0, count)
    .map(high => highF16ToF32(high, f16));
}

type Pairs = readonly (readonly [activations: V128, codes: V128])[];

/** Vectors of int8 products whose sum fits into int16: eight if codes are below 16, two if they are below 64. */
export const narrowVectors = (format: PackedFormat) => (isNibble(format) ? 8 : 2);

/** Dot products per lane. */
function dotInt8(format: PackedFormat, pairs: Pairs, ones: V128, initial?: V128): V128 {
  const products = pairs.map(([x, codes]) => i16x8.relaxedDot(x, codes));
  const sums: V128[] = initial ? [initial] : [];
  for (let i = 0; i < products.length; i += narrowVectors(format))
    sums.push(i32x4.dot(products.slice(i, i + narrowVectors(format)).reduce(i16x8.add), ones));
  return sums.reduce(i32x4.add);
}
const dotInt16 = (pairs: Pairs): V128 => pairs.map(([x, codes]) => i32x4.dot(codes, x)).reduce(i32x4.add);

/** The same in 32 bits. Two sums alternate, because an addition has to wait for the one before it. */
function dotAddInt8(k: Kernel, pairs: Pairs, initial: V128 = v128.zero): V128 {
  const sums = [k.v128(initial), k.v128(v128.zero)];
  for (const [i, [x, codes]] of pairs.entries()) k.set(sums[i % 2], i32x4.relaxedDotAdd(x, codes, sums[i % 2]));
  return i32x4.add(sums[0], sums[1]);
}

/** Constants that unpack codes. */
export type CodeConstants = ReturnType<typeof codeConstants>;
function codeConstants({ bits, levels, codeOffset = 0 }: PackedFormat, { activations }: GemmArithmetic) {
  const table = levels && levelTables[levels].map(level => level + (activations === 'offset8' ? codeOffset : 0));
  return {
    nibble: i8x16.const(15),
    /** The bits above a nibble. */
    high: i8x16.const(bits === 6 ? 0x30 : 0x10),
    levels: i8x16.const(...(table ?? [0])),
    offset: i8x16.const(codeOffset),
  };
}

type UnpackCodes = (
  k: Kernel,
  format: PackedFormat,
  arithmetic: GemmArithmetic,
  block: I32,
  constants: CodeConstants,
) => V128[];

/** The codes of a block as eight vectors of four columns x four rows: with their offset, or signed if they have 8 bits. */
export const int8Codes: UnpackCodes = (k, format, arithmetic, block, constants) => {
  const { bits, levels } = format;
  const at = scaleBytes(format);
  const load = (first: number, count: number) =>
    Array.from({ length: count }, (_, i) => k.v128(v128.load(block, at + 16 * (first + i))));
  if (bits === 8) return load(0, 8);
  const pairs = load(0, 4);
  const nibbles = [pairs, pairs.map(v => i16x8.shrU(v, 4))].flat().map(v => v128.and(v, constants.nibble));
  if (levels) return nibbles.map(v => swizzle(arithmetic.fused)(constants.levels, v));
  const high = bits - 4;
  const highBits = load(4, high);
  return nibbles.map((v, i) => {
    if (high === 0) return v;
    const shift = 4 - ((i * high) & 7);
    const bits = highBits[(i * high) >> 3];
    const shifted = shift > 0 ? i16x8.shl(bits, shift) : shift < 0 ? i16x8.shrU(bits, -shift) : bits;
    return v128.or(v, v128.and(shifted, constants.high));
  });
};

/** The codes of a block as sixteen vectors of two columns x four rows: columns 0 2, 1 3, 4 6, 5 7, ... */
export const int16Codes: UnpackCodes = (k, format, arithmetic, block, constants) => {
  const vectors = int8Codes(k, format, arithmetic, block, constants);
  const shr = isNibble(format) ? i16x8.shrU : i16x8.shrS;
  return vectors.flatMap(vector => {
    const v = k.v128(format.codeOffset && !format.levels ? i8x16.sub(vector, constants.offset) : vector);
    return [shr(i16x8.shl(v, 8), 8), shr(v, 8)];
  });
};

/** Float weights times f32 activations, for any number of rows: gemmF32, gemmF16, gemmBF16. */
export function gemmFloat(type: 'F32' | 'F16' | 'BF16'): Kernel {
  const k = new Kernel(gemmSignature(`gemm${type}`));
  const { x, w, out, bias, accumulate, rows, outputs, cols, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, outputs, 1, chunk, chunks);
  const size = type === 'F32' ? 4 : 2;
  const load = (at: I32): V128 =>
    type === 'F32'
      ? v128.load(at)
      : type === 'F16'
        ? lowF16ToF32(v128.load16x4U(at))
        : i32x4.shl(v128.load16x4U(at), 16);
  k.for(from, to, 1, o => {
    const weights = k.i32(index(w, size, i32.mul(o, cols)));
    k.for(0, rows, 1, row => {
      const source = k.i32(index(x, 4, i32.mul(row, cols)));
      const sum = k.v128(v128.zero);
      k.for(0, cols, 4, i => {
        const product = f32x4.mul(v128.load(index(source, 4, i)), load(index(weights, size, i)));
        k.set(sum, f32x4.add(sum, product));
      });
      const at = k.i32(index(out, 4, row, [outputs, o]));
      const total = k.v128(f32x4.splat(reduceAdd(k, sum)));
      k.if(bias, () => k.set(total, f32x4.add(total, v128.load32Splat(index(bias, 4, o)))));
      k.if(accumulate, () => k.set(total, f32x4.add(v128.load32Splat(at), total)));
      k.do(i32.store(at, i32x4.lane(total, 0)));
    });
  });
  return k;
}
