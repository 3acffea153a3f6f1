import { describe, expect, it } from 'vitest';
import { compareScores, mcNemar, pairedBootstrap, wilsonInterval } from './statistics.ts';
import { summarize } from './summarize.ts';

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

describe('pairedBootstrap', () => {
  it('contains the mean, narrows with the count, and is deterministic', () => {
    const few = [0.5, -0.5, 0.5, 0.1];
    const many = Array.from({ length: 100 }, () => few).flat();
    const { interval, p } = pairedBootstrap(many);
    expect(interval[0]).toBeLessThan(0.15);
    expect(interval[1]).toBeGreaterThan(0.15);
    // The standard error of the mean of 400 with a standard deviation of .41.
    expect(interval[1] - interval[0]).toBeCloseTo(2 * 1.96 * 0.0205, 2);
    expect(p).toBeLessThan(0.001);
    expect(pairedBootstrap(many)).toEqual({ interval, p });
    expect(pairedBootstrap(few).p).toBeGreaterThan(0.05);
  });

  it('of no difference, or of nothing, has p = 1', () => {
    expect(pairedBootstrap([0, 0, 0])).toEqual({ interval: [0, 0], p: 1 });
    expect(pairedBootstrap([]).p).toBe(1);
  });
});

describe('compareScores', () => {
  it('uses McNemar for right and wrong, and the bootstrap for anything between', () => {
    const reference = [1, 1, 1, 1, 1, 1, 0, 0];
    const scores = [0, 0, 0, 0, 0, 0, 0, 0];
    expect(compareScores(scores, reference)).toMatchObject({ items: 8, difference: -0.75, p: expect.closeTo(2 / 64) });
    const partly = compareScores(
      reference.map(score => score / 2),
      reference,
    );
    expect(partly.difference).toBeCloseTo(-0.375, 10);
    expect(partly.p).toBeLessThan(0.01);
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
