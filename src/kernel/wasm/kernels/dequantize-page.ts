/**
 * Dequantizes one head of any codec's page to f32 [token][codedDim], for codecs without specialized attention loops.
 */
import type { PageEncoding, PageLayout, PageShape, ScalarArray } from '../../page-layout.ts';
import { unpackGrid } from '../code-grid.ts';
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, index, lanes16, v128 } from '../emit.ts';
import { Kernel, signature } from '../module.ts';
import { loadF16, loadF16x4 } from '../ops.ts';
import { type AdditiveTables, dequantizeAdditive } from './additive.ts';
import type { DequantizeContext, PageHead } from './head-context.ts';
import { dequantizeMixedBits } from './mixed-bit-columns.ts';
import { dequantizeOaken } from './oaken.ts';
import { addMeans } from './page-means.ts';
import { type CodebookTables, dequantizeCodebook } from './product-codebook.ts';
import { dequantizeSpectrum } from './spectrum.ts';

/** Addresses of the tables of a `PageLayout`; f32 arrays unless noted. */
export interface CodecTables {
  queryMatrix?: number;
  encodeMatrix?: number;
  mean?: number;
  /** Of `levels`, or of a hybrid's parts and RESIDUAL_SIGNS. */
  levels: number[];
  /** Projection of the residual. */
  residual?: number;
  /** Values of all 256 codes. */
  fp8?: number;
  additive?: AdditiveTables;
  /** See mixed-bit-columns.ts. */
  mixedColumns?: number;
  books?: CodebookTables;
  /** cos and sin per token of a page and pair. */
  tokenRope?: number;
}

export const loadScalar = ({ bytes }: ScalarArray, address: I32): F32 =>
  bytes === 2 ? loadF16(address) : f32.load(address);

export const blockAddress = ({ sharedBytes, blockBytes }: PageLayout, { page, head }: PageHead): I32 =>
  index(i32.add(page, sharedBytes), blockBytes, head);

/** Called from other kernels. `codes` is scratch of two bytes per value. */
export function dequantizePage(name: string, layout: PageLayout, shape: PageShape, tables: CodecTables) {
  const k = new Kernel(signature(name, 'page', 'head', 'codes', 'out'));
  const { codes, out } = k.params;
  const block = k.i32(blockAddress(layout, k.params));
  const { headDim: D, pageTokens: P } = shape;
  const context: DequantizeContext = { k, shape, block, ...k.params };
  const { encoding } = layout;
  switch (encoding.kind) {
    case 'f16':
      k.for(0, P * D, 4, i => {
        k.do(v128.store(index(out, 4, i), loadF16x4(index(block, 2, i))));
      });
      break;
    case 'fp8':
      k.for(0, P * D, 1, i => {
        const code = i32.load8U(i32.add(block, i));
        k.do(f32.store(index(out, 4, i), f32.load(i32.mul(code, 4), tables.fp8)));
      });
      break;
    case 'q8_0':
    case 'q4_0':
      dequantizeQBlocks(context, encoding.kind);
      break;
    case 'levels':
      unpackGrid(k, { ...encoding.codes, tokens: P, dims: D }, block, codes);
      k.for(0, P, 1, t => {
        const norm = k.f32(loadTokenScalar(encoding.norms, block, t));
        lookupLevels(k, index(codes, D, t), D, encoding.levels, tables.levels[0], norm, index(out, 4 * D, t));
      });
      break;
    case 'hybrid':
      dequantizeHybrid(context, encoding, layout.codedDim, tables);
      break;
    case 'book':
      dequantizeCodebook(context, encoding, tables.books!);
      break;
    case 'oaken':
      dequantizeOaken(context, encoding);
      break;
    case 'spectrum':
      dequantizeSpectrum(context, encoding, tables.tokenRope!);
      break;
    case 'affine':
      dequantizeAffine(context, encoding);
      break;
    case 'additive':
      dequantizeAdditive(context, tables.additive!);
      break;
    case 'mixed':
      dequantizeMixedBits(context, tables.mixedColumns!);
      break;
    default:
      encoding satisfies never;
  }
  addMeans(k, layout, shape, k.params, out);
  return k;
}

const loadTokenScalar = (scalars: ScalarArray, base: I32, token: I32): F32 =>
  loadScalar(scalars, index(i32.add(base, scalars.offset), scalars.bytes, token));

/** out[i] = norm x levels[code[i]]; `table` is the address of the levels. */
function lookupLevels(
  k: Kernel,
  codes: I32,
  count: number,
  levels: Float32Array,
  table: number,
  norm: F32,
  out: I32,
): void {
  const [from, to] = [k.i32(codes), k.i32(out)];
  if (levels.length <= 16 && count % 16 === 0) {
    // A table for each byte of a level, which one swizzle reads for 16 codes.
    const bytes = new Uint8Array(levels.slice().buffer);
    const byteTable = (byte: number) => Array.from({ length: 16 }, (_, code) => bytes[4 * code + byte] ?? 0);
    const tables = [0, 1, 2, 3].map(byte => k.v128(i8x16.const(...byteTable(byte))));
    const [code, factor] = [k.v128(), k.v128(f32x4.splat(norm))];
    k.for(0, count, 16, () => {
      k.set(code, v128.load(from));
      const [a, b, c, d] = tables.map(table => k.v128(i8x16.swizzle(table, code)));
      for (const half of [0, 8]) {
        const bytePairs = Array.from({ length: 8 }, (_, i) => [half + i, half + i + 16]).flat();
        const [low, high] = [k.v128(v128.shuffle(a, b, bytePairs)), k.v128(v128.shuffle(c, d, bytePairs))];
        for (const quarter of [0, 4]) {
          const words = lanes16(...Array.from({ length: 4 }, (_, i) => [quarter + i, quarter + i + 8]).flat());
          k.do(v128.store(to, f32x4.mul(v128.shuffle(low, high, words), factor), 4 * (half + quarter)));
        }
      }
      k.increment(from, 16);
      k.increment(to, 64);
    });
    return;
  }
  k.for(0, count, 1, i => {
    const level = f32.load(i32.mul(i32.load8U(i32.add(from, i)), 4), table);
    k.do(f32.store(index(to, 4, i), f32.mul(level, norm)));
  });
}

