import { describe, expect, it } from 'vitest';
import { compareScores, mcNemar, pairedInterval, signFlip, wilsonInterval } from './statistics.ts';
import { summarize } from './summarize.ts';

/** Numbers marked with SciPy are of its release 1.17.1. */

describe('wilsonInterval', () => {
  // Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20.
  it.each([
    [81, 263, 0.2553, 0.3662],
    [15, 148, 0.0624, 0.1605],
    [0, 20, 0, 0.1611],
  ])('of %i in %i', (right, count, low, high) => {
    const interval = wilsonInterval(right / count, count);
    expect(interval[0]).toBeCloseTo(low, 4);
    expect(interval[1]).toBeCloseTo(high, 4);
  });

  it.each([
    [7, 20, 0.1811918241010821, 0.5671457233147637],
    [160, 300, 0.47681490758540607, 0.5890088943329576],
    [300, 300, 0.9873570287754541, 1],
    [1, 1, 0.20654931437723745, 1],
  ])('of %i in %i, as in SciPy (proportion_ci)', (right, count, low, high) => {
    const interval = wilsonInterval(right / count, count);
    expect(interval[0]).toBeCloseTo(low, 12);
    expect(interval[1]).toBeCloseTo(high, 12);
  });

  it('of nothing is everything', () => expect(wilsonInterval(0, 0)).toEqual([0, 1]));
});

describe('mcNemar', () => {
  it('is the two-sided binomial test', () => {
    expect(mcNemar(0, 0)).toBe(1);
    expect(mcNemar(5, 5)).toBe(1);
    expect(mcNemar(0, 6)).toBeCloseTo(2 / 64, 12);
    // 2 (1 + 10 + 45) / 1024
    expect(mcNemar(8, 2)).toBeCloseTo(112 / 1024, 12);
    expect(mcNemar(0, 5000)).toBeLessThan(1e-300);
  });
});

it.each([
  [3, 12, 0.03515625],
  [10, 25, 0.016673847800120715],
  [61, 40, 0.046044066929342785],
  [1, 0, 1],
])('mcNemar of %i and %i, as in SciPy (binomtest)', (first, second, p) =>
  expect(mcNemar(first, second)).toBeCloseTo(p, 12),
);

describe('signFlip', () => {
  it.each([
    [[0.5, -0.5, 0.5, 0.1], 0.625],
    [[0.25, 0.5, 0.75, 0.1, 0.3, 0.2, -0.05], 0.03125],
    [[0, -0.5, -0.5, 0, 0.5, 0, 0, -0.2, -0.1, 0, -0.4, -0.1], 28 / 128],
  ])('of %j, by hand or as in SciPy (permutation_test)', (differences, p) =>
    expect(signFlip(differences)).toBeCloseTo(p, 12),
  );

  it('of many is close to what SciPy finds with all signs, and deterministic', () => {
    const many = [0.3, -0.1, 0.2, 0.05, 0.4, -0.2, 0.1, 0.15, 0.25, -0.05, 0.35, 0.02, 0.12, -0.3, 0.22, 0.18];
    expect(signFlip(many)).toBeCloseTo(0.050933837890625, 2);
    expect(signFlip(many)).toBe(signFlip(many));
    expect(signFlip(Array.from({ length: 500 }, () => 0.1))).toBeCloseTo(1 / 10_001, 12);
  });

  it("is McNemar's test for differences of right and wrong", () =>
    expect(signFlip([1, 1, 1, -1, 1, 0, 0, 1])).toBeCloseTo(mcNemar(5, 1), 12));

  it('is 1 for one item, for no difference, and for nothing', () => {
    expect(signFlip([-0.2])).toBe(1);
    expect(signFlip([0, 0, 0])).toBe(1);
    expect(signFlip([])).toBe(1);
  });
});

describe('pairedInterval', () => {
  it('contains the mean, and narrows with the count', () => {
    const interval = pairedInterval(Array.from({ length: 100 }, () => [0.5, -0.5, 0.5, 0.1]).flat());
    expect(interval[0]).toBeLessThan(0.15);
    expect(interval[1]).toBeGreaterThan(0.15);
    // The standard error of the mean of 400 with a standard deviation of .41.
    expect(interval[1] - interval[0]).toBeCloseTo(2 * 1.96 * 0.0205, 2);
  });

  it("is Bonett and Price's, by hand: 3 of 98 better, 5 worse", () => {
    // (4 - 6) / 100, and the root of (4 + 6 - 2 * 2 / 100) / 100 / 100.
    const differences = [...Array(3).fill(1), ...Array(5).fill(-1), ...Array(90).fill(0)];
    const [low, high] = pairedInterval(differences);
    expect(low).toBeCloseTo(-0.02 - 1.959964 * Math.sqrt((0.1 - 0.0004) / 100), 6);
    expect(high).toBeCloseTo(-0.02 + 1.959964 * Math.sqrt((0.1 - 0.0004) / 100), 6);
  });

  it('bounds what answers without a difference say', () => {
    const widthOf = (count: number) => pairedInterval(Array(count).fill(0))[1];
    expect(widthOf(20)).toBeCloseTo(0.126, 3);
    expect(widthOf(300)).toBeCloseTo(0.0092, 4);
    expect(pairedInterval([])).toEqual([-1, 1]);
  });
});

describe('compareScores', () => {
  it('uses McNemar for right and wrong, and random signs for anything between', () => {
    const reference = [1, 1, 1, 1, 1, 1, 0, 0];
    const scores = [0, 0, 0, 0, 0, 0, 0, 0];
    expect(compareScores(scores, reference)).toMatchObject({ items: 8, difference: -0.75, p: expect.closeTo(2 / 64) });
    const partly = compareScores(
      reference.map(score => score / 2),
      reference,
    );
    expect(partly.difference).toBeCloseTo(-0.375, 10);
    expect(partly.p).toBe(2 / 64);
  });
});

describe('summarize', () => {
  const item = (id: string, said: string, score: number, group?: string) => ({
    ...{ id, said: [said], scores: [score], tokens: 1 },
    ...(group && { group }),
  });
  const f16 = { plan: { spec: 'f16', bits: 16 }, results: [item('1', 'a', 1, 'x'), item('2', 'b', 0, 'y')] };

  it('compares on the items that both have, and counts answers that agree though wrong', () => {
    const tq4 = { plan: { spec: 'tq4', bits: 4.25 }, results: [item('2', 'b', 0, 'y')], tokensPerSecond: 5 };
    const [reference, row] = summarize([f16, tq4]);
    expect(reference).toMatchObject({ kv: 'f16', items: 2, accuracy: 0.5, groups: { x: 1, y: 0 } });
    expect(reference.comparison).toBeUndefined();
    expect(row).toMatchObject({ items: 1, accuracy: 0, comparison: { items: 1, difference: 0, agreement: 1, p: 1 } });
    expect(row.groups).toBeUndefined();
  });

  it('has the mean of several answers, and no row without results', () => {
    const sampled = { id: '1', said: ['a', 'c'], scores: [1, 0], tokens: 2 };
    const rows = summarize([f16, { plan: { spec: 'tq4', bits: 4 }, results: [sampled] }, { ...f16, results: [] }]);
    expect(rows).toHaveLength(2);
    expect(rows[1]).toMatchObject({ accuracy: 0.5, comparison: { difference: -0.5, agreement: 0.5 } });
  });
});
