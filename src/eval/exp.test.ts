import { expect, it } from 'vitest';
import { exp, LEAST } from './exp.ts';

it('is the exponential all the way down', () => {
  expect(exp(0)).toBe(1);
  for (let i = 0; i < 2_000; i++) {
    const x = LEAST * ((i * 0.6180339887) % 1);
    expect(Math.abs(exp(x) / Math.exp(x) - 1)).toBeLessThan(1e-12);
  }
  expect(exp(LEAST + 1e-9) / Math.exp(LEAST + 1e-9)).toBeCloseTo(1, 12);
});