/** Values per block of q8_0 and q4_0, and the bytes of a block. */
export const Q_BLOCK = { values: 32, q8_0: 34, q4_0: 18 };

function dequantizeQBlocks(
  { k, shape: { headDim, pageTokens }, block, out }: DequantizeContext,
  type: 'q8_0' | 'q4_0',
): void {
  const from = k.i32(block);
  const to = k.i32(out);
  const scale = k.v128();
  const bytes = k.v128();
  k.for(0, (pageTokens * headDim) / Q_BLOCK.values, 1, () => {
    k.set(scale, f32x4.splat(loadF16(from)));
    if (type === 'q8_0') {
      for (let i = 0; i < 32; i += 8) {
        k.set(bytes, v128.load8x8S(from, 2 + i));
        k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendLowS(bytes))), 4 * i));
        k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendHighS(bytes))), 4 * i + 16));
      }
    } else {
      const nibbles = k.v128();
      [0, 1].forEach(high => {
        k.set(bytes, v128.load(from, 2));
        k.set(nibbles, i8x16.sub(v128.and(high ? i16x8.shrU(bytes, 4) : bytes, i8x16.const(15)), i8x16.const(8)));
        [i16x8.extendLowS(nibbles), i16x8.extendHighS(nibbles)].forEach((eight, n) => {
          const at = 64 * high + 32 * n;
          k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendLowS(eight))), at));
          k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendHighS(eight))), at + 16));
        });
      });
    }
    k.increment(from, Q_BLOCK[type]);
    k.increment(to, 4 * Q_BLOCK.values);
  });
}

/** What a sign bit of a hybrid's residual means. */
export const RESIDUAL_SIGNS = Float32Array.of(-1, 1);

function dequantizeHybrid(
  { k, shape: { headDim, pageTokens: P }, block, codes, out }: DequantizeContext,
  encoding: PageEncoding & { kind: 'hybrid' },
  codedDim: number,
  tables: CodecTables,
): void {
  encoding.parts.forEach(({ codes: grid, firstDim, endDim, levels }, n) => {
    unpackGrid(k, { ...grid, tokens: P, dims: endDim - firstDim }, block, codes);
    k.for(0, P, 1, t => {
      const norm = k.f32(loadTokenScalar(encoding.norms, block, t));
      const to = i32.add(index(out, 4 * codedDim, t), 4 * firstDim);
      const dims = endDim - firstDim;
      lookupLevels(k, index(codes, dims, t), dims, levels, tables.levels[n], norm, to);
    });
  });
  const { residual } = encoding;
  if (!residual) return;
  unpackGrid(k, { ...residual.signs, tokens: P, dims: headDim }, block, codes);
  k.for(0, P, 1, t => {
    const magnitude = k.f32(f32.mul(f32.const(residual.gain), loadTokenScalar(residual.norms, block, t)));
    const to = i32.add(index(out, 4 * codedDim, t), 4 * headDim);
    lookupLevels(
      k,
      index(codes, headDim, t),
      headDim,
      RESIDUAL_SIGNS,
      tables.levels[encoding.parts.length],
      magnitude,
      to,
    );
  });
}

function dequantizeAffine(
  { k, shape: { headDim: D, pageTokens: P }, page, block, codes, out }: DequantizeContext,
  encoding: PageEncoding & { kind: 'affine' },
): void {
  const { norms, axis, groupSize } = encoding;
  unpackGrid(k, { ...encoding.codes, tokens: P, dims: D }, block, codes);
  const ranges = k.i32(i32.add(block, encoding.rangesOffset));
  k.for(0, P, 1, t => {
    const norm = k.f32(norms ? loadTokenScalar(norms, norms.per === 'page' ? page : block, t) : f32.const(1));
    const row = k.i32(
      i32.add(ranges, axis === 'channel' ? i32.mul(i32.divU(t, groupSize), 4 * D) : i32.mul(t, (4 * D) / groupSize)),
    );
    const from = k.i32(index(codes, D, t));
    const to = k.i32(index(out, 4 * D, t));
    const range = k.i32();
    k.for(0, D, 1, i => {
      k.set(range, i32.add(row, axis === 'channel' ? i32.mul(i, 4) : i32.mul(i32.divU(i, groupSize), 4)));
      const value = f32.add(loadF16(range), f32.mul(f32.fromI32(i32.load8U(i32.add(from, i))), loadF16(range, 2)));
      k.do(f32.store(index(to, 4, i), f32.mul(norm, value)));
    });
  });
}
