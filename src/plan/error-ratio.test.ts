import { describe, expect, it } from 'vitest';
import { createCodec, learn, placeholderLearned } from '../codec/kv.ts';
import { gaussianSamples } from '../codec/learned.ts';
import { createRandom, normals } from '../codec/parts/random.ts';
import { parseSpec } from '../codec/spec.ts';
import { SINKS } from './attention-sensitivity.ts';
import { errorRatio, errorWeights } from './error-ratio.ts';
import type { Profile } from './profile.ts';

const SHAPE = { headDim: 16, kvHeads: 2, pageTokens: 64 };
/** With fewer, codebooks fit them better than other data. */
const samples = gaussianSamples(SHAPE, 4000);
const train = (spec: string) => learn(spec, SHAPE, { key: samples, value: samples });
const LEARNED = train('mead2');
const codecs = Array(3).fill(createCodec('mead2', SHAPE, LEARNED));

/** Sensitivities that make the keys of layer 1 the only side that counts. */
const profile = {
  learned: Array(3).fill(LEARNED),
  sensitivities: { mead2: [0, 1, 0].map(key => ({ key, value: 0 })) },
} as unknown as Profile;

describe('error weights', () => {
  it('sum to 1 on text like that of the calibration', () => {
    for (const given of [undefined, profile]) {
      const weights = errorWeights(codecs, given)!;
      const sum = codecs.reduce(
        (sum, { keys, values }, layer) =>
          sum + weights[2 * layer] * keys.expectedError + weights[2 * layer + 1] * values.expectedError,
        0,
      );
      expect(sum).toBeCloseTo(1, 9);
    }
  });

  it('count each side by its share of the predicted divergence', () => {
    expect([...errorWeights(codecs, profile)!].map(weight => weight > 0)).toEqual([0, 0, 1, 0, 0, 0].map(Boolean));
  });

  it('count all sides the same without sensitivities', () => {
    const { keys, values } = codecs[0];
    const weights = errorWeights(codecs)!;
    expect(weights[0] * keys.expectedError).toBeCloseTo(1 / 6, 9);
    expect(weights[1] * values.expectedError).toBeCloseTo(1 / 6, 9);
  });

  it('leave out sides that do not search', () => {
    const mixed = createCodec('mead2/f16', SHAPE, LEARNED);
    expect(errorWeights([mixed])?.[1]).toBe(0);
  });

  it('exist only if a codec knows its error', () => {
    const { 'mead.error': _, ...old } = LEARNED.key!;
    expect(errorWeights([createCodec('mead2', SHAPE, { key: old, value: old })])).toBeUndefined();
    expect(errorWeights([createCodec('tq4', SHAPE)])).toBeUndefined();
    expect(
      errorWeights([createCodec('vec-d4b8', SHAPE, placeholderLearned(parseSpec('vec-d4b8'), SHAPE))]),
    ).toBeUndefined();
  });
});

describe('the error ratio', () => {
  const pageTokens = SINKS + 6;
  const plan = { errorWeights: Float64Array.of(0.5, 0.25), pageTokens, window: { sink: SINKS } };
  const pages = (...rows: [number, number, number][]) =>
    new Map(rows.map(([page, key, value]) => [page, Float32Array.of(key, value)]));

  it('is the weighted error per token, without sinks', () => {
    expect(errorRatio(plan, pages([0, 6, 12], [1, 20, 40]))).toEqual({ pages: 2, ratio: (6 + 20) / (6 + pageTokens) });
  });

  it('leaves out a first page whose first tokens are coded: calibration does not sample them', () => {
    const coded = { ...plan, window: { sink: 0 } };
    expect(errorRatio(coded, pages([0, 1e6, 1e6], [1, 2 * pageTokens, 0]))).toEqual({ pages: 1, ratio: 1 });
  });

  it('leaves out pages of sinks', () => {
    const manySinks = { ...plan, window: { sink: pageTokens } };
    expect(errorRatio(manySinks, pages([0, 1, 1], [1, 2 * pageTokens, 0]))).toEqual({ pages: 1, ratio: 1 });
  });

  it('is undefined without pages or weights', () => {
    expect(errorRatio(plan, new Map())).toBeUndefined();
    expect(errorRatio({ ...plan, errorWeights: undefined }, pages([1, 1, 1]))).toBeUndefined();
  });

  it.each(['mead2', 'vec-d4b4', 'million-d4b4-own'])('of %s is 1 on data like the samples, and grows with it', spec => {
    const codec = createCodec(spec, SHAPE, train(spec));
    const ratioOf = (scale: number) => {
      const x = normals(createRandom(7), 64 * 32).map(value => scale * value);
      const sides = [codec.keys, codec.values].map(side => {
        const page = new Uint8Array(side.pageBytes);
        side.encode(x, 64, page, 64);
        return side.squaredError!(x, 64, page, 64);
      });
      const weighed = { ...plan, pageTokens: 64, errorWeights: errorWeights([codec]) };
      return errorRatio(weighed, new Map([[1, Float32Array.from(sides)]]))!.ratio;
    };
    expect(ratioOf(1)).toBeGreaterThan(0.85);
    expect(ratioOf(1)).toBeLessThan(1.15);
    expect(ratioOf(1.5)).toBeGreaterThan(1.5 * ratioOf(1));
  });
});
