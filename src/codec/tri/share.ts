/** How many pairs to keep: what the F of most energy carry, measured, expected of Gaussian keys, or judged by RoPE. */
import type { Shape } from '../codec.ts';
import type { Samples } from '../learned.ts';

/** The share of all energy that the F largest pairs of each sample carry: [F - 1]. RoPE does not change it. */
export function energyShares({ vectors }: Samples, { headDim }: Pick<Shape, 'headDim'>): Float64Array {
  const pairs = Math.floor(headDim / 2);
  const carried = new Float64Array(pairs);
  const energies = new Float64Array(pairs);
  for (let at = 0; at < vectors.length; at += headDim) {
    for (let f = 0; f < pairs; f++) energies[f] = vectors[at + 2 * f] ** 2 + vectors[at + 2 * f + 1] ** 2;
    energies.sort();
    for (let f = 0; f < pairs; f++) carried[f] += energies[pairs - 1 - f];
  }
  let sum = 0;
  const upTo = carried.map(energy => (sum += energy));
  return upTo.map(energy => (sum > 0 ? energy / sum : 1));
}

/** The fewest pairs that carry a share of the energy of these samples. */
export const measuredPairs = (samples: Samples, shape: Pick<Shape, 'headDim'>, share = 0.95): number =>
  1 + energyShares(samples, shape).findIndex(carried => carried >= share - 1e-12);

/**
 * Without samples: a quarter of the pairs that turn less than once in a page, 10 to 16. Slow pairs keep their phase
 * over a text, and it is those that a model gives large means.
 */
export function builtInPairs({ turn, headDim, pageTokens }: Shape): number {
  const slow = turn ? turn.filter(angle => Math.abs(angle) * pageTokens < 2 * Math.PI).length : headDim / 2;
  return Math.min(Math.floor(headDim / 2), Math.max(10, Math.min(16, Math.round(slow / 4))));
}

/** Energies of Gaussian pairs are exponential: the k-th largest of n is 1/n + ... + 1/k on average. */
export function keptOfGaussian(kept: number, pairs: number): number {
  let tail = 0;
  for (let k = kept + 1; k <= pairs; k++) tail += 1 / k;
  return (kept * (1 + tail)) / pairs;
}
