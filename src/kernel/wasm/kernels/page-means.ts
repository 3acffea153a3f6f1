/** Centered pages: the means of a page's vectors, [kv head][dim] f16 after its other fields (codec/centered.ts). */
import type { PageLayout, PageShape } from '../../page-layout.ts';
import { f32x4, type I32, i32, index, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { f32ToF16, loadF16x4, packLow16, reduceAdd } from '../ops.ts';
import type { PageHead } from './head-context.ts';

/** Address of a head's mean. */
const meanAddress = (offset: number, headDim: number, { page, head }: PageHead): I32 =>
  index(i32.add(page, offset), 2 * headDim, head);

/** Stores the mean of y, [token][dim] f32, and subtracts it as stored. */
export function storeMeans(
  k: Kernel,
  { meansOffset }: PageLayout,
  { headDim, pageTokens }: PageShape,
  page: PageHead,
  y: I32,
): void {
  if (meansOffset === undefined) return;
  const mean = k.i32(meanAddress(meansOffset, headDim, page));
  const [sum, at] = [k.v128(), k.i32()];
  const eachToken = (emit: () => void) =>
    k.for(0, pageTokens, 1, () => {
      emit();
      k.increment(at, 4 * headDim);
    });
  k.for(0, 4 * headDim, 16, i => {
    k.set(sum, v128.zero);
    k.set(at, i32.add(y, i));
    eachToken(() => k.set(sum, f32x4.add(sum, v128.load(at))));
    const f16 = k.v128(f32ToF16(k, k.v128(f32x4.mul(sum, f32x4.const(1 / pageTokens)))));
    k.do(v128.store64(mean, packLow16(f16, f16)));
    k.set(sum, loadF16x4(mean));
    k.set(at, i32.add(y, i));
    eachToken(() => k.do(v128.store(at, f32x4.sub(v128.load(at), sum))));
    k.increment(mean, 8);
  });
}

/** Adds the mean to dequantized vectors, [token][codedDim] f32. */
export function addMeans(
  k: Kernel,
  { meansOffset, codedDim }: PageLayout,
  { headDim, pageTokens }: PageShape,
  page: PageHead,
  out: I32,
): void {
  if (meansOffset === undefined) return;
  const mean = k.i32(meanAddress(meansOffset, headDim, page));
  const at = k.i32(out);
  k.for(0, pageTokens, 1, () => {
    k.for(0, headDim, 4, i => {
      const value = k.i32(index(at, 4, i));
      k.do(v128.store(value, f32x4.add(v128.load(value), loadF16x4(index(mean, 2, i)))));
    });
    k.increment(at, 4 * codedDim);
  });
}

/** Adds to scores[group][pageTokens] what the mean contributes; `queries` are transformed, [group][headDim] f32. */
export function addMeanScores(
  k: Kernel,
  { meansOffset }: PageLayout,
  { headDim, group, pageTokens }: PageShape & { group: number },
  page: PageHead,
  queries: I32,
  scores: I32,
): void {
  if (meansOffset === undefined) return;
  const mean = k.i32(meanAddress(meansOffset, headDim, page));
  const query = k.i32(queries);
  const four = k.v128();
  const sums = Array.from({ length: group }, () => k.v128(v128.zero));
  k.for(0, headDim, 4, () => {
    k.set(four, loadF16x4(mean));
    for (const [g, sum] of sums.entries())
      k.set(sum, f32x4.add(sum, f32x4.mul(four, v128.load(query, 4 * headDim * g))));
    k.increment(mean, 8);
    k.increment(query, 16);
  });
  const to = k.i32(scores);
  for (const sum of sums) {
    k.set(sum, f32x4.splat(reduceAdd(k, sum)));
    k.for(0, pageTokens, 4, () => {
      k.do(v128.store(to, f32x4.add(v128.load(to), sum)));
      k.increment(to, 16);
    });
  }
}
