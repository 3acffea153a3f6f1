/**
 * Matrix products: `rows` quantized activations times weights packed four rows a block (pack-weights.ts). A tile is
 * four outputs for T activations; each sum runs over the blocks in order, in the same operations whatever T is, so a
 * row's result does not depend on the batch it is in.
 */
import { f32x4, type I32, i8x16, i16x8, i32, i32x4, type Local, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { halfToFloat, loadHalf4, share, sum4 } from '../ops.ts';
import { blockBytes, type PackedFormat, scaleBytes } from '../pack-weights.ts';
import { tileBlockBytes } from './basic.ts';

export const matmulName = ({ bits, group, mins }: PackedFormat, tile: number) =>
  `matmul${bits}g${group}${mins ? 'm' : ''}x${tile}`;

/**
 * matmul(x, w, out, bias, add, rows, outputs, cols): x in tiles as kernels/basic.ts quantizes it, out rows of f32.
 * `bias` is 0 for none.
 */
export function matmul(format: PackedFormat, tile: number, relaxed: boolean): Kernel {
  const k = new Kernel(matmulName(format, tile), Array(11).fill('i32'));
  const [x, w, out, bias, add, rows, outputs, cols, chunk, chunks] = k.params.map((_, i) => k.i32Param(i));
  const blocks = k.i32(i32.shrU(cols, 5));
  const { from, to } = share(k, outputs, 4, chunk, chunks);
  const groupBytes = k.i32(i32.mul(blocks, blockBytes(format)));
  const acc = Array.from({ length: tile }, () => k.v128());
  const [activations, block] = [k.i32(), k.i32()];
  k.for(from, to, 4, o => {
    const weights = k.i32(i32.add(w, i32.mul(i32.shrU(o, 2), groupBytes)));
    k.set(activations, x);
    k.for(0, rows, tile, row => {
      for (const sum of acc) k.set(sum, v128.zero);
      k.set(block, weights);
      k.for(0, blocks, 1, () => {
        tileBlock(k, format, relaxed, block, activations, acc);
        k.increment(block, blockBytes(format));
        k.increment(activations, tileBlockBytes(tile));
      });
      acc.forEach((sum, t) => {
        const store = () => {
          const at = k.i32(i32.add(out, i32.mul(i32.add(i32.mul(i32.add(row, t), outputs), o), 4)));
          k.if(bias, () => k.set(sum, f32x4.add(sum, v128.load(i32.add(bias, i32.mul(o, 4))))));
          k.if(add, () => k.set(sum, f32x4.add(v128.load(at), sum)));
          store4(k, at, sum, i32.sub(outputs, o));
        };
        if (t === 0) store();
        else k.if(i32.ltS(i32.add(row, t), rows), store);
      });
    });
  });
  return k;
}

/** Four floats, or as many of them as there are outputs left. */
function store4(k: Kernel, at: I32, value: Local<'v128'>, left: I32): void {
  k.if(
    i32.geS(left, 4),
    () => k.do(v128.store(at, value)),
    () => {
      for (let lane = 0; lane < 3; lane++) {
        k.if(i32.gtS(left, lane), () => k.do(i32.store(at, i32x4.lane(value, lane), 4 * lane)));
      }
    },
  );
}

/** acc += scale x activation scale x integer dot (+ min x sum of activations), for one block and every row of a tile. */
function tileBlock(
  k: Kernel,
  format: PackedFormat,
  relaxed: boolean,
  block: I32,
  activations: I32,
  acc: Local<'v128'>[],
): void {
  const groups = 32 / format.group;
  const codes = scaleBytes(format);
  const tile = acc.length;
  for (let g = 0; g < groups; g++) {
    const dot =
      format.bits === 4 ? nibbles(k, block, codes, format.group, g, relaxed) : bytes(block, codes, format.group, g);
    const scale = k.v128(loadHalf4(block, 8 * g));
    const min = format.mins ? k.v128(loadHalf4(block, 8 * (groups + g))) : undefined;
    acc.forEach((sum, t) => {
      const [byteAt, scaleAt, wordAt] = [32 * t, 32 * tile + 16 * t, 48 * tile + 64 * t];
      const scaled = f32x4.mul(scale, v128.load32Splat(activations, scaleAt));
      k.set(sum, f32x4.add(sum, f32x4.mul(scaled, f32x4.fromI32(dot(activations, byteAt, wordAt)))));
      if (!min) return;
      // The sums of a block's halves, and of all of it, lie behind its scale.
      const total = v128.load32Splat(activations, scaleAt + 4 + 4 * (format.group === 16 ? g : 2));
      k.set(sum, f32x4.add(sum, f32x4.mul(min, total)));
    });
  }
}

/** The integer dots of a block's four rows with one activation row, whose int8 and int16 lie at these offsets. */
type BlockDot = (activations: I32, byteAt: number, wordAt: number) => V128;

/** The low nibbles are the first 16 columns of the block, the high ones the rest: a group of 16 is one of the two. */
function nibbles(k: Kernel, block: I32, codes: number, group: number, g: number, relaxed: boolean): BlockDot {
  const halves = group === 32 ? [0, 1] : [g];
  const mask = k.v128(i8x16.const(15));
  const vectors = [0, 1, 2, 3].flatMap(i => {
    const raw = k.v128(v128.load(block, codes + 16 * i));
    return halves.map(half => ({
      column: 16 * half + 4 * i,
      codes: k.v128(half ? v128.and(i16x8.shrU(raw, 4), mask) : v128.and(raw, mask)),
    }));
  });
  if (relaxed) {
    return (activations, byteAt) => {
      // Codes are below 16 and activations int8: eight such products of pairs stay within int16.
      const products = vectors.map(({ column, codes }) =>
        i16x8.relaxedDot(v128.load32Splat(activations, byteAt + column), codes),
      );
      return i32x4.dot(products.reduce(i16x8.add), i16x8.const(1));
    };
  }
  // Bytes b and b + 1 of a row's four are the halves of a 16-bit lane: split them, and pair activations to match.
  const even = vectors.map(({ column, codes }) => ({ column, codes: k.v128(v128.and(codes, i16x8.const(0xff))) }));
  const odd = vectors.map(({ column, codes }) => ({ column, codes: k.v128(i16x8.shrU(codes, 8)) }));
  return (activations, _byteAt, wordAt) => {
    const pair = (column: number, parity: 0 | 1) => v128.load32Splat(activations, wordAt + 2 * column + 4 * parity);
    const dots = [
      ...even.map(({ column, codes }) => i32x4.dot(codes, pair(column, 0))),
      ...odd.map(({ column, codes }) => i32x4.dot(codes, pair(column, 1))),
    ];
    return dots.reduce(i32x4.add);
  };
}

function bytes(block: I32, codes: number, group: number, g: number): BlockDot {
  const chunks = Array.from({ length: group / 2 }, (_, i) => (g * group) / 2 + i);
  return (activations, _byteAt, wordAt) =>
    chunks
      .map(i => i32x4.dot(v128.load8x8S(block, codes + 8 * i), v128.load32Splat(activations, wordAt + 4 * i)))
      .reduce(i32x4.add);
}

/** Weights that are floats: matmulF32, matmulF16, matmulBF16, with the same arguments but x rows of f32. */
export function floatMatmul(type: 'F32' | 'F16' | 'BF16'): Kernel {
  const k = new Kernel(`matmul${type}`, Array(11).fill('i32'));
  const [x, w, out, bias, add, rows, outputs, cols, chunk, chunks] = k.params.map((_, i) => k.i32Param(i));
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
