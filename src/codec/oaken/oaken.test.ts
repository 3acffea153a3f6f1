import { describe, expect, it } from 'vitest';
import type { Shape } from '../codec.ts';
import { createCodec, learn } from '../kv.ts';
import { gaussianSamples, samplesOf } from '../learned.ts';
import { createRandom, normals } from '../parts/random.ts';
import { measureLoss } from '../validate.ts';
import { learnThresholds } from './oaken.ts';

const TOKENS = 128;

function create(shape: Pick<Shape, 'headDim' | 'kvHeads'>, samples = gaussianSamples(shape, 512)) {
  return createCodec('oaken', shape, learn('oaken', shape, { key: samples, value: samples }));
}

describe('thresholds', () => {
  it('split skewed values into 4 % outer, 6 % inner and 90 % middle', () => {
    const shape = { headDim: 64, kvHeads: 2 };
    const skewed = normals(createRandom(4), 64 * 2 * 500).map(x => Math.exp(x) - 1.5);
    const [outerLow, innerLow, innerHigh, outerHigh] = learnThresholds(samplesOf(skewed, shape), 64);
    const share = (test: (x: number) => boolean) => skewed.filter(test).length / skewed.length;
    expect(share(x => x < outerLow || x > outerHigh)).toBeCloseTo(0.04, 3);
    expect(share(x => x >= innerLow && x <= innerHigh)).toBeCloseTo(0.06, 3);
    expect(innerLow).toBeLessThan(0);
    expect(innerHigh).toBeGreaterThan(0);
  });

  it('are learned from a subset of many vectors that covers all dims', () => {
    const many = normals(createRandom(5), 64 * 20_000).map((x, i) => x * (i % 64 === 63 ? 100 : 1));
    const [outerLow, , , outerHigh] = learnThresholds(samplesOf(many, { headDim: 64, kvHeads: 1 }), 64);
    const outer = many.filter(x => x < outerLow || x > outerHigh).length / many.length;
    expect(outer).toBeCloseTo(0.04, 2);
  });

  it('are ascending if all values have one sign', () => {
    const x = normals(createRandom(4), 64 * 500).map(Math.abs);
    const thresholds = [...learnThresholds(samplesOf(x, { headDim: 64, kvHeads: 1 }), 64)];
    expect(thresholds).toEqual([...thresholds].sort((a, b) => a - b));
  });
});

