/** The energy in the F largest pairs of a key (measured, or expected of Gaussian keys), and the default number of pairs. */
import type { Shape } from '../codec.ts';
import type { Samples } from '../learned.ts';

/** [F - 1]: the share of the energy in the top F pairs of each sample. RoPE does not change it. */
export function energyShares({ vectors }: Samples, { headDim }: Pick<Shape, 'headDim'>): Float64Array {
  const pairs = Math.floor(headDim / 2);
  const rankEnergies = new Float64Array(pairs);
  const energies = new Float64Array(pairs);
  for (let offset = 0; offset < vectors.length; offset += headDim) {
    for (let f = 0; f < pairs; f++) energies[f] = vectors[offset + 2 * f] ** 2 + vectors[offset + 2 * f + 1] ** 2;
    energies.sort();
    for (let f = 0; f < pairs; f++) rankEnergies[f] += energies[pairs - 1 - f];
  }
  let sum = 0;
  const cumulative = rankEnergies.map(energy => (sum += energy));
  return cumulative.map(energy => (sum > 0 ? energy / sum : 1));
}

/** The smallest number of pairs that carry a share of the energy. `shares` are those of the top 1, 2, ... pairs. */
export function pairsForShare(shares: Float32Array | Float64Array, share: number): number {
  // Learned shares are rounded to f32.
  const fewer = shares.findIndex(carried => carried >= share - 1e-6);
  return fewer < 0 ? shares.length : fewer + 1;
}

/**
 * The default without samples: a quarter of the pairs that rotate less than once per page, clamped to 10 to 16. Slow pairs
 * keep their phase over many tokens, and models give them large means.
 */
export function defaultPairs({ ropeFrequencies, headDim, pageTokens }: Shape): number {
  const slow = ropeFrequencies
    ? ropeFrequencies.filter(angle => Math.abs(angle) * pageTokens < 2 * Math.PI).length
    : headDim / 2;
  return Math.min(Math.floor(headDim / 2), Math.max(10, Math.min(16, Math.round(slow / 4))));
}

/**
 * Expected energy share of the top pairs of a Gaussian key. The energies are exponentially distributed: the mean of the
 * k-th largest of n is 1/n + ... + 1/k.
 */
export function gaussianEnergyShare(kept: number, pairs: number): number {
  let tail = 0;
  for (let k = kept + 1; k <= pairs; k++) tail += 1 / k;
  return (kept * (1 + tail)) / pairs;
}
