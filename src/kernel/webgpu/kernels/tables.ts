/**
 * What codecs that learn from data look up, as words of one buffer a codec: the maps and means that queries go through,
 * then the kind's own. Kernels have the place of each written into them and the numbers bound, so that layers share
 * kernels.
 */
import type { Fragment } from '../../fragment.ts';

/** Where the kind's own words begin: after [matrix][mean]. */
export const ownTable = ({ matrix, mean }: Fragment): number => (matrix?.length ?? 0) + (mean?.length ?? 0);

/**
 *   additive   [kv head][quad] and one more: the first column of each; then the books
 *   mixed      [kv head][dim] and one more: the first byte of each column x 8 + its bits; then the steps
 *   book       the books
 *   spectrum   the turns
 */
export function tablesOf(fragment: Fragment, pageTokens: number): Uint32Array<ArrayBuffer> | undefined {
  const { page, matrix, mean } = fragment;
  const own = ownWords(page, pageTokens);
  if (!own && !fragment.turn) return undefined;
  return Uint32Array.from([...bits(matrix), ...bits(mean), ...(own ?? [0])]);
}

function ownWords(page: Fragment['page'], pageTokens: number): number[] | undefined {
  switch (page.kind) {
    case 'additive':
      return [...sumsBefore([...page.counts]), ...bits(page.books)];
    case 'mixed': {
      const starts = sumsBefore(Array.from(page.bits, b => columnBytes(b, pageTokens)));
      return [...starts.map((start, i) => 8 * start + (page.bits[i] ?? 0)), ...bits(page.steps)];
    }
    case 'book':
      return [...bits(page.books)];
    case 'spectrum':
      return [...bits(page.turns)];
    default:
      return undefined;
  }
}

/** Of a column of codes of so many bits, plane by plane (codec/pack.ts). */
const columnBytes = (bits: number, pageTokens: number) =>
  [4, 2, 1].reduce((sum, width) => sum + (bits & width ? Math.ceil((pageTokens * width) / 8) : 0), 0);

const bits = (floats: Float32Array = new Float32Array()) => new Uint32Array(Float32Array.from(floats).buffer);

function sumsBefore(counts: readonly number[]): number[] {
  const sums = [0];
  for (const count of counts) sums.push(sums[sums.length - 1] + count);
  return sums;
}
