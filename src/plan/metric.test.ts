import { expect, it } from 'vitest';
import { turnPairs } from '../codec/domain.ts';
import { createRandom } from '../codec/parts/random.ts';
import { keyMetric, valueMetric } from './metric.ts';

const random = createRandom(3);
const numbers = (length: number) => Float64Array.from({ length }, random.normal);
const dot = (a: ArrayLike<number>, b: ArrayLike<number>) => Array.from(a).reduce((sum, x, i) => sum + x * b[i], 0);

it('a wrong value costs what it moves the output by, over all heads of its group', () => {
  const shape = { heads: 6, kvHeads: 2, headDim: 4 };
  const width = 5;
  const output = Float32Array.from(numbers(width * 24));
  const metric = valueMetric(output, shape);
  for (let kv = 0; kv < 2; kv++) {
    const error = numbers(4);
    let moved = 0;
    for (let head = 3 * kv; head < 3 * kv + 3; head++) {
      for (let row = 0; row < width; row++)
        moved += dot(error, output.subarray(row * 24 + head * 4, row * 24 + head * 4 + 4)) ** 2;
    }
    expect(cost(metric.subarray(16 * kv, 16 * kv + 16), error)).toBeCloseTo(moved, 4);
  }
});

it('a wrong key costs what it moves the scores by, over queries at many distances', () => {
  const dim = 6;
  const turn = Float64Array.of(1, 0.01);
  const queries = Array.from({ length: 40 }, () => numbers(dim).map((x, i) => x * (1 + i)));
  const moment = new Float64Array(dim * dim);
  for (const q of queries) for (let i = 0; i < moment.length; i++) moment[i] += q[Math.floor(i / dim)] * q[i % dim];
  const metric = keyMetric(moment, dim, turn);
  const error = numbers(dim);
  let moved = 0;
  for (const most of [256, 2048]) {
    for (let distance = 0; distance < most; distance++) {
      for (const q of queries) {
        const turned = q.slice();
        turnPairs(turned, turn, distance);
        moved += (0.5 / most) * dot(turned, error) ** 2;
      }
    }
  }
  // 96 distances stand for all of them.
  expect(cost(metric, error) / moved).toBeGreaterThan(0.9);
  expect(cost(metric, error) / moved).toBeLessThan(1.1);
  // Dims that do not turn keep their moments exactly.
  expect(metric[4 * dim + 5]).toBeCloseTo(moment[4 * dim + 5], 9);
});

function cost(metric: Float64Array, error: Float64Array): number {
  const dim = error.length;
  return error.reduce((sum, e, i) => sum + e * dot(metric.subarray(i * dim, (i + 1) * dim), error), 0);
}
