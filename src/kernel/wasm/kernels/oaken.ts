/** Oaken's pages; codec/oaken/format.ts defines the bytes and the algorithm. */
import type { PageEncoding } from '../../page-layout.ts';
import { packGrid, unpackGrid } from '../code-grid.ts';
import { f32, f32x4, type I32, i16x8, i32, i32x4, index, type Local, type V128, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { loadF16, storeF16 } from '../ops.ts';
import type { DequantizeContext, SealContext } from './head-context.ts';
import { tailVector } from './tail.ts';

type Oaken = PageEncoding & { kind: 'oaken' };

const BLOCK = 64;
const OUTER_BIT = 64;
const SIGN_BIT = 128;
/** This count means that the first byte of the list is the count. */
const COUNT_IN_LIST = 15;
const STEPS = 15;
/** Bytes of a token's ranges, and the offset of each group's. */
const RANGES_BYTES = 12;
const [OUTER, MIDDLE, INNER] = [0, 4, 8];

const zero = f32.const(0);

/** Visits a token's blocks of 64 dims: first dim and end. */
function forEachBlock(k: Kernel, headDim: number, visit: (first: Local<'i32'>, end: Local<'i32'>) => void): void {
  k.for(0, headDim, BLOCK, first => {
    const end = k.i32(i32.add(first, BLOCK));
    k.set(end, i32.min(end, headDim));
    visit(first, end);
  });
}

export function dequantizeOaken(
  { k, shape: { headDim, pageTokens }, page, block, head, codes, out }: DequantizeContext,
  encoding: Oaken,
): void {
  const [outerLow, , , outerHigh] = encoding.thresholds.map(f32.const);
  unpackGrid(k, { ...encoding.codes, tokens: pageTokens, dims: headDim }, block, codes);
  const list = k.i32(i32.add(page, encoding.listsOffset));
  k.increment(list, i32.load(index(page, 4, head), encoding.listStartsOffset));
  const [step, min, values] = [k.f32(), k.f32(), k.v128()];
  const [low, high] = encoding.thresholds.slice(1, 3).map(x => f32x4.const(x));
  /** The inner threshold on the side of each value. */
  const innerShift = (x: V128) => v128.xor(high, v128.and(v128.xor(low, high), f32x4.gt(v128.zero, x)));
  const [n, count, entry, dim, range] = [k.i32(0), k.i32(), k.i32(), k.i32(), k.i32()];
  k.for(0, pageTokens, 1, t => {
    const ranges = k.i32(index(i32.add(page, encoding.rangesOffset), RANGES_BYTES, t));
    const from = k.i32(index(codes, headDim, t));
    const to = k.i32(index(out, 4 * headDim, t));
    k.set(min, loadF16(ranges, MIDDLE));
    k.set(step, f32.mul(f32.sub(loadF16(ranges, MIDDLE + 2), min), f32.const(1 / STEPS)));
    const codeAt = (i: I32) => f32.fromI32(i32.load8U(i32.add(from, i)));
    const [minimums, steps] = [k.v128(f32x4.splat(min)), k.v128(f32x4.splat(step))];
    k.for(0, headDim, 4, i => {
      const four = i32x4.extendLowS(i16x8.extendLowS(v128.load32Zero(i32.add(from, i))));
      k.set(values, f32x4.add(minimums, f32x4.mul(f32x4.fromI32(four), steps)));
      k.do(v128.store(index(to, 4, i), f32x4.add(values, innerShift(values))));
    });
    forEachBlock(k, headDim, first => {
      const byte = i32.load8U(i32.add(block, i32.shrU(n, 1)), encoding.listCountsOffset);
      k.set(count, i32.and(i32.shrU(byte, i32.mul(i32.and(n, 1), 4)), 15));
      k.increment(n, 1);
      k.if(i32.geS(count, COUNT_IN_LIST), () => {
        k.set(count, i32.load8U(list));
        k.increment(list, 1);
      });
      k.for(0, count, 1, () => {
        k.set(entry, i32.load8U(list));
        k.increment(list, 1);
        k.set(dim, i32.add(first, i32.and(entry, BLOCK - 1)));
        const outer = i32.and(entry, OUTER_BIT);
        const negative = i32.and(entry, SIGN_BIT);
        k.set(range, i32.add(ranges, i32.add(i32.select(outer, OUTER, INNER), i32.select(negative, 0, 2))));
        const shift = f32.select(outer, f32.select(negative, outerLow, outerHigh), zero);
        const size = f32.mul(f32.mul(codeAt(dim), loadF16(range)), f32.const(1 / STEPS));
        k.do(f32.store(index(to, 4, dim), f32.add(size, shift)));
      });
    });
  });
}

/**
 * Encodes one head's block and lists. Heads share ranges and the space for lists, so each one reads all heads' vectors.
 */
export function sealOaken({ k, shape, tail, page, block, head, codes }: SealContext, encoding: Oaken): void {
  const { headDim, pageTokens, kvHeads } = shape;
  const [outerLow, innerLow, innerHigh, outerHigh] = encoding.thresholds.map(f32.const);
  const x = k.f32();
  const isOuter = () => i32.or(f32.lt(x, outerLow), f32.gt(x, outerHigh));
  const isInner = () => i32.eqz(i32.or(f32.lt(x, innerLow), f32.gt(x, innerHigh)));

  // Ranges over all heads: every head's chunk stores the same bytes.
  const ends = [OUTER, MIDDLE, INNER].map(group => ({ group, min: k.f32(), max: k.f32() }));
  const extendRange = (n: number, shifted: () => ReturnType<typeof f32.const>) => {
    k.set(ends[n].min, f32.min(ends[n].min, shifted()));
    k.set(ends[n].max, f32.max(ends[n].max, shifted()));
  };
  const rangesAt = (t: I32) => index(i32.add(page, encoding.rangesOffset), RANGES_BYTES, t);
  k.for(0, pageTokens, 1, t => {
    for (const { min, max } of ends) {
      k.set(min, zero);
      k.set(max, zero);
    }
    k.for(0, kvHeads, 1, h => {
      const from = k.i32(tailVector(tail, shape, h, t));
      k.for(0, 2 * headDim, 2, i => {
        k.set(x, loadF16(i32.add(from, i)));
        const bySide = (n: number, low: typeof outerLow, high: typeof outerLow) =>
          extendRange(n, () => f32.sub(x, f32.select(f32.lt(x, low), low, high)));
        k.if(
          isOuter(),
          () => bySide(0, outerLow, outerHigh),
          () =>
            k.if(
              isInner(),
              () => extendRange(2, () => x),
              () => bySide(1, innerLow, innerHigh),
            ),
        );
      });
    });
    const ranges = k.i32(rangesAt(t));
    for (const { group, min, max } of ends) {
      storeF16(k, ranges, min, group);
      storeF16(k, ranges, max, group + 2);
    }
  });

  const count = k.i32();
  const inner = k.i32(1);
  const isListed = () => i32.or(isOuter(), i32.and(inner, isInner()));
  /** Sets `count` to the number of outliers in a block. */
  const countBlock = (vector: I32, first: I32, end: I32) => {
    k.set(count, 0);
    k.for(first, end, 1, i => {
      k.set(x, loadF16(index(vector, 2, i)));
      k.increment(count, isListed());
    });
  };
  const listBytes = () => i32.add(count, i32.geS(count, COUNT_IN_LIST));
  const forEachBlockOf = (heads: I32, visit: () => void) =>
    k.for(0, heads, 1, h => {
      k.for(0, pageTokens, 1, t => {
        const vector = k.i32(tailVector(tail, shape, h, t));
        forEachBlock(k, headDim, (first, end) => {
          countBlock(vector, first, end);
          visit();
        });
      });
    });
  const totalBytes = k.i32(0);
  forEachBlockOf(kvHeads, () => k.increment(totalBytes, listBytes()));
  k.if(i32.gtS(totalBytes, encoding.listsCapacity), () => k.set(inner, 0));
  // The end of the previous heads' lists.
  const end = k.i32(0);
  const fits = () => i32.eqz(i32.gtS(i32.add(end, listBytes()), encoding.listsCapacity));
  forEachBlockOf(head, () => k.if(fits(), () => k.increment(end, listBytes())));
  k.do(i32.store(index(page, 4, head), end, encoding.listStartsOffset));

  const n = k.i32(0);
  const [min, max, size, list, sign, fitsList] = [k.f32(), k.f32(), k.f32(), k.i32(), k.i32(), k.i32()];
  const dropped = k.i32(0);
  k.for(0, pageTokens, 1, t => {
    const vector = k.i32(tailVector(tail, shape, head, t));
    const to = k.i32(index(codes, headDim, t));
    const ranges = k.i32(rangesAt(t));
    forEachBlock(k, headDim, (first, last) => {
      countBlock(vector, first, last);
      k.set(fitsList, fits());
      k.if(i32.eqz(fitsList), () => k.set(count, 0));
      const at = k.i32(i32.add(block, i32.shrU(n, 1)));
      const nibble = i32.min(count, COUNT_IN_LIST);
      const lowNibble = i32.select(i32.and(n, 1), i32.load8U(at, encoding.listCountsOffset), 0);
      k.do(i32.store8(at, i32.or(lowNibble, i32.shl(nibble, i32.mul(i32.and(n, 1), 4))), encoding.listCountsOffset));
      k.increment(n, 1);
      k.set(list, i32.add(i32.add(page, encoding.listsOffset), end));
      k.increment(end, listBytes());
      k.if(i32.geS(count, COUNT_IN_LIST), () => {
        k.do(i32.store8(list, count));
        k.increment(list, 1);
      });
      k.for(first, last, 1, i => {
        k.set(x, loadF16(index(vector, 2, i)));
        k.if(
          i32.and(fitsList, isListed()),
          () => {
            const outer = isOuter();
            k.set(sign, i32.select(outer, f32.lt(x, outerLow), f32.lt(x, zero)));
            const entry = i32.or(i32.select(outer, OUTER_BIT, 0), i32.mul(sign, SIGN_BIT));
            k.do(i32.store8(list, i32.or(entry, i32.sub(i, first))));
            k.increment(list, 1);
            const range = i32.add(i32.select(outer, OUTER, INNER), i32.select(sign, 0, 2));
            k.set(max, loadF16(i32.add(ranges, range)));
            k.set(size, f32.sub(x, f32.select(outer, f32.select(sign, outerLow, outerHigh), zero)));
          },
          () => {
            k.increment(dropped, i32.or(isOuter(), isInner()));
            k.set(min, loadF16(ranges, MIDDLE));
            k.set(max, f32.sub(loadF16(ranges, MIDDLE + 2), min));
            const up = f32.max(zero, f32.sub(x, innerHigh));
            k.set(size, f32.sub(f32.select(f32.lt(x, innerLow), f32.sub(x, innerLow), up), min));
          },
        );
        const code = f32.floor(f32.add(f32.div(f32.mul(f32.const(STEPS), size), max), f32.const(0.5)));
        const clamped = f32.max(zero, f32.min(f32.const(STEPS), code));
        k.do(i32.store8(i32.add(to, i), i32.select(f32.eq(max, zero), 0, i32.fromF32(clamped))));
      });
    });
  });
  k.do(i32.store(index(page, 4, head), dropped, encoding.droppedOffset));
  packGrid(k, { ...encoding.codes, tokens: pageTokens, dims: headDim }, codes, block);
}
