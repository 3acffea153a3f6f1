/** Reads rows of codes as vectors of bytes, 16 dims each. codec/pack.ts defines the layout. */
import type { CodeGrid } from '../../page-layout.ts';
import { type Plane, planesOf } from '../code-grid.ts';
import { type I32, i8x16, i16x8, i32, index, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';

interface RowPlane extends Plane {
  /** Bytes per block; blocks of 8 bytes are loaded into both halves of a vector. */
  blockBytes: number;
  /** Bytes from one block of a row to its next. Tokens t and t + 1 are a quarter of it apart, t and t + 4 one block. */
  stripBytes: number;
}

export type CodeRows = readonly RowPlane[];

/** The planes of a grid of rows of 2 to 4 bits; undefined if blocks are smaller than 8 bytes. */
export function codeRows(grid: CodeGrid, tokens: number, headDim: number): CodeRows | undefined {
  if (grid.order !== 'rows' || grid.bits < 2 || grid.bits > 4 || headDim % 16 !== 0) return undefined;
  const planes = planesOf({ ...grid, tokens, dims: headDim }).map(plane => {
    const rowBytes = (headDim * plane.width) / 8;
    const blockBytes = Math.min(16, rowBytes & -rowBytes);
    return { ...plane, blockBytes, stripBytes: blockBytes * tokens };
  });
  return planes.every(({ blockBytes }) => blockBytes >= 8) ? planes : undefined;
}

/** One address per plane, of the first of four tokens. */
export const rowAddresses = (k: Kernel, rows: CodeRows, block: I32, token: I32): Local<'i32'>[] =>
  rows.map(({ offset, blockBytes }) => k.i32(index(i32.add(block, offset), blockBytes / 4, token)));

/**
 * Codes of token `r` of the four at the addresses: `vectors` vectors of 16 dims from vector `first` on. Two's
 * complement codes become offset binary.
 */
export function rowCodes(
  k: Kernel,
  rows: CodeRows,
  addresses: readonly Local<'i32'>[],
  r: number,
  [first, vectors]: readonly [number, number],
  twosComplement: boolean,
): V128[] {
  const parts = rows.map((plane, p) => {
    const { width, shift, blockBytes, stripBytes } = plane;
    const load = blockBytes === 16 ? v128.load : v128.load64Splat;
    const down = (x: V128, by: number) => (by === 0 ? x : i16x8.shrU(x, by));
    const mask = 2 ** width - 1;
    // A block holds runs of `blockBytes` codes, one run per `width` bits of its bytes.
    const runs = 8 / width;
    const blocks = new Map<number, V128>();
    const blockOf = (b: number) => {
      const raw = load(addresses[p], (b + r / 4) * stripBytes);
      const block = blocks.get(b) ?? k.v128(twosComplement ? toOffsetBinary(rows, plane, raw) : raw);
      blocks.set(b, block);
      return block;
    };
    return Array.from({ length: vectors }, (_, v) => {
      const run = (16 / blockBytes) * (first + v);
      const [raw, bit] = [blockOf(Math.floor(run / runs)), (run % runs) * width];
      const part =
        blockBytes === 16
          ? v128.and(down(raw, bit), i8x16.const(mask))
          : v128.or(
              v128.and(down(raw, bit), lowHighMask(mask, 0)),
              v128.and(down(raw, bit + width), lowHighMask(0, mask)),
            );
      return shift === 0 ? part : i16x8.shl(part, shift);
    });
  });
  return parts.reduce((a, b) => a.map((low, v) => v128.or(low, b[v])));
}

/** Two's complement to offset binary: flips the highest bit of each code, which is in the last plane. */
export const toOffsetBinary = <P extends { width: number }>(planes: readonly P[], plane: P, raw: V128): V128 =>
  plane === planes[planes.length - 1] ? v128.xor(raw, i8x16.const(HIGHEST_BITS[plane.width])) : raw;
const HIGHEST_BITS: Record<number, number> = { 1: 0xff, 2: 0xaa, 4: 0x88 };

const lowHighMask = (low: number, high: number) => i8x16.const(...Array(8).fill(low), ...Array(8).fill(high));
