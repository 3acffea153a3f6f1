/** Budgets for the squared error of random unit vectors. */
import { describe, expect, it } from 'vitest';
import { matrix } from '../../../test/support/matrix.ts';
import { createCodec } from '../kv.ts';
import { createRandom, normals } from '../parts/random.ts';
import { measureLoss } from '../validate.ts';

const VECTORS = 10_240;

function unitVectors(d: number): Float32Array {
  const x = normals(createRandom(d), VECTORS * d);
  for (let v = 0; v < VECTORS; v++) {
    const vector = x.subarray(v * d, (v + 1) * d);
    const length = Math.hypot(...vector);
    vector.forEach((value, i) => {
      vector[i] = value / length;
    });
  }
  return x;
}

/** As published; values are not centered. */
const mse = (spec: string, x: Float32Array, headDim: number) =>
  measureLoss(createCodec(`f16/${spec}-raw`, { headDim }).values, x).mse;

const ERRORS = [
  [64, 0.0092],
  [128, 0.0093],
  [256, 0.0094],
] as const;
describe.each(matrix(ERRORS, { 128: 'the most common head dim' }, ([d]) => `${d}`))(
  '%i dims, 10k random unit vectors',
  (d, expected4) => {
    const x = unitVectors(d);

    it(`the error of 4 bits is ${expected4}, within 1 %`, () => {
      expect(Math.abs(mse('tq4', x, d) / expected4 - 1)).toBeLessThan(0.01);
    });

    it.each([
      ['tq4', 0.0096, 4],
      ['tq3', 0.035, 3],
      ['tq2', 0.119, 2],
    ])('the error of %s is below %f and the paper’s bound', (spec, budget, bits) => {
      const loss = mse(spec, x, d);
      expect(loss).toBeLessThanOrEqual(budget);
      expect(loss).toBeLessThan(((Math.sqrt(3) * Math.PI) / 2) * 4 ** -bits);
    });

    it.each([
      ['tq4u', 0.0115],
      ['tq3u', 0.0374],
      ['tq2u', 0.1188],
    ])('the error of %s is at most %f', (spec, budget) => {
      expect(mse(spec, x, d)).toBeLessThanOrEqual(budget);
    });
  },
);

it('uses a codebook for the dimension: at 16 dims the error is as low as at 64', () => {
  const x = normals(createRandom(1), 4096 * 16);
  expect(mse('tq4', x, 16)).toBeLessThan(0.0096);
});

describe('bytes per vector', () => {
  const bytes = (spec: string) => {
    const { values, shape } = createCodec(spec, { headDim: 128 });
    return values.pageBytes / shape.pageTokens;
  };

  it('68, 52, 36 with f32 norms at 128 dims', () => {
    expect(['tq4-n32', 'tq3-n32', 'tq2-n32'].map(bytes)).toEqual([68, 52, 36]);
  });

  it('66, 50, 34 with f16 norms', () => {
    expect(['tq4', 'tq3', 'tq2', 'tq4u', 'tq3u', 'tq2u'].map(bytes)).toEqual([66, 50, 34, 66, 50, 34]);
  });

  it('the mean of centered keys takes 2 more', () => {
    const keyBytes = (spec: string) => {
      const { keys, shape } = createCodec(spec, { headDim: 128 });
      return keys.pageBytes / shape.pageTokens;
    };
    expect(['tq4', 'tq4-raw', 'tq2u', 'tq35', 'q8_0'].map(keyBytes)).toEqual([68, 66, 36, 62, 138]);
  });

  it('hybrids: 56 and 40 of codes, and two norms', () => {
    expect(['tq35', 'tq25', 'tq35-n32'].map(bytes)).toEqual([60, 44, 64]);
  });
});

describe('known pitfalls', () => {
  const d = 64;
  const random = createRandom(4);
  const noise = normals(random, 512 * d);
  const offset = normals(random, d).map(x => 6 * x);
  const shifted = noise.map((x, i) => x + offset[i % d]);
  const errorOf = (spec: string) => {
    return measureLoss(createCodec(spec, { headDim: d }).keys, shifted).mse;
  };

  it('a large constant offset of the keys multiplies the error; centering removes it', () => {
    expect(errorOf('tq4-raw') / errorOf('tq4')).toBeGreaterThan(20);
  });

  it('norm correction keeps the length of decoded vectors, and reduces the error at 4 bits', () => {
    const x = normals(createRandom(5), 2048 * d);
    const values = (spec: string) => measureLoss(createCodec(spec, { headDim: d }).values, x).mse;
    expect(values('tq4')).toBeLessThan(values('tq4-raw'));
    // At 2 bits it would increase the error.
    expect(values('tq2')).toBe(values('tq2-raw'));
  });

  it('a QJL sign bit reduces the error less than a larger codebook of the same size', () => {
    const x = normals(createRandom(6), 2048 * d);
    const loss = (spec: string) => measureLoss(createCodec(spec, { headDim: d }).values, x).mse;
    expect(loss('tq35-noqjl')).toBeLessThan(0.6 * loss('tq25'));
  });
});
