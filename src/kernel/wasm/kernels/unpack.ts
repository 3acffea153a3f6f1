/** Any codec's page to floats: one head's coded vectors, [token][codedDim]. What codecs without a loop of their own use. */
import type { Fragment, PageFragment, ScalarsFragment } from '../../fragment.ts';
import { type F32, f32, f32x4, type I32, i8x16, i16x8, i32, i32x4, v128 } from '../emit.ts';
import { unpackGrid } from '../grid.ts';
import { Kernel } from '../module.ts';
import { loadHalf, loadHalf4 } from '../ops.ts';
import { type AdditiveTables, unpackAdditive } from './additive.ts';
import { type Books, unpackBook } from './book.ts';
import { unpackMixed } from './mixed.ts';
import { unpackOaken } from './oaken.ts';
import { unpackSpectrum } from './spectrum.ts';

export interface PageShape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
}

/** Tables that a fragment reads, by what they are: addresses of f32 arrays. */
export interface Tables {
  matrix?: number;
  encodeMatrix?: number;
  mean?: number;
  levels: number[];
  /** The residual's projection. */
  residual?: number;
  /** f32 of all 256 codes. */
  fp8?: number;
  additive?: AdditiveTables;
  /** See mixed.ts. */
  columns?: number;
  books?: Books;
  /** cos and sin of every token and pair of a page. */
  turns?: number;
}

export const loadScalar = ({ bytes }: ScalarsFragment, address: I32): F32 =>
  bytes === 2 ? loadHalf(address) : f32.load(address);

/** The address of a head's block. */
export const blockAt = ({ sharedBytes, blockBytes }: Fragment, page: I32, head: I32): I32 =>
  i32.add(i32.add(page, sharedBytes), i32.mul(head, blockBytes));

/** unpack(page, head, codes, out): `codes` is room for two bytes a value. */
export function unpack(name: string, fragment: Fragment, shape: PageShape, tables: Tables): Kernel {
  const k = new Kernel(name, Array(4).fill('i32'));
  const [page, head, codes, out] = k.params.map((_, i) => k.i32Param(i));
  const block = k.i32(blockAt(fragment, page, head));
  const { headDim: D, pageTokens: P } = shape;
  const kind = fragment.page;
  switch (kind.kind) {
    case 'f16':
      k.for(0, P * D, 4, i => {
        k.do(v128.store(i32.add(out, i32.mul(i, 4)), loadHalf4(i32.add(block, i32.mul(i, 2)))));
      });
      break;
    case 'fp8':
      k.for(0, P * D, 1, i => {
        const code = i32.load8U(i32.add(block, i));
        k.do(f32.store(i32.add(out, i32.mul(i, 4)), f32.load(i32.mul(code, 4), tables.fp8)));
      });
      break;
    case 'q8_0':
    case 'q4_0':
      unpackBlocks(k, kind.kind, (P * D) / 32, block, out);
      break;
    case 'levels':
      unpackGrid(k, { ...kind.codes, tokens: P, dims: D }, block, codes);
      k.for(0, P, 1, t => {
        const norm = k.f32(scalarAt(kind.norms, block, t));
        lookUp(k, i32.add(codes, i32.mul(t, D)), D, tables.levels[0], norm, i32.add(out, i32.mul(t, 4 * D)));
      });
      break;
    case 'hybrid':
      unpackHybrid(k, kind, fragment.codedDim, shape, tables, block, codes, out);
      break;
    case 'book':
      unpackBook(k, kind, shape, tables.books!, block, head, codes, out);
      break;
    case 'oaken':
      unpackOaken(k, kind, shape, page, block, head, codes, out);
      break;
    case 'spectrum':
      unpackSpectrum(k, kind, shape, tables.turns!, block, codes, out);
      break;
    case 'affine':
      unpackAffine(k, kind, shape, page, block, codes, out);
      break;
    case 'additive':
      unpackAdditive(k, tables.additive!, D, P, page, head, out);
      break;
    case 'mixed':
      unpackMixed(k, tables.columns!, D, P, page, head, codes, out);
      break;
  }
  return k;
}

const scalarAt = (scalars: ScalarsFragment, base: I32, token: I32): F32 =>
  loadScalar(scalars, i32.add(i32.add(base, scalars.offset), i32.mul(token, scalars.bytes)));

/** out[i] = norm x table[code[i]]. */
function lookUp(k: Kernel, codes: I32, count: number, table: number, norm: F32, out: I32): void {
  const [from, to] = [k.i32(codes), k.i32(out)];
  k.for(0, count, 1, i => {
    const level = f32.load(i32.mul(i32.load8U(i32.add(from, i)), 4), table);
    k.do(f32.store(i32.add(to, i32.mul(i, 4)), f32.mul(level, norm)));
  });
}

