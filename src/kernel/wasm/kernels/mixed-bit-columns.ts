/**
 * Pages of columns of 0 to 6 bits each (mead's uniform sibling). The widths are data: `columns` is [kv head][dim] of
 * { bits i32, byte offset in the page i32, step f32 }.
 */
import { f32, type I32, i32, index, type Local } from '../emit.ts';
import type { Kernel } from '../module.ts';
import type { DequantizeContext, SealContext } from './head-context.ts';

export const COLUMN_ENTRY_BYTES = 12;

interface Column {
  bits: Local<'i32'>;
  from: Local<'i32'>;
  step: Local<'f32'>;
}

function forEachColumn(
  k: Kernel,
  columns: number,
  headDim: number,
  head: I32,
  page: I32,
  body: (dim: I32, c: Column) => void,
) {
  const at = k.i32(index(columns, COLUMN_ENTRY_BYTES * headDim, head));
  k.for(0, headDim, 1, dim => {
    body(dim, {
      bits: k.i32(i32.load(at)),
      from: k.i32(i32.add(page, i32.load(at, 4))),
      step: k.f32(f32.load(at, 8)),
    });
    k.increment(at, COLUMN_ENTRY_BYTES);
  });
}

/**
 * Calls `body` for every byte of every bit plane of a column with its address and the tokens and shifts in it (see
 * codec/pack.ts).
 */
function forEachByte(
  k: Kernel,
  { bits, from }: Column,
  tokens: number,
  body: (byte: I32, parts: { token: (base: I32) => I32; shift: number }[], mask: number, planeShift: I32) => void,
): void {
  const planeShift = k.i32(0);
  const start = k.i32(from);
  for (const width of [4, 2, 1]) {
    const bytes = (tokens * width) / 8;
    const blockBytes = Math.min(16, bytes & -bytes);
    const blockCodes = (blockBytes * 8) / width;
    k.if(i32.and(bits, width), () => {
      k.for(0, bytes, 1, i => {
        const first = k.i32(i32.add(i32.mul(i32.divU(i, blockBytes), blockCodes), i32.remU(i, blockBytes)));
        const parts = Array.from({ length: 8 / width }, (_, s) => ({
          token: (base: I32) => index(base, 4, i32.add(first, s * blockBytes)),
          shift: s * width,
        }));
        body(i32.add(start, i), parts, 2 ** width - 1, planeShift);
      });
      k.increment(start, bytes);
      k.increment(planeShift, width);
    });
  }
}

/** Takes one i32 per token of `codes`. */
export function dequantizeMixedBits(
  { k, shape: { headDim, pageTokens: tokens }, page, head, codes, out }: DequantizeContext,
  columns: number,
): void {
  forEachColumn(k, columns, headDim, head, page, (dim, column) => {
    k.for(0, 4 * tokens, 4, t => k.do(i32.store(i32.add(codes, t), 0)));
    forEachByte(k, column, tokens, (byte, parts, mask, planeShift) => {
      const value = k.i32(i32.load8U(byte));
      for (const { token, shift } of parts) {
        const at = k.i32(token(codes));
        k.do(i32.store(at, i32.or(i32.load(at), i32.shl(i32.and(i32.shrU(value, shift), mask), planeShift))));
      }
    });
    const unusedBits = k.i32(i32.sub(32, column.bits));
    k.for(0, tokens, 1, t => {
      const code = i32.shrS(i32.shl(i32.load(index(codes, 4, t)), unusedBits), unusedBits);
      const value = f32.mul(f32.add(f32.fromI32(code), f32.const(0.5)), column.step);
      const to = index(index(out, 4 * headDim, t), 4, dim);
      k.do(f32.store(to, f32.select(column.bits, value, f32.const(0))));
    });
  });
}

/** Takes one i32 per token of `codes`. */
export function sealMixedBits(
  { k, shape: { headDim, pageTokens: tokens }, page, head, y, codes }: SealContext,
  columns: number,
): void {
  forEachColumn(k, columns, headDim, head, page, (dim, column) => {
    k.if(column.bits, () => {
      const max = k.i32(i32.sub(i32.shl(1, i32.sub(column.bits, 1)), 1));
      const min = k.i32(i32.sub(-1, max));
      k.for(0, tokens, 1, t => {
        const value = f32.load(index(index(y, 4 * headDim, t), 4, dim));
        const code = k.i32(i32.fromF32(f32.floor(f32.div(value, column.step))));
        k.set(code, i32.select(i32.gtS(code, max), max, code));
        k.set(code, i32.select(i32.ltS(code, min), min, code));
        // With a step of 0 all codes are 0.
        k.set(code, i32.select(f32.gt(column.step, f32.const(0)), code, 0));
        k.do(i32.store(index(codes, 4, t), code));
      });
      forEachByte(k, column, tokens, (byte, parts, mask, planeShift) => {
        const value = parts
          .map(({ token, shift }) => i32.shl(i32.and(i32.shrU(i32.load(token(codes)), planeShift), mask), shift))
          .reduce((a, b) => i32.or(a, b));
        k.do(i32.store8(byte, value));
      });
    });
  });
}
