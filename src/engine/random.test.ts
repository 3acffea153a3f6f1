import { expect, it } from 'vitest';
import { createRandom } from './random.ts';

it('gives the same numbers for the same seed, and others for other seeds', () => {
  const draws = (seed: number) => Array.from({ length: 8 }, createRandom(seed).next);
  expect(draws(1)).toEqual(draws(1));
  const all = [0, 1, 2, -1, 2 ** 32, 2 ** 40 + 1].map(seed => draws(seed).join());
  expect(new Set(all).size).toBe(all.length);
});

it('gives the numbers of an independent implementation', () => {
  // From an independent implementation, in Python.
  const random = createRandom(42);
  expect([random.next(), random.next(), random.next()]).toEqual([
    0.5941702696175006, 0.5015594202018153, 0.35323876886828864,
  ]);
});

it('is uniform over [0, 1)', () => {
  const random = createRandom(7);
  const bins = new Array<number>(16).fill(0);
  for (let i = 0; i < 160_000; i++) bins[Math.floor(random.next() * 16)]!++;
  // Chi-squared with 15 degrees of freedom: above 44 once in 10,000 seeds.
  expect(bins.reduce((sum, n) => sum + (n - 10_000) ** 2 / 10_000, 0)).toBeLessThan(44);
});

it('picks a random seed if none is given', () => {
  expect(createRandom().seed).not.toBe(createRandom().seed);
});
