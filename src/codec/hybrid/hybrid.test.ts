import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { UnsupportedError } from '../../util/errors.ts';
import { createCodec, type KvShape, learn } from '../kv.ts';
import { samplesOf } from '../learned.ts';
import { createRandom, normals } from '../parts/random.ts';
import { measureLoss } from '../validate.ts';
import { levelScales } from './sorted-halves.ts';

const SHAPE = { headDim: 64, kvHeads: 2, pageTokens: 128 };

/** Every third dim of head 0 and every second of head 1 is larger. */
const unequalDims = (seed: number, gain: number): Float32Array =>
  normals(createRandom(seed), 128 * 128).map((x, i) => x * ((i % 64) % (i % 128 < 64 ? 3 : 2) === 0 ? gain : 1));

function keyErrors(gain: number, ...specs: string[]): number[] {
  const samples = samplesOf(unequalDims(1, gain), SHAPE);
  return specs.map(spec => {
    const learned = learn(spec, SHAPE, { key: samples, value: samples });
    return measureLoss(createCodec(spec, SHAPE, learned).keys, unequalDims(2, gain)).mse;
  });
}

describe('-v, the finer half by calibrated variance', () => {
  it('has less error than the first half of the rotated dims, if dims differ', () => {
    const [fixed, chosen] = keyErrors(4, 'tq35', 'tq35-v');
    expect(chosen).toBeLessThan(0.7 * fixed);
    const [fixedNoQjl, chosenNoQjl] = keyErrors(4, 'tq25-noqjl', 'tq25-v-noqjl');
    expect(chosenNoQjl).toBeLessThan(0.8 * fixedNoQjl);
  });

  it('has the same error if all dims are alike', () => {
    const [fixed, chosen] = keyErrors(1, 'tq35', 'tq35-v');
    expect(chosen / fixed).toBeCloseTo(1, 1);
  });

  it('has the same bytes', () => {
    const shape: KvShape = { headDim: 128 };
    const variance = new Float32Array(128).fill(1);
    const bytes = (spec: string) => createCodec(spec, shape, { key: { variance }, value: { variance } }).keys.pageBytes;
    expect(bytes('tq35-v')).toBe(bytes('tq35'));
  });

  it('needs a profile', () => {
    expect(() => createCodec('tq35-v', SHAPE)).toThrow(UnsupportedError);
    expect(() => createCodec('tq35-v', SHAPE)).toThrow(/"variance" is missing.*kvasir calibrate/);
    expect(createCodec('tq35', SHAPE).spec).toBe('tq35');
  });
});

describe('the scales of the two tables', () => {
  it('are the root mean squares of the halves of a unit vector, if the ratio of energies is a power of two', () => {
    const variance = Float32Array.of(1, 8, 1, 8, 8, 1, 1, 8);
    const [fine, coarse] = levelScales(variance, { headDim: 4, kvHeads: 2, pageTokens: 128 });
    expect(fine ** 2).toBeCloseTo(16 / 9, 6);
    expect(coarse ** 2).toBeCloseTo(2 / 9, 6);
  });

  it('are finite, preserve the norm and favor the finer half, whatever a profile contains', () => {
    const numbers = fc.float({ noNaN: true, noDefaultInfinity: true });
    fc.assert(
      fc.property(fc.array(numbers, { minLength: 10, maxLength: 10 }), variance => {
        const [fine, coarse] = levelScales(Float32Array.from(variance), { headDim: 5, kvHeads: 2, pageTokens: 128 });
        expect(fine ** 2 + coarse ** 2).toBeCloseTo(2, 9);
        expect(fine).toBeGreaterThanOrEqual(coarse);
        expect(coarse).toBeGreaterThan(0);
      }),
    );
  });
});
