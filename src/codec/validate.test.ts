import { describe, expect, it } from 'vitest';
import { createCodec } from './kv.ts';
import { validateCodec } from './validate.ts';

const boundsOf = (spec: string, headDim = 128) => validateCodec(createCodec(spec, { headDim }).keys, 'key').bounds!;

describe('the bounds of TurboQuant', () => {
  it.each([
    ['tq1-raw', 1],
    ['tq2-raw', 2],
    ['tq3-raw', 3],
    ['tq4-raw', 4],
  ])('%s: the error is between 4^-b and sqrt(3) pi / 2 times as much', (spec, bits) => {
    for (const headDim of [64, 128, 256]) {
      const { measure, measured, lower, upper, overLower, overUpper } = boundsOf(spec, headDim);
      expect(measure).toBe('mse');
      expect([lower, upper]).toEqual([4 ** -bits, ((Math.sqrt(3) * Math.PI) / 2) * 4 ** -bits]);
      expect([overLower, overUpper]).toEqual([measured / lower, measured / upper]);
      expect(overLower).toBeGreaterThan(1);
      expect(overUpper).toBeLessThan(1);
    }
  });

  it.each([
    ['tq35-raw', 4, 3],
    ['tq25-raw', 3, 2],
  ])('%s: the error of inner products is within the bounds of halves of %i and %i bits', (spec, fine, coarse) => {
    const { measure, lower, upper, overLower, overUpper } = boundsOf(spec);
    expect(measure).toBe('innerProduct');
    expect(lower).toBeCloseTo(Math.sqrt(4 ** -fine * 4 ** -coarse), 12);
    expect(upper).toBeCloseTo((Math.sqrt(3) * Math.PI ** 2 * (4 ** -fine + 4 ** -coarse)) / 2, 12);
    expect(overLower).toBeGreaterThan(1);
    expect(overUpper).toBeLessThan(1);
  });

  it('are absent for codecs whose paper has none', () => {
    const [keys, values] = createCodec('kivi2g32/tq4u', { headDim: 128 }).validate();
    expect([keys.bounds, values.bounds]).toEqual([undefined, undefined]);
    expect([keys.ok, values.ok]).toEqual([true, true]);
  });
});
