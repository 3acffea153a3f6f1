/**
 * Matrix products of one row of activations: integers (activations.ts) times weights packed four rows a block
 * (pack-weights.ts), a lane for each row of weights. Products of many rows are in matmul-many.ts; each sum runs over
 * the blocks in order, in the same operations there, so a row's result does not depend on the batch it is in.
 */
import { f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, lanes16, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { HALF, halfToFloat, highHalfToFloat, multiplyAdd, share, sum4 } from '../ops.ts';
import { blockBytes, type PackedFormat, scaleBytes } from '../pack-weights.ts';
import { TILE, type Width } from './activations.ts';

export const matmulName = ({ bits, group, mins }: PackedFormat, rows: 'one' | 'many') =>
  `matmul${bits}g${group}${mins ? 'm' : ''} ${rows}`;

/** How a product is computed. */
export interface Arithmetic {
  /** int8 activations and products of 7-bit codes, or else int16 throughout. */
  width: Width;
  /** Fused multiply-adds. */
  fused: boolean;
}

/** Codes of 8 bits are too wide for the products of bytes; so are the activations of precise mode. */
export const arithmeticOf = ({ bits }: PackedFormat, relaxed: boolean, precise: boolean): Arithmetic => ({
  width: bits === 4 && relaxed && !precise ? 'bytes' : 'words',
  fused: relaxed,
});

/**
 * Places that the weights are read from in turns, four rows at a time. The processor reads ahead, but only within a
 * page of memory: while it begins a new one here, it is well into another there. From memory this is a quarter faster.
 */
const STREAMS = 4;

/** matmul(x, w, out, bias, add, rows = 1, outputs, cols, scratch): out rows of f32. `bias` is 0 for none. */
export function matmul(format: PackedFormat, arithmetic: Arithmetic): Kernel {
  const k = new Kernel(matmulName(format, 'one'), Array(12).fill('i32'));
  const [x, w, out, bias, add, _rows, outputs, cols, scratch, chunk, chunks] = k.params.map((_, i) => k.i32Param(i));
  const blocks = k.i32(i32.shrU(cols, 5));
  const { from, to } = share(k, outputs, 4, chunk, chunks);
  const fourRows = k.i32(i32.mul(blocks, blockBytes(format)));
  const [sum, activations, block] = [k.v128(), k.i32(), k.i32()];
  const constants = holdConstants(k, scratch);
  const apart = k.i32(i32.mul(i32.divU(i32.add(i32.sub(to, from), 4 * STREAMS - 1), 4 * STREAMS), 4));
  k.for(from, i32.add(from, apart), 4, first => {
    k.for(first, i32.add(first, i32.mul(apart, STREAMS)), apart, o => {
      k.if(i32.ltS(o, to), () => {
        k.set(sum, v128.zero);
        k.set(activations, x);
        k.set(block, i32.add(w, i32.mul(i32.shrU(o, 2), fourRows)));
        k.for(0, blocks, 1, () => {
          addBlock(k, format, arithmetic, block, activations, sum, constants);
          k.increment(block, blockBytes(format));
          k.increment(activations, TILE[arithmetic.width].size);
        });
        storeOutputs(k, sum, out, 0, outputs, o, bias, add);
      });
    });
  });
  return k;
}

/**
 * V8 makes a constant anew wherever it is used, by three instructions. What comes from memory it keeps. All threads
 * write the same there.
 */
function holdConstants(k: Kernel, scratch: I32) {
  const hold = (constant: V128, n: number) => {
    k.do(v128.store(scratch, constant, 16 * n));
    return k.v128(v128.load(scratch, 16 * n));
  };
  return {
    nibble: hold(i8x16.const(15), 0),
    ones: hold(i16x8.const(1), 1),
    half: { bits: hold(HALF.bits, 2), scale: hold(HALF.scale, 3) },
  };
}

/** out[row][o...] = (out +) sum (+ bias): four of them, or as many as there are outputs left. */
export function storeOutputs(
  k: Kernel,
  sum: Local<'v128'>,
  out: I32,
  row: I32,
  outputs: I32,
  o: I32,
  bias: I32,
  add: I32,
): void {
  const at = k.i32(i32.add(out, i32.mul(i32.add(i32.mul(row, outputs), o), 4)));
  k.if(bias, () => k.set(sum, f32x4.add(sum, v128.load(i32.add(bias, i32.mul(o, 4))))));
  k.if(add, () => k.set(sum, f32x4.add(v128.load(at), sum)));
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
  arithmetic: Arithmetic,
  block: I32,
  activations: I32,
  sum: Local<'v128'>,
  { nibble, ones, half }: ReturnType<typeof holdConstants>,
): void {
  const bytes = arithmetic.width === 'bytes';
  const tile = TILE[arithmetic.width];
  const groups = 32 / format.group;
  const madd = multiplyAdd(arithmetic.fused);
  const codes = (bytes ? byteCodes : wordCodes)(k, format, block, nibble);
  const scales = scalesOf(k, format, block, half);
  const n = codes.length / groups;
  for (let g = 0; g < groups; g++) {
    const pairs = codes.slice(g * n, (g + 1) * n).map((code, i) => {
      return [v128.load(activations, 16 * (g * n + i)), code] as const;
    });
    const dot = bytes ? dotBytes(pairs, ones) : dotWords(pairs);
    const scaled = f32x4.mul(scales[g], v128.load(activations, tile.scales));
    k.set(sum, madd(scaled, f32x4.fromI32(dot), sum));
    if (!format.mins) continue;
    // The sums of a block's halves, and of all of it.
    const total = v128.load(activations, tile.sums + 16 * (format.group === 16 ? g : 2));
    k.set(sum, madd(scales[groups + g], total, sum));
  }
}

/** The scales of a block, one vector a group, then its minima. */
export function scalesOf(k: Kernel, format: PackedFormat, block: I32, half = HALF): V128[] {
  const count = scaleBytes(format) / 8;
  return Array.from({ length: Math.ceil(count / 2) }, (_, i) => k.v128(v128.load(block, 16 * i)))
    .flatMap(eight => [
      v128.shuffle(v128.zero, eight, lanes16(0, 8, 1, 9, 2, 10, 3, 11)),
      v128.shuffle(v128.zero, eight, lanes16(4, 12, 5, 13, 6, 14, 7, 15)),
    ])
    .slice(0, count)
    .map(high => highHalfToFloat(high, half));
}

type Pairs = readonly (readonly [activations: V128, codes: V128])[];

/** Activations and codes, multiplied and added. Codes are below 16: eight such products of pairs stay within int16. */
export const dotBytes = (pairs: Pairs, ones: V128 = i16x8.const(1)): V128 =>
  i32x4.dot(pairs.map(([x, codes]) => i16x8.relaxedDot(x, codes)).reduce(i16x8.add), ones);
const dotWords = (pairs: Pairs): V128 => pairs.map(([x, codes]) => i32x4.dot(codes, x)).reduce(i32x4.add);

/** The codes of a 4-bit block as eight vectors of four columns x four rows: low nibbles, then high ones. */
export function byteCodes(k: Kernel, format: PackedFormat, block: I32, nibble: V128): V128[] {
  const raw = [0, 1, 2, 3].map(i => k.v128(v128.load(block, scaleBytes(format) + 16 * i)));
  return [...raw.map(v => v128.and(v, nibble)), ...raw.map(v => v128.and(i16x8.shrU(v, 4), nibble))];
}

/** The codes of a block as sixteen vectors of two columns x four rows: columns 0 2, 1 3, 4 6, 5 7, ... */
export function wordCodes(k: Kernel, format: PackedFormat, block: I32, nibble: V128): V128[] {
  const four = format.bits === 4;
  const vectors = four
    ? byteCodes(k, format, block, nibble)
    : Array.from({ length: 8 }, (_, i) => v128.load(block, scaleBytes(format) + 16 * i));
  const shr = four ? i16x8.shrU : i16x8.shrS;
  return vectors.flatMap(vector => {
    const v = k.v128(vector);
    return [shr(i16x8.shl(v, 8), 8), shr(v, 8)];
  });
}

/** Weights that are floats: matmulF32, matmulF16, matmulBF16, with the same arguments but x rows of f32. */
export function floatMatmul(type: 'F32' | 'F16' | 'BF16'): Kernel {
  const k = new Kernel(`matmul${type}`, Array(12).fill('i32'));
  const [x, w, out, bias, add, rows, outputs, cols, _scratch, chunk, chunks] = k.params.map((_, i) => k.i32Param(i));
  const { from, to } = share(k, outputs, 1, chunk, chunks);
  const size = type === 'F32' ? 4 : 2;
  const load = (at: I32): V128 =>
    type === 'F32'
      ? v128.load(at)
      : type === 'F16'
        ? halfToFloat(v128.load16x4U(at))
        : i32x4.shl(v128.load16x4U(at), 16);
  k.for(from, to, 1, o => {
    const weights = k.i32(i32.add(w, i32.mul(i32.mul(o, cols), size)));
    k.for(0, rows, 1, row => {
      const source = k.i32(i32.add(x, i32.mul(i32.mul(row, cols), 4)));
      const sum = k.v128(v128.zero);
      k.for(0, cols, 4, i => {
        const product = f32x4.mul(v128.load(i32.add(source, i32.mul(i, 4))), load(i32.add(weights, i32.mul(i, size))));
        k.set(sum, f32x4.add(sum, product));
      });
      const at = k.i32(i32.add(out, i32.mul(i32.add(i32.mul(row, outputs), o), 4)));
      const total = k.v128(f32x4.splat(sum4(k, sum)));
      k.if(bias, () => k.set(total, f32x4.add(total, v128.load32Splat(i32.add(bias, i32.mul(o, 4))))));
      k.if(add, () => k.set(total, f32x4.add(v128.load32Splat(at), total)));
      k.do(i32.store(at, i32x4.lane(total, 0)));
    });
  });
  return k;
}
