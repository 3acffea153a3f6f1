import { describe, expect, it } from 'vitest';
import { affineCode, affineStep } from '../affine.ts';
import { codeBits } from '../codec.ts';
import { createCodec } from '../kv.ts';
import { createRandom, normals } from '../parts/random.ts';
import { measureLoss } from '../validate.ts';

const d = 64;

describe('axes', () => {
  it('keys per channel have a lower error than keys per token if some channels are large', () => {
    const x = normals(createRandom(1), 512 * d).map((value, i) => ((i % d) % 9 === 0 ? 10 * value : value));
    const loss = (spec: string) => {
      const { keys } = createCodec(spec, { headDim: d });
      // Measured on the ordinary channels, which suffer from sharing a range with large ones.
      const decoded = new Float32Array(128 * d);
      const page = new Uint8Array(keys.pageBytes);
      keys.encode(x, 128, page, 0);
      keys.decode(page, 128, decoded, 0);
      let error = 0;
      for (let i = 0; i < decoded.length; i++) if ((i % d) % 9 !== 0) error += (decoded[i] - x[i]) ** 2;
      return error;
    };
    expect(loss('kivi2g32')).toBeLessThan(0.2 * loss('kivi2g32-token'));
    expect(measureLoss(createCodec('kivi2g32', { headDim: d }).keys, x).mse).toBeLessThan(
      measureLoss(createCodec('kivi2g32-token', { headDim: d }).keys, x).mse,
    );
  });

  it('values per token have a lower error than values per channel if tokens differ in norm', () => {
    const random = createRandom(2);
    const scales = Array.from({ length: 512 }, () => Math.exp(1.5 * random.normal()));
    const x = normals(random, 512 * d).map((value, i) => value * scales[Math.floor(i / d)]);
    const relative = (spec: string) => {
      const { values } = createCodec(spec, { headDim: d });
      const [page, out] = [new Uint8Array(values.pageBytes), new Float32Array(128 * d)];
      values.encode(x, 128, page, 0);
      values.decode(page, 128, out, 0);
      // Relative to the token's norm: attention may weight any token.
      let sum = 0;
      for (let i = 0; i < out.length; i++) sum += ((out[i] - x[i]) / scales[Math.floor(i / d)]) ** 2;
      return sum;
    };
    expect(relative('kivi2g32')).toBeLessThan(0.5 * relative('kivi2g32-channel'));
  });
});

it('has bits + 32 / G code bits', () => {
  for (const [spec, bits] of [
    ['kivi2g32', 3],
    ['kivi4g32', 5],
    ['kivi2g128', 2.25],
    ['kivi1g64', 1.5],
  ] as const) {
    const { keys, values } = createCodec(spec, { headDim: 128 });
    expect([codeBits(keys), codeBits(values)]).toEqual([bits, bits]);
  }
});

it('does not divide by the zero step of a constant group', () => {
  expect(affineStep(3, 3, 2)).toBe(0);
  expect(affineCode(3, 3, 0, 2)).toBe(0);
  const { keys } = createCodec('kivi2g32', { headDim: d });
  const x = new Float32Array(128 * d).fill(3);
  expect(measureLoss(keys, x).mse).toBe(0);
});

it('excludes the padding of a partial page from the ranges', () => {
  const { keys } = createCodec('kivi8g32', { headDim: d });
  const x = new Float32Array(5 * d).map((_, i) => 100 + (i % 7) / 10);
  expect(measureLoss(keys, x).mse).toBeLessThan(1e-7);
});
