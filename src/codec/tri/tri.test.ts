import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SpecError } from '../../util/errors.ts';
import { createCodec, learn } from '../kv.ts';
import { samplesOf } from '../learned.ts';
import { createRandom, normals } from '../parts/random.ts';
import { applyRope, createRopeFrequencies } from '../parts/rope.ts';
import { norm } from '../parts/vector.ts';
import { defaultPairs, energyShares, gaussianEnergyShare, pairsForShare } from './energy.ts';

const keysOf = (spec: string, headDim = 128) =>
  createCodec(`${spec}/f16`, { headDim, kvHeads: 2, ropeFrequencies: createRopeFrequencies(headDim) }).keys;

it.each([
  ['tri12i4', 26],
  ['tri16i8', 50],
  ['tri8i4', 18],
])('%s needs %i bytes per key of 128 dims', (spec, bytes) => {
  expect(keysOf(spec).pageBytes / 128 / 2).toBe(bytes);
});

it('tri12i4 is 9.85 times smaller than f16', () => {
  expect(keysOf('f16').pageBytes / keysOf('tri12i4').pageBytes).toBeCloseTo(9.85, 2);
});

describe('scores', () => {
  const start = 896;
  const random = createRandom(5);
  const x = normals(random, 128 * 2 * 128);
  const score = (spec: string, query: Float32Array, head: number) => {
    const codec = keysOf(spec);
    const page = new Uint8Array(codec.pageBytes);
    codec.encode(x, 128, page, start);
    const dots = new Float32Array(128);
    codec.dotKeys(codec.transformQuery(query, head, start), page, head, 128, dots);
    return { codec, page, dots };
  };

  it.each(['tri12i4', 'tri16i8', 'tri20i16'])(
    '%s: the same from coefficients, reconstructed keys and decoded keys',
    spec => {
      const query = normals(random, 128);
      const direct = score(spec, query, 1);
      const reconstructed = score(`${spec}-rec`, query, 1);
      expect([...direct.page]).toEqual([...reconstructed.page]);
      const decoded = new Float32Array(x.length);
      direct.codec.decode(direct.page, 128, decoded, start);
      for (let t = 0; t < 128; t++) {
        const key = decoded.subarray((2 * t + 1) * 128, (2 * t + 2) * 128);
        const size = norm(query) * norm(key);
        const exact = key.reduce((sum, k, i) => sum + k * query[i], 0);
        expect(Math.abs(direct.dots[t] - reconstructed.dots[t]) / size).toBeLessThan(1e-6);
        expect(Math.abs(direct.dots[t] - exact) / size).toBeLessThan(1e-6);
      }
    },
  );

  it('depend only on the distance between key and query', () => {
    const headDim = 32;
    const ropeFrequencies = createRopeFrequencies(headDim);
    const codec = createCodec('tri6i8/f16', { headDim, ropeFrequencies }).keys;
    const [key, query] = [normals(random, headDim), normals(random, headDim)];
    const rotateTo = (vector: Float32Array, position: number) => {
      const rotated = Float64Array.from(vector);
      applyRope(rotated, ropeFrequencies, position);
      return Float32Array.from(rotated);
    };
    const scores = [0, 128, 4096].map(from => {
      const page = new Uint8Array(codec.pageBytes);
      codec.encode(rotateTo(key, from), 1, page, from);
      const dots = new Float32Array(1);
      codec.dotKeys(codec.transformQuery(rotateTo(query, from + 77), 0, from), page, 0, 1, dots);
      return dots[0];
    });
    expect(scores[1]).toBeCloseTo(scores[0], 2);
    expect(scores[2]).toBeCloseTo(scores[0], 2);
  });
});

describe('the number of pairs', () => {
  const headDim = 64;

  it('follows from the measured energy shares of the samples', () => {
    const sizes = [8, 4, 2, 1];
    const x = Float32Array.from({ length: 100 * headDim }, (_, i) => sizes[(i % headDim) / 2] ?? 0);
    const shares = energyShares(samplesOf(x, { headDim, kvHeads: 1 }), { headDim });
    expect([...shares.subarray(0, 4)]).toEqual([64 / 85, 80 / 85, 84 / 85, 1]);
    expect([0.7, 0.95, 0.98, 1].map(share => pairsForShare(shares, share))).toEqual([1, 3, 3, 4]);
  });

  it('the energy share of Gaussian keys matches the formula', () => {
    const x = normals(createRandom(3), 2000 * headDim);
    const shares = energyShares(samplesOf(x, { headDim, kvHeads: 1 }), { headDim });
    expect(shares[11]).toBeCloseTo(gaussianEnergyShare(12, 32), 2);
  });

  it('has at most all pairs, and more for a larger share', () => {
    const share = fc.double({ min: 0, max: 2, noNaN: true });
    fc.assert(
      fc.property(fc.array(share, { minLength: 1, maxLength: 40 }), share, share, (list, a, b) => {
        const shares = Float64Array.from(list).sort();
        const [fewer, more] = [Math.min(a, b), Math.max(a, b)].map(x => pairsForShare(shares, x));
        expect(fewer).toBeGreaterThanOrEqual(1);
        expect(more).toBeGreaterThanOrEqual(fewer);
        expect(more).toBeLessThanOrEqual(shares.length);
      }),
    );
  });

  it('of tri-i4 is that of 95 % of the energy of the samples', () => {
    const sizes = [8, 4, 2, 1];
    const x = Float32Array.from({ length: 100 * headDim }, (_, i) => sizes[(i % headDim) / 2] ?? 0);
    const samples = samplesOf(x, { headDim, kvHeads: 1 });
    const learned = learn('tri-i4/f16', { headDim }, { key: samples, value: samples });
    const { keys } = createCodec('tri-i4/f16', { headDim }, learned);
    expect(keys.pageBytes).toBe(createCodec('tri3i4/f16', { headDim }).keys.pageBytes);
    expect(keys.notice).toBeUndefined();
  });

  it('of tri-i4 is the default without a profile, with a notice', () => {
    const shape = { headDim, ropeFrequencies: createRopeFrequencies(headDim) };
    const { keys } = createCodec('tri-i4/f16', shape);
    expect(keys.pageBytes).toBe(createCodec('tri10i4/f16', shape).keys.pageBytes);
    expect(keys.notice).toMatch(/keeps 10 RoPE pairs in every layer.*kvasir calibrate MODEL --kv tri-i4\/f16/);
  });

  it('is 10 to 16 without samples, depending on RoPE and shape', () => {
    const pairs = (d: number, base: number) =>
      defaultPairs({ headDim: d, kvHeads: 1, pageTokens: 128, ropeFrequencies: createRopeFrequencies(d, base) });
    expect([pairs(64, 10_000), pairs(128, 10_000), pairs(128, 500_000), pairs(256, 10_000)]).toEqual([10, 11, 12, 16]);
  });
});

it('rejects a spec without a codec for the values and suggests one', () => {
  expect(() => createCodec('tri12i4', { headDim: 64 })).toThrow(SpecError);
  expect(() => createCodec('tri12i4', { headDim: 64 })).toThrow(/tri12i4\/tq4/);
});
