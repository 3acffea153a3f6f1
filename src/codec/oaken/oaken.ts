/**
 * Oaken (ISCA 2025): three groups of values, split by thresholds that are learned offline for each layer's keys and
 * values.
 *
 *   outer    4 %: the largest positive and negative values. Shifted by the outer threshold of their sign, 5 bits.
 *   middle  90 %: shifted by the inner threshold of their sign, 4 bits.
 *   inner    6 %: around zero. Not shifted, 5 bits.
 *
 * Each group has one range per token, over all KV heads. The shift closes the gap that the other groups leave in the
 * range. Outer and inner values are outliers: four of their bits are in the dense array like all others, the fifth is
 * their sign, and an entry in an outlier list identifies them. The decoder undoes the shift by an outlier's sign bit, or
 * by the sign of a middle value's decoded number.
 */

import { identityDomain } from '../domain.ts';
import type { Family } from '../family.ts';
import { requireLearned, type Samples } from '../learned.ts';
import { pageCodec } from '../page-codec.ts';
import { oakenFormat } from './format.ts';

const OUTER = 0.04;
const INNER = 0.06;
/** Maximum number of values that thresholds are learned from. */
const MAX_VALUES = 2 ** 19;

export const oaken: Family = {
  title: 'Oaken',
  pattern: /^oaken$/,
  bases: ['oaken'],
  variants: [],
  learn: ({ samples, shape }) => ({ oaken: learnThresholds(samples, shape.headDim) }),
  create(request) {
    const { spec, shape, side } = request;
    const [outerLow, innerLow, innerHigh, outerHigh] = requireLearned(request, 'oaken', 4);
    return pageCodec({
      spec,
      shape,
      budget: 0.0065,
      isIdempotent: false,
      domain: identityDomain(shape.headDim),
      format: oakenFormat({ outerLow, innerLow, innerHigh, outerHigh }, side === 'key' ? 'rows' : 'columns', shape),
    });
  },
};

/** [outer low, inner low, inner high, outer high]: quantiles over the values of all heads. */
export function learnThresholds({ vectors }: Samples, headDim: number): Float32Array {
  // Whole vectors at an even stride, so that all dims have the same weight.
  const stride = headDim * Math.ceil(vectors.length / MAX_VALUES);
  const sorted = new Float32Array(headDim * Math.ceil(vectors.length / stride));
  for (let from = 0, to = 0; from < vectors.length; from += stride, to += headDim)
    sorted.set(vectors.subarray(from, from + headDim), to);
  sorted.sort();
  const quantile = (share: number) =>
    sorted[Math.max(0, Math.min(sorted.length - 1, Math.round(share * (sorted.length - 1))))];
  const below = sorted.findIndex(x => x >= 0);
  // The inner values are around zero, or next to the outer ones if all values have one sign.
  const zero = (below < 0 ? sorted.length : below) / sorted.length;
  const center = Math.max(OUTER / 2 + INNER / 2, Math.min(1 - OUTER / 2 - INNER / 2, zero));
  return Float32Array.of(
    quantile(OUTER / 2),
    quantile(center - INNER / 2),
    quantile(center + INNER / 2),
    quantile(1 - OUTER / 2),
  );
}
