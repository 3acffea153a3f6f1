/** Codes in rows, as codec/pack.ts lays them out: a token's codes as vectors of bytes, 16 dims each. */
import type { GridFragment } from '../../fragment.ts';
import { type I32, i8x16, i16x8, i32, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';

interface Plane {
  width: number;
  /** Of its bits in a code. */
  shift: number;
  /** Of its first byte in a head's block. */
  offset: number;
  /** Bytes of a block: 8 are loaded twice, side by side. */
  lane: number;
  /** Bytes from a row's block to its next one. Four neighbours lie a quarter of it apart, and the next four a block on. */
  strip: number;
}

export type CodeRows = readonly Plane[];

/** The planes of rows of 2 to 4 bits, if these are blocks of 16 or 8 bytes. */
export function codeRowsOf(
  { bits, order, offset }: GridFragment,
  tokens: number,
  headDim: number,
): CodeRows | undefined {
  if (order !== 'rows' || bits < 2 || bits > 4 || headDim % 16 !== 0) return undefined;
  const planes: Plane[] = [];
  let [at, shift] = [offset, 0];
  for (const width of [4, 2, 1].filter(w => bits & w)) {
    const rowBytes = (headDim * width) / 8;
    const lane = Math.min(16, rowBytes & -rowBytes);
    planes.push({ width, shift, offset: at, lane, strip: lane * tokens });
    at += tokens * rowBytes;
    shift += width;
  }
  return planes.every(({ lane }) => lane >= 8) ? planes : undefined;
}

/** One running address a plane, at the first of four tokens. */
export const rowAddresses = (k: Kernel, rows: CodeRows, block: I32, token: I32): Local<'i32'>[] =>
  rows.map(({ offset, lane }) => k.i32(i32.add(i32.add(block, offset), i32.mul(token, lane / 4))));

/**
 * Codes of token `r` of the four at the addresses, 16 dims a vector: `vectors` of them from the one of number `first` on.
 * Those of two's complement are counted from the lowest.
 */
export function rowCodes(
  k: Kernel,
  rows: CodeRows,
  at: readonly Local<'i32'>[],
  r: number,
  [first, vectors]: readonly [number, number],
  complement: boolean,
): V128[] {
  const parts = rows.map((plane, p) => {
    const { width, shift, lane, strip } = plane;
    const load = lane === 16 ? v128.load : v128.load64Splat;
    const down = (x: V128, by: number) => (by === 0 ? x : i16x8.shrU(x, by));
    const mask = 2 ** width - 1;
    // Runs of as many codes as a block has bytes, one above the other.
    const runs = 8 / width;
    const blocks = new Map<number, V128>();
    const blockOf = (b: number) => {
      const raw = load(at[p], (b + r / 4) * strip);
      const block = blocks.get(b) ?? k.v128(complement ? countFromLowest(rows, plane, raw) : raw);
      blocks.set(b, block);
      return block;
    };
    return Array.from({ length: vectors }, (_, v) => {
      const run = (16 / lane) * (first + v);
      const [raw, bit] = [blockOf(Math.floor(run / runs)), (run % runs) * width];
      const part =
        lane === 16
          ? v128.and(down(raw, bit), i8x16.const(mask))
          : v128.or(v128.and(down(raw, bit), halves(mask, 0)), v128.and(down(raw, bit + width), halves(0, mask)));
      return shift === 0 ? part : i16x8.shl(part, shift);
    });
  });
  return parts.reduce((a, b) => a.map((low, v) => v128.or(low, b[v])));
}

/** Two's complement to 0 and up: the highest bit of each code is turned over, and it lies in the last plane. */
export const countFromLowest = <P extends { width: number }>(planes: readonly P[], plane: P, raw: V128): V128 =>
  plane === planes[planes.length - 1] ? v128.xor(raw, i8x16.const(HIGHEST_BITS[plane.width])) : raw;
const HIGHEST_BITS: Record<number, number> = { 1: 0xff, 2: 0xaa, 4: 0x88 };

const halves = (low: number, high: number) => i8x16.const(...Array(8).fill(low), ...Array(8).fill(high));
