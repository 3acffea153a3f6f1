/** Nearest-entry search in a codebook, the hot loop of k-means. */
import { f32x4, i32, i32x4, index, v128 } from '../emit.ts';
import { Kernel, signature } from '../module.ts';

/** Points per block: they are stored as [block][dim][point]. */
export const POINT_BLOCK = 8;

/**
 * codes = the nearest entry of each point as u16; ties go to the first. An entry is its values followed by half its
 * squared norm: the nearest one maximizes dot - half squared norm.
 */
export function nearestEntry(dims: number) {
  const k = new Kernel(signature('nearest', 'points', 'codes', 'book', 'blocks', 'entries'));
  const { points, codes, book, blocks, entries } = k.params;
  const entryBytes = 4 * (dims + 1);
  const [from, to] = [k.i32(points), k.i32(codes)];
  const end = k.i32(index(book, entryBytes, entries));
  const groups = [0, 16].map(offset => ({ offset, score: k.v128(), max: k.v128(), best: k.v128() }));
  // V8 rematerializes constants at every use: keep this one out of the loop.
  const [c, entry, one] = [k.v128(), k.v128(), k.v128(i32x4.const(1))];
  k.for(0, blocks, 1, () => {
    k.set(entry, v128.zero);
    for (const { max, best } of groups) {
      k.set(max, f32x4.const(Number.NEGATIVE_INFINITY));
      k.set(best, v128.zero);
    }
    k.forAddresses(book, end, entryBytes, at => {
      k.set(c, v128.load32Splat(at, 4 * dims));
      for (const { score } of groups) k.set(score, f32x4.neg(c));
      for (let d = 0; d < dims; d++) {
        k.set(c, v128.load32Splat(at, 4 * d));
        for (const { score, offset } of groups)
          k.set(score, f32x4.add(score, f32x4.mul(c, v128.load(from, 4 * POINT_BLOCK * d + offset))));
      }
      // Entries are visited in order, so the maximum index is the latest improvement.
      for (const { score, max, best } of groups) {
        k.set(best, i32x4.maxS(best, v128.and(entry, f32x4.gt(score, max))));
        k.set(max, f32x4.max(max, score));
      }
      k.set(entry, i32x4.add(entry, one));
    });
    for (const [g, { best }] of groups.entries())
      for (let lane = 0; lane < 4; lane++) k.do(i32.store16(to, i32x4.lane(best, lane), 8 * g + 2 * lane));
    k.increment(from, 4 * POINT_BLOCK * dims);
    k.increment(to, 2 * POINT_BLOCK);
  });
  return k;
}
