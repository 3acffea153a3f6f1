import { expect, it } from 'vitest';
import { createRandom } from '../codec/parts/random.ts';
import { applyRope } from '../codec/parts/rope.ts';
import { outputGrams, ropeBothSides, valueMetric } from './metric.ts';

const random = createRandom(3);
const numbers = (length: number) => Float64Array.from({ length }, random.normal);
const dot = (a: ArrayLike<number>, b: ArrayLike<number>) => Array.from(a).reduce((sum, x, i) => sum + x * b[i], 0);

it('the metric of a value error is the change of the output, over all heads of its group', () => {
  const shape = { heads: 6, kvHeads: 2, headDim: 4 };
  const width = 5;
  const output = Float32Array.from(numbers(width * 24));
  const shares = numbers(6).map(Math.abs);
  const metric = valueMetric(outputGrams(output, shape), shares, shape);
  for (let kv = 0; kv < 2; kv++) {
    const error = numbers(4);
    let moved = 0;
    for (let head = 3 * kv; head < 3 * kv + 3; head++) {
      for (let row = 0; row < width; row++)
        moved += shares[head] * dot(error, output.subarray(row * 24 + head * 4, row * 24 + head * 4 + 4)) ** 2;
    }
    expect(cost(metric.subarray(16 * kv, 16 * kv + 16), error)).toBeCloseTo(moved, 4);
  }
});

it('rotating a second moment on both sides equals the second moment of rotated vectors', () => {
  const dim = 6;
  const turn = Float64Array.of(1, 0.01);
  const x = numbers(dim);
  const moment = new Float64Array(dim * dim).map((_, i) => x[Math.floor(i / dim)] * x[i % dim]);
  ropeBothSides(moment, dim, turn, -37);
  applyRope(x, turn, -37);
  const error = numbers(dim);
  expect(cost(moment, error)).toBeCloseTo(dot(x, error) ** 2, 9);
});

function cost(metric: Float64Array, error: Float64Array): number {
  const dim = error.length;
  return error.reduce((sum, e, i) => sum + e * dot(metric.subarray(i * dim, (i + 1) * dim), error), 0);
}
