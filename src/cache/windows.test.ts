import { describe, expect, it } from 'vitest';
import {
  appendAll,
  createObservedDevice,
  expectContents,
  numbers,
  PAGE,
  PAUSE,
  tinyShape,
  windowedLeaf,
} from '../../test/support/tiny-cache.ts';
import { createHostStore } from '../store/host-store.ts';
import { rootKey } from '../store/leaf-key.ts';
import { createTierChain } from '../store/tier-chain.ts';
import { createKvCache, type KvCacheOptions } from './kv-cache.ts';
import { whenPrefetched } from './prefetch.ts';
import type { Sequence } from './sequence.ts';
import { readTail } from './tail.ts';

/** One layer sees all tokens, the other one the last two pages. */
const WINDOW = 2 * PAGE;
const LEAF = windowedLeaf(WINDOW);
const IDENTITY = { model: '', rope: '', plan: '', tables: '', arithmetic: '', format: 1 };
const SEALING = { pageTokens: PAGE, recent: 0 };

function create(options: Partial<KvCacheOptions> = {}) {
  const { device } = createObservedDevice();
  const cache = createKvCache({ device, shape: tinyShape(2), leaf: LEAF, recent: 0, context: 200, ...options });
  /** Runs a prompt; `found` tokens of it were in the cache. */
  const run = (prompt: readonly number[], owner?: object) => {
    const sequence = cache.open(PAUSE, prompt, '', owner);
    const found = sequence.length;
    // In chunks of a page: those of a whole chunk are all there at once.
    for (let at = found; at < prompt.length; at += PAGE) appendAll(device, sequence, prompt.slice(at, at + PAGE));
    expectContents(sequence, prompt);
    return { sequence, found };
  };
  return { cache, device, run };
}

const windowPages = ({ view }: Sequence) => view.windowPages!.flatMap((page, i) => (page ? [i] : []));

describe('layers with a window', () => {
  it('keep only the pages that they see', () => {
    const { cache, run } = create();
    const { sequence } = run(numbers(10 * PAGE + 1));
    expect(sequence.view.leaves).toHaveLength(10);
    // The next token sees its own page and the last tokens of two others.
    expect(windowPages(sequence)).toEqual([8, 9]);
    expect(sequence.bytes).toBe(
      10 * LEAF.bytes + 2 * LEAF.windowPage!.bytes + sequence.privateBytes + sequence.view.sinkBlock.bytes,
    );
    sequence.dispose();
    expect(cache.stats.cachedBytes).toBe(cache.stats.used);
  });

  it('are copied with a sequence, and given back with its last holder', () => {
    const { cache, device, run } = create();
    const { sequence } = run(numbers(5 * PAGE + 2));
    const copy = sequence.fork();
    sequence.dispose();
    appendAll(device, copy, numbers(3 * PAGE, 100));
    expectContents(copy, [...numbers(5 * PAGE + 2), ...numbers(3 * PAGE, 100)]);
    copy.dispose();
    cache.dispose();
    expect(device.allocatedBytes).toBe(0);
  });
});

describe('a prompt', () => {
  it('goes on where another one ended, and reads only what is new', () => {
    const { cache, run } = create();
    cache.keep(run(numbers(10 * PAGE + 2)).sequence);
    expect(run(numbers(12 * PAGE)).found).toBe(10 * PAGE + 2);
  });

  it('parts from another one where its window pages are still there', () => {
    const { cache, run } = create();
    cache.keep(run(numbers(10 * PAGE + 2)).sequence);
    expect(run([...numbers(5 * PAGE), 100, 101]).found).toBe(5 * PAGE);
  });

  it('goes back to where they are, if room was needed, and leaves them for the next one', () => {
    const one = create().run(numbers(10 * PAGE)).sequence.bytes;
    const { cache, run } = create({ capacity: 2.5 * one });
    cache.keep(run(numbers(10 * PAGE)).sequence);
    cache.keep(run(numbers(10 * PAGE, 1000)).sequence);
    expect(cache.stats.used).toBeLessThanOrEqual(2.5 * one);
    // The ends of both are there; what the first one had left behind has made room.
    const parted = [...numbers(5 * PAGE), 100, 101];
    expect(cache.known(numbers(11 * PAGE))).toBe(10 * PAGE);
    expect(cache.known(numbers(11 * PAGE, 1000))).toBe(10 * PAGE);
    const { found, sequence } = run(parted);
    expect(found).toBeLessThan(5 * PAGE);
    sequence.dispose();
    expect(run(parted.slice(0, -1)).found).toBe(5 * PAGE);
  });

  it('is continued by its owner from any token of the tail, and from pages before it', () => {
    const { cache, run } = create();
    const owner = {};
    cache.keep(run(numbers(8 * PAGE + 3), owner).sequence, owner);
    const { sequence, found } = run([...numbers(8 * PAGE + 2), 100], owner);
    expect(found).toBe(8 * PAGE + 2);
    expect(sequence.crop(3 * PAGE + 1)).toBe(3 * PAGE);
    expectContents(sequence, numbers(3 * PAGE));
    expect(windowPages(sequence)).toEqual([1, 2]);
  });
});

describe('tiers', () => {
  it('bring back all leaves, and the window pages of the last ones', async () => {
    const chain = createTierChain([{ store: createHostStore({ capacity: 2 ** 20 }), isOwned: true }]);
    const tiers = { chain, rootKey: (salt: string) => rootKey({ ...IDENTITY, salt }) };
    const first = create({ tiers });
    first.cache.keep(first.run(numbers(10 * PAGE + 1)).sequence);
    await first.cache.settle();
    const second = create({ tiers });
    const prompt = numbers(10 * PAGE + 3);
    const left: number[] = [];
    await whenPrefetched(onChange => {
      const prefetch = second.cache.prefetch(prompt, '', () => {
        left.push(prefetch!.progress.left);
        onChange();
      });
      return prefetch;
    });
    // Leaves are of no use until the pages of their window are there: until then whoever waits is not told otherwise.
    expect([...new Set(left)]).toEqual([10, 0]);
    expect(second.cache.stats.used).toBe(10 * LEAF.bytes + 2 * LEAF.windowPage!.bytes + second.cache.sequenceBytes);
    expect(second.run(prompt).found).toBe(10 * PAGE);
    // One that parts from it earlier needs other window pages of leaves that are there.
    const parted = [...numbers(6 * PAGE), 100, 101];
    await whenPrefetched(onChange => second.cache.prefetch(parted, '', onChange));
    expect(second.run(parted).found).toBe(6 * PAGE);
  });
});

describe('a session', () => {
  it('has the window pages of the last leaves', async () => {
    const { cache, device, run } = create();
    const tokens = numbers(6 * PAGE + 2);
    const { view } = run(tokens).sequence;
    const other = create();
    const restoring = other.cache.restore(PAUSE);
    for (const leaf of view.leaves) await restoring.addLeaf(PAUSE, await device.readBlock(leaf));
    for (const [page, block] of view.windowPages!.entries())
      if (block) await restoring.addWindowPage(PAUSE, page, await device.readBlock(block));
    const tail = await readTail(device, view, SEALING, { from: 6 * PAGE, to: tokens.length });
    const owner = {};
    await restoring.finish(PAUSE, { ids: tokens, sinks: await device.readBlock(view.sinkBlock), tail }, owner, false);
    expectContents(other.cache.idleOf(owner)!, tokens);
    expect(other.run(numbers(8 * PAGE), owner).found).toBe(6 * PAGE + 2);
    cache.dispose();
  });
});
