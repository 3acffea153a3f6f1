import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { roundF16 } from '../../test/support/round-f16.ts';
import { fromBf16, fromF16, fromFp8, toF16, toFp8 } from './float.ts';

describe('f16', () => {
  it('round-trips every finite code', () => {
    const codes = Float64Array.from({ length: 65536 }, (_, i) => i).filter(code => (code & 0x7c00) !== 0x7c00);
    expect(codes.map(code => toF16(fromF16(code)))).toEqual(codes);
  });

  it('rounds to nearest, ties to even', () => {
    expect(roundF16(2049)).toBe(2048);
    expect(roundF16(2051)).toBe(2052);
    expect(roundF16(2 ** -25)).toBe(0);
    expect(roundF16(1.5 * 2 ** -24)).toBe(2 ** -23);
    expect(toF16(0.1)).toBe(0x2e66);
  });

  it('has an error of at most half a unit in the last place', () => {
    fc.assert(
      fc.property(fc.float({ noNaN: true, min: -65000, max: 65000 }), x => {
        const step = 2 ** (Math.max(Math.floor(Math.log2(Math.abs(x) || 1e-30)), -14) - 10);
        expect(Math.abs(roundF16(x) - x)).toBeLessThanOrEqual(step / 2);
      }),
    );
  });

  it('saturates instead of overflowing', () => {
    expect(roundF16(1e9)).toBe(65504);
    expect(roundF16(-3e38)).toBe(-65504);
    expect(roundF16(Number.NEGATIVE_INFINITY)).toBe(-65504);
    expect(toF16(Number.NaN)).toBe(0);
  });

  it('decodes infinities and NaN', () => {
    expect(fromF16(0x7c00)).toBe(Number.POSITIVE_INFINITY);
    expect(fromF16(0xfc00)).toBe(Number.NEGATIVE_INFINITY);
    expect(fromF16(0x7c01)).toBeNaN();
  });
});

describe('fp8 e4m3', () => {
  it('round-trips every code except NaN', () => {
    const codes = Float64Array.from({ length: 256 }, (_, i) => i).filter(code => (code & 0x7f) !== 0x7f);
    expect(codes.map(code => toFp8(fromFp8(code)))).toEqual(codes);
  });

  it('has the range and precision of the format', () => {
    expect(fromFp8(0x7e)).toBe(448);
    expect(fromFp8(0x01)).toBe(2 ** -9);
    expect(fromFp8(toFp8(1e6))).toBe(448);
    expect(fromFp8(toFp8(1.0625))).toBe(1);
    expect(fromFp8(toFp8(1.1875))).toBe(1.25);
    expect(fromFp8(0xff)).toBeNaN();
  });
});

it('bf16 is the upper 16 bits of an f32', () => {
  expect(fromBf16(0x3f80)).toBe(1);
  expect(fromBf16(0xc2f7)).toBe(-123.5);
});
