/**
 * GEMV: one row of quantized activations (quantize-activations.ts) times weights packed in tiles of four or eight rows
 * (pack-weights.ts), one lane per row of weights. gemm.ts, for several rows, adds the blocks in the same order with the
 * same operations, so a row's result does not depend on its batch.
 *
 * For tiles of eight rows every operation is emitted for one vector and then for the other, and their sums are stored side
 * by side: the engine makes one instruction of the two.
 */
import { f32x4, type I32, i8x16, i16x8, i32, i32x4, index, type Local, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { chunkRange, F16_TO_F32, loadF16x4, multiplyAdd, reduceAdd, swizzle } from '../ops.ts';
import { blockBytes, levelTables, type PackedFormat, scaleBytes, tileVectors } from '../pack-weights.ts';
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
 * Number of tiles of weights that are read at the same time, far apart: while one waits for memory, the processor goes on
 * with the next one, and hardware prefetch, which stops at the end of a memory page, is well into the others.
 */
const STREAMS = 4;

/** All kernels that multiply by weights take the same arguments. `bias` is 0 for none; `rows` is 1 for `gemv`. */
export const gemmSignature = (name: string) =>
  chunked(name, 'x', 'w', 'out', 'bias', 'accumulate', 'rows', 'outputs', 'cols', 'scratch');
export type GemmSignature = ReturnType<typeof gemmSignature>;
type GemmKernel = Kernel<GemmSignature['params'][number]>;

/** `scratch` has `gemmScratch` bytes per thread. */
export function gemv(format: PackedFormat, arithmetic: GemmArithmetic, scratchBytes: number): Kernel {
  const k = new Kernel(gemmSignature(gemmKernelName(format, 'gemv')));
  const { x, w, outputs, cols, scratch, chunk, chunks, thread } = k.params;
  const vectors = tileVectors(format, arithmetic.wide);
  const tileRows = 4 * vectors;
  const tileBlock = vectors * blockBytes(format);
  const blocks = k.i32(i32.shrU(cols, 5));
  const { from, to } = chunkRange(k, outputs, tileRows, chunk, chunks);
  const tileBytes = k.i32(i32.mul(blocks, tileBlock));
  const own = k.i32(index(scratch, scratchBytes, thread));
  const constants = loadConstants(k, format, arithmetic, own);
  // In memory: every store bounds how far V8 moves loads ahead.
  const sums = k.i32(i32.add(own, CONSTANT_BYTES));
  const activations = k.i32();
  const streams = Array.from({ length: STREAMS }, () => k.i32());
  /** Multiplies by the tiles that begin at these rows. */
  const multiply = (rows: I32[]) => {
    const addresses = streams.slice(0, rows.length);
    for (const [i, block] of addresses.entries()) k.set(block, index(w, tileBytes, i32.divU(rows[i], tileRows)));
    for (let v = 0; v < vectors * rows.length; v++) k.do(v128.store(sums, v128.zero, 16 * v));
    k.set(activations, x);
    k.for(0, blocks, 1, () => {
      for (const [i, block] of addresses.entries()) {
        addBlock(k, format, arithmetic, block, activations, k.i32(i32.add(sums, 16 * vectors * i)), constants);
        k.increment(block, tileBlock);
      }
      k.increment(activations, ACTIVATION_TILE[arithmetic.activations].size);
    });
    for (const [i, row] of rows.entries())
      for (let v = 0; v < vectors; v++) {
        const sum = k.v128(v128.load(sums, 16 * (vectors * i + v)));
        const at = i32.add(row, 4 * v);
        k.if(i32.gtS(outputs, at), () => storeOutputs(k, sum, 0, at));
      }
  };
  const streamRows = k.i32(i32.mul(i32.divU(i32.sub(to, from), tileRows * STREAMS), tileRows));
  k.for(from, i32.add(from, streamRows), tileRows, row =>
    multiply(streams.map((_, stream) => k.i32(index(row, stream, streamRows)))),
  );
  k.for(index(from, STREAMS, streamRows), to, tileRows, row => multiply([row]));
  return k;
}

/**
 * V8 rematerializes a vector constant at every use, with three instructions; a value loaded from memory stays in a
 * register. They take CONSTANT_BYTES of `scratch`: one copy per vector of a tile, side by side.
 */
export function loadConstants(k: Kernel, format: PackedFormat, arithmetic: GemmArithmetic, scratch: I32): Constants[] {
  const vectors = tileVectors(format, arithmetic.wide);
  let offset = 0;
  const load = (constant: V128) => {
    const at = offset;
    offset += 16 * vectors;
    const copies = Array.from({ length: vectors }, (_, v) => at + 16 * v);
    for (const copy of copies) k.do(v128.store(scratch, constant, copy));
    return copies.map(copy => k.v128(v128.load(scratch, copy)));
  };
  const { nibble, high, levels, offset: codeOffset } = codeConstants(format, arithmetic);
  const codes = { nibble: load(nibble), high: load(high), levels: load(levels), offset: load(codeOffset) };
  const [ones, bits, scale] = [i16x8.const(1), F16_TO_F32.bits, F16_TO_F32.scale].map(load);
  return Array.from({ length: vectors }, (_, v) => ({
    codes: { nibble: codes.nibble[v], high: codes.high[v], levels: codes.levels[v], offset: codes.offset[v] },
    ones: ones[v],
    f16: { bits: bits[v], scale: scale[v] },
  }));
}

/** Whole cache lines: what follows them is read in vectors of 256 bits. */
export const CONSTANT_BYTES = 256;
export interface Constants {
  codes: CodeConstants;
  ones: V128;
  f16: { bits: V128; scale: V128 };
}

/** Bytes of the sums of `gemv`. */
export const GEMV_SUMS = 16 * 2 * STREAMS;

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

/** sums += scale x activation scale x integer dot (+ min x sum of activations), for one block of a tile. */
function addBlock(
  k: Kernel,
  format: PackedFormat,
  arithmetic: GemmArithmetic,
  block: I32,
  activations: I32,
  sums: I32,
  constants: Constants[],
): void {
  const int8 = arithmetic.activations !== 'int16';
  const tile = ACTIVATION_TILE[arithmetic.activations];
  const groups = 32 / format.group;
  const madd = multiplyAdd(arithmetic.fused);
  const perVector = <T>(make: (v: number) => T) => constants.map((_, v) => make(v));
  // All four lanes are equal, but vectors are joined only if their addresses are adjacent.
  const activation = (offset: number) =>
    constants.length === 1 ? v128.load(activations, offset) : v128.load32Splat(activations, offset);
  const unpack = int8 ? int8Codes : int16Codes;
  const codes = perVector(v => unpack(k, format, arithmetic, block, [v, constants]));
  const scales = perVector(v => blockScales(format, block, [v, constants]));
  const n = codes[0].length / groups;
  const results = perVector(v => {
    let sum: V128 = v128.load(sums, 16 * v);
    for (let g = 0; g < groups; g++) {
      const pairs = codes[v].slice(g * n, (g + 1) * n).map((code, i) => [activation(16 * (g * n + i)), code] as const);
      const initial = initialSum(format, arithmetic, activations, g);
      const dot = arithmetic.dotAdd
        ? dotAddInt8(k, pairs, initial)
        : int8
          ? dotInt8(format, pairs, constants[v].ones, initial)
          : dotInt16(pairs);
      const scaled = f32x4.mul(scales[v][g], activation(tile.scales));
      sum = madd(scaled, f32x4.fromI32(dot), sum);
      if (format.mins) sum = madd(scales[v][groups + g], activation(tile.sums + 16 * sumIndex(format, g)), sum);
    }
    return k.v128(sum);
  });
  for (const [v, sum] of [...results.entries()].reverse()) k.do(v128.store(sums, sum, 16 * v));
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

/** Which vector of a tile, and the constants of all of them. */
export type TileVector = readonly [v: number, constants: readonly Constants[]];

/** The scales of a block, one vector per group, then its minima. */
export const blockScales = (format: PackedFormat, block: I32, [v, constants]: TileVector): V128[] =>
  Array.from({ length: scaleBytes(format) / 8 }, (_, i) =>
    loadF16x4(block, 8 * (constants.length * i + v), constants[v].f16),
  );

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
  vector: TileVector,
) => V128[];

/** The codes of a block as eight vectors of four columns x four rows: with their offset, or signed if they have 8 bits. */
export const int8Codes: UnpackCodes = (k, format, arithmetic, block, [v, { length: vectors, [v]: own }]) => {
  const { bits, levels } = format;
  const constants = own.codes;
  const at = vectors * scaleBytes(format) + 16 * v;
  const load = (first: number, count: number) =>
    Array.from({ length: count }, (_, i) => k.v128(v128.load(block, at + 16 * vectors * (first + i))));
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
export const int16Codes: UnpackCodes = (k, format, arithmetic, block, [v, constants]) => {
  const vectors = int8Codes(k, format, arithmetic, block, [v, constants]);
  const { offset } = constants[v].codes;
  const shr = isNibble(format) ? i16x8.shrU : i16x8.shrS;
  return vectors.flatMap(vector => {
    const v = k.v128(format.codeOffset && !format.levels ? i8x16.sub(vector, offset) : vector);
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
    type === 'F32' ? v128.load(at) : type === 'F16' ? loadF16x4(at) : i32x4.shl(v128.load16x4U(at), 16);
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
