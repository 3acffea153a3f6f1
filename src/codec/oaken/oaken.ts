/**
 * Oaken (ISCA 2025): three groups of values by thresholds that were learned offline, a layer's keys and values apart.
 *
 *   outer    4 %: the largest on either side. Shifted by the outer threshold of their side, 5 bits.
 *   middle  90 %: shifted by the inner threshold of their side, 4 bits.
 *   inner    6 %: around zero. Not shifted, 5 bits.
 *
 * Each group of a token, over all KV heads together, has a range of its own. A shift closes the gap that the other
 * groups leave in the range. Outer and inner values are outliers: four of their bits lie in the dense array with all
 * others, the fifth is their sign, and a byte in a side list says which they are. A decoder sees nothing but bytes: it
 * knows an outlier's side by its sign, and a middle value's by the sign of what its code stands for.
 */

import { plain } from '../domain.ts';
import type { Family } from '../family.ts';
import { need, type Samples } from '../learned.ts';
import { pageCodec } from '../page-codec.ts';
import { oakenFormat } from './format.ts';

const OUTER = 0.04;
const INNER = 0.06;
/** Values that thresholds are learned from. */
const MOST_VALUES = 2 ** 19;

export const oaken: Family = {
  title: 'Oaken',
  pattern: /^oaken$/,
  bases: ['oaken'],
  variants: [],
  learn: ({ samples, shape }) => ({ oaken: learnThresholds(samples, shape.headDim) }),
  create(request) {
    const { spec, shape, side } = request;
    const [outerLow, innerLow, innerHigh, outerHigh] = need(request, 'oaken', 4);
    return pageCodec({
      spec,
      shape,
      budget: 0.0065,
      stable: false,
      domain: plain(shape.headDim),
      format: oakenFormat({ outerLow, innerLow, innerHigh, outerHigh }, side === 'key' ? 'rows' : 'columns', shape),
    });
  },
};

/** [outer low, inner low, inner high, outer high]: quantiles of all heads' values together. */
export function learnThresholds({ vectors }: Samples, headDim: number): Float32Array {
  // Whole vectors, evenly spread: all dims count alike.
  const stride = headDim * Math.ceil(vectors.length / MOST_VALUES);
  const sorted = new Float32Array(headDim * Math.ceil(vectors.length / stride));
  for (let from = 0, to = 0; from < vectors.length; from += stride, to += headDim)
    sorted.set(vectors.subarray(from, from + headDim), to);
  sorted.sort();
  const quantile = (share: number) =>
    sorted[Math.max(0, Math.min(sorted.length - 1, Math.round(share * (sorted.length - 1))))];
  const below = sorted.findIndex(x => x >= 0);
  // The inner values are those around zero, or at the edge of the middle where all have one sign.
  const zero = (below < 0 ? sorted.length : below) / sorted.length;
  const centre = Math.max(OUTER / 2 + INNER / 2, Math.min(1 - OUTER / 2 - INNER / 2, zero));
  return Float32Array.of(
    quantile(OUTER / 2),
    quantile(centre - INNER / 2),
    quantile(centre + INNER / 2),
    quantile(1 - OUTER / 2),
  );
}
