/** Estimated softmax sums: close to the exact ones, and a draw is the exact one or left to the caller. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { ESTIMATE_ERROR, estimateWeights } from './estimated-weights.ts';

interface Distribution {
  size: number;
  spread: number;
  temperature: number;
  minP: number;
  masked: boolean;
  seed: number;
}

const distributions: fc.Arbitrary<Distribution> = fc.record({
  size: fc.integer({ min: 1, max: 600 }),
  spread: fc.constantFrom(0, 0.1, 1, 5, 100),
  temperature: fc.constantFrom(1e-320, 1e-3, 0.7, 1, 100),
  minP: fc.constantFrom(0, 0.01, 1),
  masked: fc.boolean(),
  seed: fc.integer(),
});

/** Logits, and the weights as sample.ts defines them. */
function exactWeights({ size, spread, temperature, minP, masked, seed }: Distribution) {
  const logits = Float32Array.from(
    { length: size },
    (_, i) => spread * Math.sin(seed + 7 * i * i) + (i % 97 === 0 ? 3 : 0),
  );
  if (masked) for (let i = 1; i < size; i += 2) logits[i] = Number.NEGATIVE_INFINITY;
  const max = logits.reduce((a, b) => Math.max(a, b));
  const floor = minP > 0 ? max + temperature * Math.log(minP) : Number.NEGATIVE_INFINITY;
  const weights = Array.from(logits, logit => (logit >= floor ? Math.exp((logit - max) / temperature) : 0));
  return { weights, estimate: estimateWeights(logits, max, temperature, floor) };
}

const sum = (weights: readonly number[]) => weights.reduce((a, b) => a + b, 0);

function cumulative(weights: readonly number[]): number[] {
  let running = 0;
  return weights.map(weight => {
    running += weight;
    return running;
  });
}

it('sums are within the error, or nothing is decided', () => {
  fc.assert(
    fc.property(distributions, distribution => {
      const { weights, estimate } = exactWeights(distribution);
      const total = sum(weights);
      if (distribution.temperature > 1e-300)
        expect(Math.abs(estimate.total - total)).toBeLessThan(ESTIMATE_ERROR * total);
      else expect(estimate.draw(0.5)).toBeUndefined();
    }),
  );
});

it('a draw is the exact one or undefined, also on the boundary between two ids', () => {
  fc.assert(
    fc.property(distributions, fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (distribution, u) => {
      const { weights, estimate } = exactWeights(distribution);
      const running = cumulative(weights);
      const total = sum(weights);
      for (const at of [u, ...running.map(end => end / total).filter(boundary => boundary < 1)]) {
        const drawn = estimate.draw(at);
        if (drawn !== undefined) expect(drawn).toBe(running.findIndex(end => end > at * total));
      }
    }),
  );
});

it('almost all draws are decided', () => {
  const logits = Float32Array.from({ length: 50_000 }, (_, i) => 4 * Math.sin(i * i));
  const estimate = estimateWeights(
    logits,
    logits.reduce((a, b) => Math.max(a, b)),
    0.7,
    Number.NEGATIVE_INFINITY,
  );
  const draws = Array.from({ length: 200 }, (_, i) => estimate.draw((i + 0.5) / 200));
  expect(draws.filter(id => id === undefined).length).toBeLessThan(3);
});
