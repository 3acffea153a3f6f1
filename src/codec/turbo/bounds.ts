/**
 * The bounds that the paper of TurboQuant proves (arXiv 2504.19874, theorems 1 to 3). The lower ones hold for every codec
 * with as many bits per dim, the upper ones for TurboQuant. `bits` are those of equal parts of the dims: rates add up for
 * the lower bound, errors for the upper one.
 */
import type { DistortionBounds } from '../codec.ts';

/** Of the squared error, for codes without sign bits. */
export const mseBounds = (...bits: number[]): DistortionBounds => ({
  measure: 'mse',
  ...scaledBounds((Math.sqrt(3) * Math.PI) / 2, bits),
});

/** Of inner products, for codes whose last bit is a QJL sign. */
export const innerProductBounds = (...bits: number[]): DistortionBounds => ({
  measure: 'innerProduct',
  ...scaledBounds(Math.sqrt(3) * Math.PI ** 2, bits),
});

function scaledBounds(factor: number, bits: readonly number[]) {
  const mean = (x: readonly number[]) => x.reduce((sum, n) => sum + n, 0) / x.length;
  return { lower: 4 ** -mean(bits), upper: factor * mean(bits.map(b => 4 ** -b)) };
}
