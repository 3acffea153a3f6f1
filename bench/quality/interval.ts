/** How much would a mean over rows change with other rows of the same text? */
import { createRandom } from '../../src/codec/parts/random.ts';

export const RESAMPLES = 2000;
const COVERED = 0.95;
/** Fewer rows say too little about how much rows vary. */
export const MIN_ROWS = 4;

/** Half of the width of the mean's 95 % bootstrap interval. The seed is fixed: the same values give the same interval. */
export function intervalOfMean(values: readonly number[]): number {
  const random = createRandom(1);
  const means = Float64Array.from({ length: RESAMPLES }, () => {
    let sum = 0;
    for (let i = 0; i < values.length; i++) sum += values[Math.floor(random.uniform() * values.length)];
    return sum / values.length;
  }).sort();
  const cut = Math.round((RESAMPLES * (1 - COVERED)) / 2);
  return (widening(values.length) * (means[RESAMPLES - 1 - cut] - means[cut])) / 2;
}

/**
 * Resamples of few rows vary too little: the interval of 8 rows would cover the mean in 88 % of cases. The variance of n
 * values is n / (n - 1) times that of their resamples, and Student's t takes the place of the normal distribution; the
 * polynomial is the ratio of their 97.5th percentiles.
 */
function widening(rows: number): number {
  const freedom = rows - 1;
  return Math.sqrt(rows / freedom) * (1 + 1.21 / freedom + 1.44 / freedom ** 2);
}
