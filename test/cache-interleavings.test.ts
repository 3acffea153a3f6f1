/** Random interleavings of conversations on a cache that is too small for them, with tiers below it. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createHostStore } from '../src/store/host-store.ts';
import { actions, playActions } from './support/interleavings.ts';
import { load } from './support/lifetimes.ts';
import { ALL_CASES, LONG_CASES } from './support/matrix.ts';

const RUNS = LONG_CASES ? 1000 : ALL_CASES ? 60 : 15;

it(`${RUNS} interleavings of answers, with pages decoded, prefetched, saved and restored beside them`, {
  timeout: LONG_CASES ? 3_600_000 : 120_000,
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
  const runs = fc.asyncProperty(actions, async list => {
    answers += await playActions(model, list);
    const { sharedLeaves, idleSequences, running, waiting } = model.stats();
    expect({ sharedLeaves, idleSequences, running, waiting }).toEqual({
      sharedLeaves: 0,
      idleSequences: 0,
      running: 0,
      waiting: 0,
    });
  });
  await fc.assert(runs, { numRuns: RUNS, endOnFailure: true });
  expect(answers).toBeGreaterThan(RUNS / 2);
  const { evictions, tiers, draftedTokens } = model.stats();
  expect(draftedTokens).toBeGreaterThan(0);
  expect(evictions).toBeGreaterThan(RUNS);
  expect(tiers[0].hits).toBeGreaterThan(0);
});
