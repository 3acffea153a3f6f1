/** Reads columns of codes of up to 4 bits, 16 tokens per vector. codec/pack.ts defines the layout. */
import type { CodeGrid } from '../../page-layout.ts';
import { type Plane, planesOf } from '../code-grid.ts';
import { type I32, i8x16, i16x8, i32, index, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { toOffsetBinary } from './code-rows.ts';

interface ColumnPlane extends Plane {
  /** Bytes from one vector of a column to the next. */
  stripBytes: number;
}

/** Bytes of a vector, and from one column to the next. */
export const VECTOR_BYTES = 16;

export interface CodeColumns {
  /** Number of columns. */
  count: number;
  /** Dims per column. */
  dims: 1 | 2;
  /** The smallest number of tokens that fills whole vectors of every plane. */
  span: number;
  planes: ColumnPlane[];
}

/** The columns of a grid; undefined if they are not whole vectors. */
export function codeColumns(grid: CodeGrid, tokens: number, headDim: number): CodeColumns | undefined {
  if (grid.order === 'rows' || grid.bits > 4) return undefined;
  const dims = grid.order === 'pairs' ? 2 : 1;
  const count = headDim / dims;
  const stripBytes = count * VECTOR_BYTES;
  const planes = planesOf({ ...grid, tokens, dims: headDim }).map(plane => ({ ...plane, stripBytes }));
  if (planes.some(({ width }) => ((tokens * width) / 8) % VECTOR_BYTES !== 0)) return undefined;
  return { count, dims, span: Math.max(...planes.map(({ width }) => 128 / width)), planes };
}

/** The codes of one span of a column, 16 tokens per vector. Two's complement codes become offset binary. */
export function spanCodes(
  k: Kernel,
  { planes, span }: Pick<CodeColumns, 'planes' | 'span'>,
  addresses: readonly Local<'i32'>[],
  twosComplement: boolean,
): V128[] {
  const raws = planes.map((plane, p) =>
    Array.from({ length: (span * plane.width) / 128 }, (_, b) => {
      const raw = v128.load(addresses[p], plane.stripBytes * b);
      return k.v128(twosComplement ? toOffsetBinary(planes, plane, raw) : raw);
    }),
  );
  return Array.from({ length: span / 16 }, (_, n) =>
    planes.map((plane, p) => planeCodes(plane, raws[p][Math.floor((n * plane.width) / 8)], n)).reduce(v128.or),
  );
}

/** The codes of vectors n and n + 1 (n even) of a span, for a column of one plane. */
export function spanPair(k: Kernel, { planes: [plane] }: CodeColumns, address: I32, n: number): V128[] {
  const raw = k.v128(v128.load(address, plane.stripBytes * Math.floor((n * plane.width) / 8)));
  return [planeCodes(plane, raw, n), planeCodes(plane, raw, n + 1)];
}

/** One plane's bits of the codes of 16 tokens: the `n`th 16 tokens of a span. */
function planeCodes({ width, shift }: Plane, raw: V128, n: number): V128 {
  const down = (n % (8 / width)) * width;
  const part = v128.and(down === 0 ? raw : i16x8.shrU(raw, down), i8x16.const(2 ** width - 1));
  return shift === 0 ? part : i16x8.shl(part, shift);
}

/** One address per plane, of a column's codes from `token` on (a multiple of the span). */
export function columnAddresses(
  k: Kernel,
  { planes }: Pick<CodeColumns, 'planes'>,
  block: I32,
  column: I32,
  token: I32,
): Local<'i32'>[] {
  return planes.map(plane => k.i32(index(spanAddress(plane, block, token), VECTOR_BYTES, column)));
}

/** Address of the first column's codes from `token` on (a multiple of the span). */
export const spanAddress = ({ offset, width, stripBytes }: ColumnPlane, block: I32, token: I32): I32 =>
  index(i32.add(block, offset), stripBytes, i32.divU(i32.mul(token, width), 8 * VECTOR_BYTES));
