/** Pages that come back from tiers while others hold the room. */
import { expect, it } from 'vitest';
import {
  appendAll,
  createObservedDevice,
  expectContents,
  LEAF,
  numbers,
  PAGE,
  PAUSE,
  tinyShape,
} from '../../test/support/tiny-cache.ts';
import { createHostStore } from '../store/host-store.ts';
import { rootKey } from '../store/leaf-key.ts';
import { createTierChain } from '../store/tier-chain.ts';
import { createKvCache } from './kv-cache.ts';
import { whenPrefetched } from './prefetch.ts';

const identity = { model: '', rope: '', plan: '', tables: '', arithmetic: '', format: 1 };
const PROMPT = numbers(10 * PAGE + 1);

const openStore = () => createTierChain([{ store: createHostStore({ capacity: 2 ** 20 }), isOwned: true }]);

function create(chain: ReturnType<typeof openStore>, capacity?: number) {
  const { device } = createObservedDevice();
  const tiers = { chain, rootKey: (salt: string) => rootKey({ ...identity, salt }) };
  const shape = { device, shape: tinyShape(2), leaf: LEAF, recent: 0, context: 80 };
  return { device, cache: createKvCache({ ...shape, capacity, tiers }) };
}

it.each([1, 3, 6, 9])('a chain of ten pages that does not fit: the first %i come, and stay', async pages => {
  const chain = openStore();
  const source = create(chain);
  const sequence = source.cache.open(PAUSE, PROMPT);
  appendAll(source.device, sequence, PROMPT);
  await source.cache.settle();

  const sinks = source.cache.sequenceBytes;
  const { cache } = create(chain, pages * LEAF.bytes + sinks);
  for (let tries = 0; tries < 2; tries++) {
    await whenPrefetched(onChange => cache.prefetch(PROMPT, '', onChange));
    expect([cache.stats.cachedLeaves, cache.stats.evictions]).toEqual([pages, 0]);
    expect(cache.known(PROMPT)).toBe(pages * PAGE);
  }
});

it('makes room of what nobody uses, other than its own pages', async () => {
  const chain = openStore();
  const source = create(chain);
  const sequence = source.cache.open(PAUSE, PROMPT);
  appendAll(source.device, sequence, PROMPT);
  await source.cache.settle();

  const { device, cache } = create(chain, 12 * LEAF.bytes + 2 * source.cache.sequenceBytes);
  const other = PROMPT.map(id => id + 100).slice(0, 8 * PAGE + 1);
  const old = cache.open(PAUSE, other);
  appendAll(device, old, other.slice(0, -1));
  old.dispose();
  expect(cache.stats.cachedLeaves).toBe(8 - 1);
  await whenPrefetched(onChange => cache.prefetch(PROMPT, '', onChange));
  expect(cache.known(PROMPT)).toBe(10 * PAGE);
  const found = cache.open(PAUSE, PROMPT);
  expectContents(found, PROMPT.slice(0, 10 * PAGE));
  found.dispose();
});
