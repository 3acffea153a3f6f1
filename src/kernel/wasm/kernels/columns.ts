/** Columns of narrow codes, 16 tokens at a time: which vectors to load, and which bits of them. */
import type { GridFragment } from '../../fragment.ts';
import { type I32, i8x16, i16x8, i32, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { countFromLowest } from './code-rows.ts';

interface Plane {
  width: number;
  shift: number;
  /** Of its first byte in a head's block. */
  offset: number;
  /** Bytes from a vector of a column to its next one. */
  strip: number;
}

/** Bytes of a vector, and from a column to the next. */
export const VECTOR = 16;

export interface Columns {
  /** How many columns there are: one a dim, or one for two dims. */
  count: number;
  /** Dims a column. */
  dims: 1 | 2;
  /** Tokens that whole vectors of every plane hold. */
  span: number;
  planes: Plane[];
}

/** The columns of a grid, if its lines are whole vectors. */
export function columnsOf({ bits, order, offset }: GridFragment, tokens: number, headDim: number): Columns | undefined {
  if (order === 'rows' || bits > 4) return undefined;
  const dims = order === 'pairs' ? 2 : 1;
  const count = headDim / dims;
  const planes: Plane[] = [];
  let at = offset;
  let shift = 0;
  for (const width of order === 'pairs' ? [4] : [4, 2, 1].filter(w => bits & w)) {
    const lineBytes = (tokens * width) / 8;
    if (lineBytes % VECTOR !== 0) return undefined;
    planes.push({ width, shift, offset: at, strip: count * VECTOR });
    at += count * lineBytes;
    shift += width;
  }
  return { count, dims, span: Math.max(...planes.map(({ width }) => 128 / width)), planes };
}

/** The codes of a whole span of one column, 16 tokens a vector. Those of two's complement are counted from the lowest. */
export function spanCodes(
  k: Kernel,
  { planes, span }: Pick<Columns, 'planes' | 'span'>,
  addresses: readonly Local<'i32'>[],
  complement: boolean,
): V128[] {
  const raws = planes.map((plane, p) =>
    Array.from({ length: (span * plane.width) / 128 }, (_, b) => {
      const raw = v128.load(addresses[p], plane.strip * b);
      return k.v128(complement ? countFromLowest(planes, plane, raw) : raw);
    }),
  );
  return Array.from({ length: span / 16 }, (_, n) =>
    planes.map((plane, p) => partOf(plane, raws[p][Math.floor((n * plane.width) / 8)], n)).reduce(v128.or),
  );
}

/** The codes of vectors n and n + 1 of a span, n even, of a column of one plane. */
export function spanPair(k: Kernel, { planes: [plane] }: Columns, address: I32, n: number): V128[] {
  const raw = k.v128(v128.load(address, plane.strip * Math.floor((n * plane.width) / 8)));
  return [partOf(plane, raw, n), partOf(plane, raw, n + 1)];
}

/** One plane's bits of the codes of 16 tokens, number `n` of those in a vector. */
function partOf({ width, shift }: Plane, raw: V128, n: number): V128 {
  const down = (n % (8 / width)) * width;
  const part = v128.and(down === 0 ? raw : i16x8.shrU(raw, down), i8x16.const(2 ** width - 1));
  return shift === 0 ? part : i16x8.shl(part, shift);
}

/** One running address a plane, at a column and a token (a multiple of the span). */
export function columnAddresses(
  k: Kernel,
  { planes }: Pick<Columns, 'planes'>,
  block: I32,
  column: I32,
  token: I32,
): Local<'i32'>[] {
  return planes.map(plane => k.i32(i32.add(spanAt(plane, block, token), i32.mul(column, VECTOR))));
}

/** Where the first column has its codes from a token on (a multiple of the span). */
export const spanAt = ({ offset, width, strip }: Plane, block: I32, token: I32): I32 =>
  i32.add(i32.add(block, offset), i32.mul(i32.divU(i32.mul(token, width), 8 * VECTOR), strip));
