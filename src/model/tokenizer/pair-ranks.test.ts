import fc from 'fast-check';
import { expect, it } from 'vitest';
import { PairRanks } from './pair-ranks.ts';

it('returns the first rank added for each pair, like a Map', () => {
  const id = fc.integer({ min: 0, max: 40 });
  fc.assert(
    fc.property(fc.array(fc.tuple(id, id)), fc.array(fc.tuple(id, id)), (pairs, others) => {
      const [ranks, map] = [new PairRanks(pairs.length), new Map<string, number>()];
      pairs.forEach(([left, right], rank) => {
        ranks.add(left, right, rank);
        if (!map.has(`${left} ${right}`)) map.set(`${left} ${right}`, rank);
      });
      for (const [left, right] of [...pairs, ...others])
        expect(ranks.get(left, right)).toBe(map.get(`${left} ${right}`));
    }),
  );
});
