/** Weights of errors, against what small errors do to the output of attention in f64. */
import { expect, it } from 'vitest';
import { seeded } from '../../test/support/random.ts';
import {
  type AttentionShape,
  type AttentionWeights,
  createSensitivityKernels,
  measureSensitivity,
  SINKS,
} from './attention-sensitivity.ts';
import { outputGrams } from './metric.ts';

const D = 8;
const WIDTH = 24;
const context = 70;
const random = seeded(7);
const normal = (length: number) => Float32Array.from({ length }, random.normal);
const [k, v, matrix, normWeights] = [context * D, context * D, WIDTH * D, WIDTH].map(normal);

/** The layer's output, before the division by its norm. */
function attend(
  { scale, softcap, window = context }: AttentionShape,
  sinkLogit: number,
  q: Float32Array,
  t: number,
  keys: ArrayLike<number> = k,
) {
  const output = new Float64Array(D);
  let total = Math.exp(sinkLogit);
  for (let n = Math.max(0, t + 1 - window); n <= t; n++) {
    let score = 0;
    for (let i = 0; i < D; i++) score += scale * q[i] * keys[n * D + i];
    const weight = Math.exp(softcap ? softcap * Math.tanh(score / softcap) : score);
    total += weight;
    for (let i = 0; i < D; i++) output[i] += weight * v[n * D + i];
  }
  return Array.from(normWeights, (weight, row) => {
    let sum = 0;
    for (let i = 0; i < D; i++) sum += (weight * matrix[row * D + i] * output[i]) / total;
    return sum;
  });
}

it.each<[string, Partial<AttentionShape>, number[]?]>([
  ['full attention', {}],
  ['a window', { window: 37 }],
  ['a softcap', { softcap: 2 }],
  ['a sink logit', {}, [1.5]],
  ['all three', { window: 50, softcap: 3 }, [-0.5]],
])('the weight of a key error is the change of the output that it causes: %s', (_, given, sinks) => {
  const shape: AttentionShape = {
    ...{ heads: 1, kvHeads: 1, headDim: D, scale: 0.7, softcap: 0, context, pageTokens: 16 },
    ropeFrequencies: new Float64Array(),
    ...given,
  };
  const weights: AttentionWeights = {
    grams: outputGrams(matrix, shape, normWeights),
    sinkLogits: sinks && Float32Array.from(sinks),
  };
  const t = 66;
  const q = normal(D);
  const { keys, values, metric, outputNorms } = measureSensitivity(shape, createSensitivityKernels(shape), 0, [t], {
    ...{ q, k, v },
    ...weights,
  });
  const output = (changed?: Float64Array) => attend(shape, sinks?.[0] ?? -Infinity, q, t, changed);
  expect(outputNorms[0]).toBeCloseTo(squaredDistance(output(), Array(WIDTH).fill(0)), 3);
  const error = 0.002;
  const scores = shape.scale * q[3] * error;
  let sum = 0;
  for (let token = 0; token < context; token++) {
    const changed = Float64Array.from(k);
    changed[token * D + 3] += error;
    // The sinks are in f16, and so are the tokens of the last page.
    const change = token < SINKS || token >= 64 ? 0 : squaredDistance(output(changed), output()) / scores ** 2;
    expect(Math.abs(keys[token] - change)).toBeLessThan(0.01 * change + 1e-6);
    expect(values[token] > 0).toBe(change > 0);
    sum += change;
  }
  expect(metric[3 * D + 3] / (sum * q[3] ** 2)).toBeCloseTo(1, 2);
});

const squaredDistance = (a: number[], b: number[]) => a.reduce((sum, x, i) => sum + (x - b[i]) ** 2, 0);
