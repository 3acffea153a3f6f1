import { describe, expect, it } from 'vitest';
import { codeBits } from '../codec.ts';
import { createCodec, learn, recommendedSamples } from '../kv.ts';
import { gaussianSamples, samplesOf } from '../learned.ts';
import { createNearestAssigner, createNearestSearch, kmeans } from '../parts/kmeans.ts';
import { createRandom, normals } from '../parts/random.ts';
import { parseSpec } from '../spec.ts';
import { measureLoss } from '../validate.ts';

const SHAPE = { headDim: 64, kvHeads: 1 };

/** Keys with four neighbouring channels ten times as large. Errors of the four specs below: .04 .11 .21 .24. */
const outlierChannels = (seed: number): Float32Array =>
  normals(createRandom(seed), 256 * SHAPE.headDim).map((x, i) => (i % 64 >= 20 && i % 64 < 24 ? 10 * x : x));

function keyError(spec: string): number {
  const samples = samplesOf(outlierChannels(1), SHAPE);
  const both = `${spec}/f16`;
  const codec = createCodec(both, SHAPE, learn(both, SHAPE, { key: samples, value: samples }));
  return measureLoss(codec.keys, outlierChannels(2)).mse;
}

describe('VecInfer', () => {
  it('the error increases in this order: smoothing and Hadamard, Hadamard only, smoothing only, neither', () => {
    const specs = ['vec-d4b8', 'vec-d4b8-had', 'vec-d4b8-smooth', 'million-d4b8'];
    const errors = specs.map(keyError);
    for (let i = 1; i < errors.length; i++) expect(errors[i - 1], specs[i]).toBeLessThan(errors[i]);
  });

  it.each([
    ['vec-d2b8', 4],
    ['vec-d4b12', 3],
    ['vec-d4b8', 2],
    ['vec-d8b12', 1.5],
    ['vec-d8b8', 1],
  ])('%s has exactly %f bits per value, and 1/8 more for the mean of keys', (spec, bits) => {
    const samples = gaussianSamples(SHAPE, 16);
    const { keys, values } = createCodec(spec, SHAPE, learn(spec, SHAPE, { key: samples, value: samples }));
    expect([codeBits(keys), codeBits(values)]).toEqual([bits + 0.125, bits]);
  });

  it('supports different codecs for keys and values: vec-d8b12-raw/vec-d8b8 has 1.25 bits', () => {
    const samples = gaussianSamples(SHAPE, 16);
    const spec = 'vec-d8b12-raw/vec-d8b8';
    const { keys, values } = createCodec(spec, SHAPE, learn(spec, SHAPE, { key: samples, value: samples }));
    expect((codeBits(keys) + codeBits(values)) / 2).toBe(1.25);
  });

  it('learns deterministically, the codebooks under the name of the spec', () => {
    const shape = { headDim: 16, kvHeads: 2 };
    const samples = gaussianSamples(shape, 100);
    const learned = learn('vec-d4b4-own', shape, { key: samples, value: samples });
    const books = 'vec-d4b4-own.centered';
    expect(Object.keys(learned.key ?? {})).toEqual([`${books}.smoothing`, books, `${books}.error`]);
    expect(Object.keys(learned.value ?? {})).toEqual(['vec-d4b4-own', 'vec-d4b4-own.error']);
    expect(learned).toEqual(learn('vec-d4b4-own', shape, { key: samples, value: samples }));
  });

  it('learns what each side needs, and no more', () => {
    const samples = gaussianSamples({ headDim: 16, kvHeads: 2 }, 64);
    const namesOf = (spec: string) => {
      const { key = {}, value = {} } = learn(spec, { headDim: 16, kvHeads: 2 }, { key: samples, value: samples });
      return [Object.keys(key), Object.keys(value)];
    };
    expect(namesOf('vec-d8b4/vec-d4b3')).toEqual([
      ['vec-d8b4.centered.smoothing', 'vec-d8b4.centered', 'vec-d8b4.centered.error'],
      ['vec-d4b3', 'vec-d4b3.error'],
    ]);
    expect(namesOf('vec-d8b4-raw/tq4')).toEqual([['vec-d8b4-raw.smoothing', 'vec-d8b4-raw', 'vec-d8b4-raw.error'], []]);
    expect(namesOf('tq4/vec-d4b3')).toEqual([[], ['vec-d4b3', 'vec-d4b3.error']]);
  });

  it('recommends 32 sub-vectors per entry', () => {
    const shape = { headDim: 64, kvHeads: 2 };
    // A sample has 2 x 8 sub-vectors of 8 dims; with -own, one per codebook.
    expect(recommendedSamples(parseSpec('vec-d8b12'), shape)).toBe((32 * 4096) / 16);
    expect(recommendedSamples(parseSpec('tq4/vec-d8b12-own'), shape)).toBe(32 * 4096);
    expect(recommendedSamples(parseSpec('tq4'), shape)).toBe(0);
  });

  it('does not divide by zero if a channel is zero in all samples', () => {
    const shape = { headDim: 16, kvHeads: 1 };
    const samples = samplesOf(new Float32Array(16 * 64), shape);
    const { keys } = createCodec('vec-d4b2-raw', shape, learn('vec-d4b2-raw', shape, { key: samples, value: samples }));
    const page = new Uint8Array(keys.pageBytes);
    const out = new Float32Array(16);
    keys.encode(new Float32Array(16).fill(1), 1, page, 0);
    keys.decode(page, 1, out, 0);
    expect([...out]).toEqual(Array(16).fill(0));
  });
});

describe('k-means', () => {
  it('finds separated clusters and keeps the entries of empty ones', () => {
    const centres = [
      [0, 0],
      [10, 0],
      [0, 10],
    ];
    const random = createRandom(3);
    const points = Float32Array.from({ length: 600 }, (_, i) => centres[(i >> 1) % 3][i & 1] + 0.1 * random.normal());
    const book = kmeans(points, 2, 3, createRandom(8));
    const found = [0, 1, 2].map(e => [...book.subarray(2 * e, 2 * e + 2)].map(x => Math.abs(Math.round(x))).join());
    expect(found.sort()).toEqual(['0,0', '0,10', '10,0']);
    const same = kmeans(new Float32Array(20).fill(1), 2, 4, createRandom(1));
    expect([...same]).toEqual(Array(8).fill(1));
  });

  it.each([2, 3, 4, 5, 8, 16])('finds the nearest entry in %i dims', dims => {
    const random = createRandom(dims);
    const book = normals(random, 37 * dims);
    const search = createNearestSearch(book, dims);
    for (let n = 0; n < 50; n++) {
      const x = normals(random, dims);
      const distances = Array.from({ length: 37 }, (_, e) =>
        x.reduce((sum, value, i) => sum + (value - book[e * dims + i]) ** 2, 0),
      );
      expect(search(x, 0)).toBe(distances.indexOf(Math.min(...distances)));
    }
  });

  it.each([2, 3, 4, 5, 8, 16])('assigns points of %i dims to the same entries as the search', dims => {
    const random = createRandom(dims);
    for (const entries of [1, 2, 37, 300]) {
      const book = normals(random, entries * dims);
      const points = normals(random, 203 * dims);
      const search = createNearestSearch(book, dims);
      const cells = createNearestAssigner(points, dims, entries)(book, 201);
      expect([...cells]).toEqual(Array.from({ length: 201 }, (_, i) => search(points, i * dims)));
    }
    // The first of equally near entries.
    const twice = Float32Array.from({ length: 2 * dims }, () => 1);
    expect([...createNearestAssigner(twice, dims, 2)(twice, 2)]).toEqual([0, 0]);
  });
});