function unpackBlocks(k: Kernel, type: 'q8_0' | 'q4_0', count: number, block: I32, out: I32): void {
  const from = k.i32(block);
  const to = k.i32(out);
  const scale = k.v128();
  const bytes = k.v128();
  k.for(0, count, 1, () => {
    k.set(scale, f32x4.splat(loadHalf(from)));
    if (type === 'q8_0') {
      for (let i = 0; i < 32; i += 8) {
        k.set(bytes, v128.load8x8S(from, 2 + i));
        k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendLowS(bytes))), 4 * i));
        k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendHighS(bytes))), 4 * i + 16));
      }
    } else {
      const nibbles = k.v128();
      [0, 1].forEach(half => {
        k.set(bytes, v128.load(from, 2));
        k.set(nibbles, i8x16.sub(v128.and(half ? i16x8.shrU(bytes, 4) : bytes, i8x16.const(15)), i8x16.const(8)));
        [i16x8.extendLowS(nibbles), i16x8.extendHighS(nibbles)].forEach((eight, n) => {
          const at = 64 * half + 32 * n;
          k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendLowS(eight))), at));
          k.do(v128.store(to, f32x4.mul(scale, f32x4.fromI32(i32x4.extendHighS(eight))), at + 16));
        });
      });
    }
    k.increment(from, type === 'q8_0' ? 34 : 18);
    k.increment(to, 128);
  });
}

function unpackHybrid(
  k: Kernel,
  kind: PageFragment & { kind: 'hybrid' },
  codedDim: number,
  { headDim, pageTokens: P }: PageShape,
  tables: Tables,
  block: I32,
  codes: I32,
  out: I32,
): void {
  kind.parts.forEach(({ codes: grid, first, end }, n) => {
    unpackGrid(k, { ...grid, tokens: P, dims: end - first }, block, codes);
    k.for(0, P, 1, t => {
      const norm = k.f32(scalarAt(kind.norms, block, t));
      const to = i32.add(i32.add(out, i32.mul(t, 4 * codedDim)), 4 * first);
      lookUp(k, i32.add(codes, i32.mul(t, end - first)), end - first, tables.levels[n], norm, to);
    });
  });
  const { residual } = kind;
  if (!residual) return;
  unpackGrid(k, { ...residual.signs, tokens: P, dims: headDim }, block, codes);
  k.for(0, P, 1, t => {
    const size = k.f32(f32.mul(f32.const(residual.gain), scalarAt(residual.norms, block, t)));
    const from = k.i32(i32.add(codes, i32.mul(t, headDim)));
    const to = k.i32(i32.add(i32.add(out, i32.mul(t, 4 * codedDim)), 4 * headDim));
    k.for(0, headDim, 1, i => {
      const signed = f32.select(i32.load8U(i32.add(from, i)), size, f32.neg(size));
      k.do(f32.store(i32.add(to, i32.mul(i, 4)), signed));
    });
  });
}

function unpackAffine(
  k: Kernel,
  kind: PageFragment & { kind: 'affine' },
  { headDim: D, pageTokens: P }: PageShape,
  page: I32,
  block: I32,
  codes: I32,
  out: I32,
): void {
  const { norms, axis, group } = kind;
  unpackGrid(k, { ...kind.codes, tokens: P, dims: D }, block, codes);
  const ranges = k.i32(i32.add(block, kind.ranges));
  k.for(0, P, 1, t => {
    const norm = k.f32(norms ? scalarAt(norms, norms.per === 'page' ? page : block, t) : f32.const(1));
    const row = k.i32(
      i32.add(ranges, axis === 'channel' ? i32.mul(i32.divU(t, group), 4 * D) : i32.mul(t, (4 * D) / group)),
    );
    const from = k.i32(i32.add(codes, i32.mul(t, D)));
    const to = k.i32(i32.add(out, i32.mul(t, 4 * D)));
    const range = k.i32();
    k.for(0, D, 1, i => {
      k.set(range, i32.add(row, axis === 'channel' ? i32.mul(i, 4) : i32.mul(i32.divU(i, group), 4)));
      const value = f32.add(loadHalf(range), f32.mul(f32.fromI32(i32.load8U(i32.add(from, i))), loadHalf(range, 2)));
      k.do(f32.store(i32.add(to, i32.mul(i, 4)), f32.mul(norm, value)));
    });
  });
}
