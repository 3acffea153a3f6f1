/** Random interleavings of conversations on a cache that is too small for them, with tiers below it. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createHostStore } from '../src/store/host-store.ts';
import { actions, fewActions, playActions } from './support/interleavings.ts';
import { load } from './support/lifetimes.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';

/**
 * Interleavings of 8 to 30 actions, 80 ms of CPU time each, and of 3 to 7, on the same cache. `npm run test:all` has a
 * thousand, in half a minute of CPU time; `npm run test:long` has a thousand long ones.
 */
const [RUNS, SHORT_RUNS] = LONG_CASES ? [1000, 0] : ALL_CASES ? [60, 940] : [15, 0];

it(`${RUNS + SHORT_RUNS} interleavings of answers, with pages decoded, prefetched, saved and restored beside them`, {
  timeout: LONG_CASES ? 3_600_000 : 600_000,
}, async () => {
  const store = createHostStore({ capacity: 2 ** 22 });
  await using model = await load('wasm', {
    kv: 'tq4',
    context: 512,
    kvMemory: 70_000,
    tiers: [store],
    speculate: true,
  });
  let answers = 0;
  const play = (lists: typeof actions, numRuns: number) =>
    fc.assert(
      fc.asyncProperty(lists, async list => {
        answers += await playActions(model, list);
        const { sharedLeaves, idleSequences, running, waiting } = model.stats();
        const held = { sharedLeaves, idleSequences, running, waiting };
        expect(held).toEqual({ sharedLeaves: 0, idleSequences: 0, running: 0, waiting: 0 });
      }),
      { numRuns, endOnFailure: true },
    );
  await play(actions, RUNS);
  if (SHORT_RUNS > 0) await play(fewActions, SHORT_RUNS);
  expect(answers).toBeGreaterThan(RUNS / 2);
  const { evictions, tiers, draftedTokens } = model.stats();
  expect(draftedTokens).toBeGreaterThan(0);
  expect(evictions).toBeGreaterThan(RUNS);
  expect(tiers[0].hits).toBeGreaterThan(0);
});
