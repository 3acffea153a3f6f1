/** Two-tier mode: spilled pages come back as they were, whatever happens in between, and nothing leaks. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  appendAll,
  createObservedDevice,
  expectContents,
  numbers,
  PAGE,
  PAUSE,
  TWO_TIER_LEAF,
  tinyShape,
} from '../../test/support/tiny-cache.ts';
import { CapacityError } from '../util/errors.ts';
import { createKvCache } from './kv-cache.ts';
import { whenPrefetched } from './prefetch.ts';
import type { Sequence } from './sequence.ts';

const CONTEXT = 40;

const create = (pages: number, recent = 0) => {
  const { device, allocated } = createObservedDevice();
  const options = { device, shape: tinyShape(2), leaf: TWO_TIER_LEAF, recent, context: CONTEXT, spillsPages: true };
  const capacity = pages * TWO_TIER_LEAF.bytes;
  return { device, allocated, cache: createKvCache({ ...options, capacity }) };
};

it('frees the newest f16 pages of the oldest idle sequence first', () => {
  const { device, cache } = create(1000);
  const [alice, bob] = [{}, {}];
  for (const owner of [alice, bob]) {
    const sequence = cache.open(PAUSE, numbers(21), '', owner);
    appendAll(device, sequence, numbers(20));
    cache.keep(sequence, owner);
  }
  const pages = (owner: object) => cache.idleOf(owner)!.exactView!.leaves.length;
  const { capacity, used } = cache.stats;
  expect(cache.makeRoom(capacity - used + 1)).toBe(true);
  expect([pages(alice), pages(bob), cache.idleOf(alice)!.readableLength]).toEqual([3, 4, 12]);
  expect(cache.makeRoom(capacity - cache.stats.used + 4 * TWO_TIER_LEAF.exact!.bytes)).toBe(true);
  expect([pages(alice), pages(bob)]).toEqual([0, 3]);
  // What is left is reused from its start.
  expect(cache.open(PAUSE, numbers(21), '', bob).length).toBe(3 * PAGE);
});

it('a crop to the page that is decoded frees what was decoded', async () => {
  const { device, allocated, cache } = create(1000);
  const owner = {};
  const sequence = cache.open(PAUSE, numbers(21), '', owner);
  appendAll(device, sequence, numbers(20));
  cache.keep(sequence, owner);
  cache.spill(owner);
  const { readBlock } = device;
  let reads = 0;
  device.readBlock = block => {
    if (++reads === 3) cache.idleOf(owner)!.crop(2 * PAGE);
    return readBlock(block);
  };
  await whenPrefetched(onChange => cache.prefetch(numbers(21), '', onChange, owner));
  expect([reads, cache.idleOf(owner)!.exactView!.leaves.length]).toEqual([3, 2]);
  cache.forget(owner);
  cache.dispose();
  expect([cache.stats.used, allocated.size]).toEqual([0, 0]);
});

type Command = { owner: number } & (
  | { type: 'turn'; keep: number; added: number; prefetches: boolean }
  | { type: 'crop'; keep: number }
  | { type: 'spill' | 'prefetch' | 'forget' | 'tick' | 'wait' }
);

const commands = fc.array(
  fc.oneof(
    fc.record({
      type: fc.constant('turn' as const),
      owner: fc.nat(3),
      keep: fc.nat(CONTEXT),
      added: fc.integer({ min: 1, max: 14 }),
      prefetches: fc.boolean(),
    }),
    fc.record({ type: fc.constant('crop' as const), owner: fc.nat(3), keep: fc.nat(CONTEXT) }),
    fc.record({ type: fc.constantFrom('spill' as const, 'prefetch', 'forget', 'tick', 'wait'), owner: fc.nat(3) }),
  ),
  { maxLength: 40 },
);

it.each([0, 3])('random turns of four conversations, recent window %i', async recent => {
  await fc.assert(
    fc.asyncProperty(commands, fc.integer({ min: 12, max: 60 }), async (steps: Command[], pages) => {
      const { device, allocated, cache } = create(pages, recent);
      const owners = Array.from({ length: 4 }, (_, name) => ({ owner: { name }, ids: [] as number[] }));
      let clock = 0;
      const prefetch = (prompt: readonly number[], owner: object) =>
        whenPrefetched(onChange => cache.prefetch(prompt, '', onChange, owner));
      /** Whether there was room. */
      const takeTurn = (prompt: readonly number[], owner: object): boolean => {
        let sequence: Sequence | undefined;
        try {
          sequence = cache.open(PAUSE, prompt, '', owner);
          expectContents(sequence, prompt.slice(0, sequence.length));
          appendAll(device, sequence, prompt.slice(sequence.length));
          expectContents(sequence, prompt);
          cache.keep(sequence, owner);
          return true;
        } catch (error) {
          sequence?.discard();
          if (!(error instanceof CapacityError)) throw error;
          return false;
        }
      };
      const prefetches: Promise<void>[] = [];
      for (const step of steps) {
        const one = owners[step.owner];
        const { owner } = one;
        if (step.type === 'turn') {
          const prompt = [...one.ids.slice(0, step.keep), ...numbers(step.added, 1000 * ++clock)].slice(0, CONTEXT);
          if (step.prefetches) await prefetch(prompt, owner);
          one.ids = takeTurn(prompt, owner) ? prompt : [];
        } else if (step.type === 'prefetch') prefetches.push(prefetch([...one.ids, -1], owner));
        else if (step.type === 'spill') cache.spill(owner);
        else if (step.type === 'forget') cache.forget(owner);
        else if (step.type === 'crop') one.ids.length = cache.idleOf(owner)?.crop(step.keep) ?? one.ids.length;
        else if (step.type === 'tick') await undefined;
        else await new Promise(setImmediate);
        const { used, capacity } = cache.stats;
        if (used > capacity) expect(used).toBeLessThanOrEqual(capacity);
        const held = cache.idleOf(owner);
        if (held) expectContents(held, held.ids);
      }
      await Promise.all(prefetches);
      for (const { owner } of owners) cache.forget(owner);
      cache.dispose();
      expect([cache.stats.used, allocated.size]).toEqual([0, 0]);
    }),
    { numRuns: 300 },
  );
});
