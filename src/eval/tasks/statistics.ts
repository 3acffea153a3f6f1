/** Whether a difference in scores means something: intervals, and paired tests on the same items. */
import { createRandom } from '../../codec/parts/random.ts';

export type Interval = readonly [low: number, high: number];

/** The two-sided 95 % quantile of the normal distribution. */
const Z = 1.959963984540054;

/**
 * Wilson's 95 % interval of a mean of scores from 0 to 1. It is made for scores of 0 and 1, which vary the most: for others
 * it is too wide, never too narrow.
 */
export function wilsonInterval(mean: number, count: number): Interval {
  if (count === 0) return [0, 1];
  const z2 = (Z * Z) / count;
  const center = mean + z2 / 2;
  const half = Z * Math.sqrt((mean * (1 - mean)) / count + z2 / (4 * count));
  return [Math.max(0, (center - half) / (1 + z2)), Math.min(1, (center + half) / (1 + z2))];
}

/**
 * McNemar's exact test: the probability that items which only one of two is right about divide as unevenly as this, or
 * more, if both are as good.
 */
export function mcNemar(onlyFirst: number, onlySecond: number): number {
  const count = onlyFirst + onlySecond;
  const fewer = Math.min(onlyFirst, onlySecond);
  // Logarithms, since 2^-count underflows.
  let logTerm = -count * Math.LN2;
  let sum = 0;
  for (let k = 0; k <= fewer; k++) {
    sum += Math.exp(logTerm);
    logTerm += Math.log((count - k) / (k + 1));
  }
  return Math.min(1, 2 * sum);
}

/**
 * The 95 % interval of the mean of paired differences from -1 to 1: Bonett and Price's, which adds one difference of each
 * sign. So it is not empty where all differences are 0: of few items that says little.
 */
export function pairedInterval(differences: readonly number[]): Interval {
  const count = differences.length + 2;
  const center = differences.reduce((sum, value) => sum + value, 0) / count;
  const square = differences.reduce((sum, value) => sum + value * value, 2) / count;
  const half = Z * Math.sqrt((square - center * center) / count);
  return [Math.max(-1, center - half), Math.min(1, center + half)];
}

const RESAMPLES = 10_000;

/** Up to so many differences, all signs are tried: 4,096 sums. */
const MAX_EXACT = 12;

/**
 * The paired permutation test: the probability that differences with these sizes and random signs have a mean as far from 0
 * as this, or farther. For differences of -1, 0 and 1 it is McNemar's exact test. With few items p cannot be small: one
 * item has p = 1. A bootstrap would find p = 0 there, since all its resamples agree.
 */
export function signFlip(differences: readonly number[], seed = 1): number {
  const sizes = differences.filter(value => value !== 0).map(Math.abs);
  // Sums in another order may differ in their last bits.
  const observed = Math.abs(differences.reduce((sum, value) => sum + value, 0)) * (1 - 1e-12);
  if (sizes.length <= MAX_EXACT) {
    const all = 2 ** sizes.length;
    let extreme = 0;
    for (let signs = 0; signs < all; signs++) {
      const sum = sizes.reduce((sum, size, i) => sum + ((signs >> i) & 1 ? size : -size), 0);
      if (Math.abs(sum) >= observed) extreme++;
    }
    return extreme / all;
  }
  const { uniform } = createRandom(seed);
  let extreme = 1; // what was observed is one of the possible signs
  for (let i = 0; i < RESAMPLES; i++) {
    const sum = sizes.reduce((sum, size) => sum + (uniform() < 0.5 ? size : -size), 0);
    if (Math.abs(sum) >= observed) extreme++;
  }
  return extreme / (RESAMPLES + 1);
}

/** Scores against those of a reference on the same items. */
export interface PairedComparison {
  /** Items that both have answered. */
  items: number;
  /** Mean score less that of the reference. */
  difference: number;
  /** 95 % interval of the difference. */
  interval: Interval;
  /**
   * The probability of such a difference by chance: by McNemar's exact test, or, if answers can be partly right, by a paired
   * permutation test.
   */
  p: number;
}

export function compareScores(scores: readonly number[], reference: readonly number[]): PairedComparison {
  const differences = scores.map((score, i) => score - reference[i]);
  const isBinary = [...scores, ...reference].every(score => score === 0 || score === 1);
  const count = (difference: number) => differences.filter(value => value === difference).length;
  return {
    items: scores.length,
    difference: mean(differences),
    interval: pairedInterval(differences),
    p: isBinary ? mcNemar(count(1), count(-1)) : signFlip(differences),
  };
}

export const mean = (values: readonly number[]): number =>
  values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
