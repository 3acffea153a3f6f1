import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { quantizable, quantize, randomWeights } from '../../../test/support/quantize.ts';
import { seeded } from '../../../test/support/random.ts';
import { ShapeError } from '../../util/errors.ts';
import { dequantize } from './dequantize.ts';
import { type WeightType, weightBytes, weightFormats, weightTypeById, weightTypes } from './types.ts';

interface Fixture {
  types: Record<WeightType, { bytes: string; floats: string }>;
}
const fixture: Fixture = JSON.parse(
  readFileSync(new URL('../../../test/fixtures/weights.json', import.meta.url), 'utf8'),
);
const fromBase64 = (text: string) => Uint8Array.from(Buffer.from(text, 'base64'));

/** Maximum root mean square error of quantized standard normal values. */
const errorBudget: Partial<Record<WeightType, number>> = {
  F32: 0,
  F16: 4e-4,
  BF16: 3e-3,
  Q8_0: 0.008,
  Q5_1: 0.06,
  Q5_0: 0.06,
  Q4_1: 0.1,
  Q4_0: 0.11,
  IQ4_NL: 0.11,
  MXFP4: 0.16,
};

describe('weights', () => {
  it.each(weightTypes)('%s decodes exactly as the Python package gguf does', type => {
    const expected = new Float32Array(fromBase64(fixture.types[type].floats).buffer);
    const bytes = fromBase64(fixture.types[type].bytes);
    const out = new Float32Array(expected.length);
    dequantize(type, bytes, out);
    expect(out).toEqual(expected);
  });

  it.each(weightTypes)('%s decodes from the middle of a buffer, at any alignment', type => {
    const bytes = fromBase64(fixture.types[type].bytes);
    const expected = new Float32Array(fromBase64(fixture.types[type].floats).buffer);
    const shifted = new Uint8Array(bytes.length + 3);
    shifted.set(bytes, 3);
    const out = new Float32Array(expected.length);
    dequantize(type, shifted.subarray(3), out);
    expect(out).toEqual(expected);
  });

  it('are found by their GGUF type number', () => {
    for (const type of weightTypes) expect(weightTypeById(weightFormats[type].id)).toBe(type);
    expect(weightTypeById(16)).toBeUndefined();
  });

  it('rejects rows that do not fill whole blocks and buffers of the wrong length', () => {
    expect(() => weightBytes('Q4_0', 33)).toThrow(ShapeError);
    expect(() => weightBytes('Q4_K', 128)).toThrow(ShapeError);
    expect(() => weightBytes('F32', -1)).toThrow(ShapeError);
    expect(() => dequantize('Q8_0', new Uint8Array(33), new Float32Array(32))).toThrow(ShapeError);
  });

  it.each(quantizable)('%s: the test quantizer stays within its error budget', type => {
    const random = seeded(7);
    const values = Float32Array.from({ length: 4096 }, () => random.normal());
    const out = new Float32Array(values.length);
    dequantize(type, quantize(type, values), out);
    const error = Math.sqrt(out.reduce((sum, x, i) => sum + (x - values[i]) ** 2, 0) / values.length);
    expect(error).toBeLessThanOrEqual(errorBudget[type]!);
    expect(quantize(type, new Float32Array(256)).length).toBe(weightBytes(type, 256));
  });

  it.each(weightTypes)('%s: random weights have the requested standard deviation', type => {
    const out = new Float32Array(4096);
    dequantize(type, randomWeights(type, out.length, 0.02, seeded(3)), out);
    expect(Math.sqrt(out.reduce((sum, x) => sum + x * x, 0) / out.length)).toBeCloseTo(0.02, 2);
    expect(Math.abs(out.reduce((sum, x) => sum + x, 0) / out.length)).toBeLessThan(0.005);
  });
});
