import { expect, it } from 'vitest';
import { createRandom, normals } from '../codec/parts/random.ts';
import { compareLogProbs, logSoftmax } from './log-probs.ts';

it.each([5, 256, 49_152])('equals its definition for %i tokens', length => {
  const [a, b] = [1, 2].map(seed => normals(createRandom(seed), length).map(x => 6 * x));
  const exact = (logits: Float32Array) => {
    const sum = logits.reduce((total, x) => total + Math.exp(x), 0);
    return Array.from(logits, x => x - Math.log(sum));
  };
  const [p, q] = [exact(a), exact(b)];
  const [reference, logProbs] = [logSoftmax(a.slice()), logSoftmax(b.slice())];
  expect(Math.max(...logProbs.map((x, i) => Math.abs(x - q[i])))).toBeLessThan(4e-6);
  const kld = p.reduce((total, x, i) => total + Math.exp(x) * (x - q[i]), 0);
  expect(Math.abs(compareLogProbs(logProbs, reference).kld / kld - 1)).toBeLessThan(1e-6);
  expect(compareLogProbs(logProbs, reference).same).toBe(p.indexOf(Math.max(...p)) === q.indexOf(Math.max(...q)));
  expect(compareLogProbs(logProbs, logProbs)).toEqual({ kld: 0, same: true });
});

it('resolves divergences below 1e-6', () => {
  const logits = normals(createRandom(3), 49_152).map(x => 4 * x);
  const nearby = logits.map((x, i) => x + 1e-3 * Math.sin(i));
  const [p, q] = [logits, nearby].map(row => {
    const sum = row.reduce((total, x) => total + Math.exp(x), 0);
    return Array.from(row, x => x - Math.log(sum));
  });
  const kld = p.reduce((total, x, i) => total + Math.exp(x) * (x - q[i]), 0);
  expect(kld).toBeLessThan(1e-6);
  expect(Math.abs(compareLogProbs(logSoftmax(nearby), logSoftmax(logits)).kld - kld)).toBeLessThan(2e-7);
});