describe('a page', () => {
  const shape = { headDim: 128, kvHeads: 8 };
  const values = TOKENS * 1024;

  it('needs 4.8 bits at 1024 values per token: 4 dense, .8 in lists; ranges and counts add .16, unused capacity .33', () => {
    const { keys } = create(shape);
    const used = keys.encode(normals(createRandom(2), values), TOKENS, new Uint8Array(keys.pageBytes), 0);
    const bytes = Object.fromEntries(
      keys.fields.map(({ name, bytes, per }) => [name, per === 'head' ? 8 * bytes : bytes]),
    );
    const bits = (n: number) => (8 * n) / values;
    const lists = used - (keys.pageBytes - bytes.lists);
    expect(bits(bytes.codes + lists)).toBeGreaterThan(4.78);
    expect(bits(bytes.codes + lists)).toBeLessThan(4.82);
    expect(bits(used)).toBeLessThan(4.972);
    expect(bits(keys.pageBytes)).toBeLessThan(5.29);
  });

  it('stores outliers with a lower error than 4-bit ranges without outlier lists', () => {
    const codec = create({ headDim: 64, kvHeads: 2 });
    const kivi = createCodec('kivi4g32-token', { headDim: 64, kvHeads: 2 });
    const x = normals(createRandom(7), TOKENS * 128).map((value, i) => (i % 61 === 5 ? 12 * value : value));
    expect(measureLoss(codec.keys, x).mse).toBeLessThan(measureLoss(kivi.keys, x).mse);
  });

  it('drops inner values first if the lists exceed their capacity', () => {
    const codec = create({ headDim: 64, kvHeads: 2 });
    const page = new Uint8Array(codec.keys.pageBytes);
    const out = new Float32Array(TOKENS * 128);
    const errorOf = (x: Float32Array) => {
      const used = codec.keys.encode(x, TOKENS, page, 0);
      expect(used).toBeLessThanOrEqual(codec.keys.pageBytes);
      codec.keys.decode(page, TOKENS, out, 0);
      return measureLoss(codec.keys, x).mse;
    };
    // A third of the values are small: too many inner ones. Each has an error of the threshold and part of a step, .01 of
    // the energy in total; the others add .008.
    expect(errorOf(normals(createRandom(1), TOKENS * 128).map((x, i) => (i % 3 ? x : x / 50)))).toBeLessThan(0.02);
    // All values are large: too many outer ones.
    expect(errorOf(normals(createRandom(1), TOKENS * 128).map(x => 3 * x))).toBeLessThan(0.5);
    expect(out.every(Number.isFinite)).toBe(true);
  });

  it('counts the outliers without an entry', () => {
    const { keys } = create({ headDim: 64, kvHeads: 2 });
    const count = (x: Float32Array) => {
      const page = new Uint8Array(keys.pageBytes);
      keys.encode(x, TOKENS, page, 0);
      return keys.outliers!(page);
    };
    const x = normals(createRandom(1), TOKENS * 128);
    const [outerLow, innerLow, innerHigh, outerHigh] = learnThresholds(gaussianSamples(keys.shape, 512), 64);
    const outer = (y: number) => y < outerLow || y > outerHigh;
    const inner = (y: number) => y >= innerLow && y <= innerHigh;
    const all = x.filter(y => outer(y) || inner(y)).length;
    expect(count(x)).toEqual({ listed: all, dropped: 0 });

    const manyInner = x.map((y, i) => (i % 3 ? y : y / 50));
    const dropped = manyInner.filter(inner).length;
    expect(count(manyInner)).toEqual({ listed: manyInner.filter(outer).length, dropped });

    const large = x.map(y => 3 * y);
    const found = count(large);
    expect(found.listed + found.dropped).toBe(large.filter(y => outer(y) || inner(y)).length);
    expect(found.dropped).toBeGreaterThan(found.listed);
  });

  it('of unknown origin is valid if its lists stay inside it, and their entries inside a vector', () => {
    const [headDim, kvHeads] = [96, 2];
    const { keys } = create({ headDim, kvHeads });
    const page = new Uint8Array(keys.pageBytes);
    expect(keys.isValid?.(page)).toBe(true);
    keys.encode(normals(createRandom(6), TOKENS * kvHeads * headDim), TOKENS, page, 0);
    expect(keys.isValid?.(page)).toBe(true);
    const { encoding, sharedBytes } = keys.layout;
    if (encoding.kind !== 'oaken') return expect.unreachable();
    const { listStartsOffset, listCountsOffset, listsOffset, listsCapacity } = encoding;
    const isValidWith = (change: (view: DataView) => void) => {
      const changed = page.slice();
      change(new DataView(changed.buffer));
      return keys.isValid?.(changed);
    };
    for (const start of [listsCapacity, listsCapacity + 1, 2 ** 31, 2 ** 32 - 1])
      expect(isValidWith(view => view.setUint32(listStartsOffset, start, true))).toBe(false);
    // 255 entries per list are more than the capacity.
    const fill = (offset: number, length: number) => (view: DataView) =>
      new Uint8Array(view.buffer, offset, length).fill(255);
    expect(isValidWith(fill(listsOffset, listsCapacity))).toBe(false);
    expect(isValidWith(fill(sharedBytes + listCountsOffset, TOKENS))).toBe(false);
    // Dim 32 of the second block would be dim 96 of the vector.
    const counts = page.subarray(sharedBytes + listCountsOffset);
    const token = Array.from({ length: TOKENS }, (_, t) => t).find(t => (counts[t] & 15) < 15 && counts[t] >> 4 > 0)!;
    let before = 0;
    for (let t = 0; t < token; t++) before += (counts[t] & 15) + (counts[t] >> 4);
    expect([...counts.subarray(0, token)].every(both => (both & 15) < 15 && both >> 4 < 15)).toBe(true);
    const entry = listsOffset + before + (counts[token] & 15);
    expect(isValidWith(view => view.setUint8(entry, 31))).toBe(true);
    expect(isValidWith(view => view.setUint8(entry, 32))).toBe(false);
  });

  it('has nearly the same error with thresholds from other samples of the same distribution', () => {
    const half = { headDim: 64, kvHeads: 1 };
    const [a, b] = [5, 6].map(seed => normals(createRandom(seed), 64 * 512).map((x, i) => x * (1 + (i % 7))));
    const [own, others] = [a, b].map(x => measureLoss(create(half, samplesOf(x, half)).keys, a).mse);
    expect(others / own).toBeLessThan(1.02);
  });
});
