/** e^x for x from LEAST to 0, good to 1e-12: of whole vocabularies, where Math.exp takes most of the time. */

/** A log-probability so low that all tokens below it together count for less than 1e-12. */
export const LEAST = -41;
/** Steps of the table. */
const STEPS = 64;
const table = Float64Array.from({ length: 1 - LEAST * STEPS }, (_, n) => Math.exp(-n / STEPS));

export function exp(x: number): number {
  const n = (0.5 - STEPS * x) | 0;
  const rest = x + n * (1 / STEPS);
  return table[n] * (1 + rest * (1 + rest * (1 / 2 + rest * (1 / 6 + rest * (1 / 24)))));
}
