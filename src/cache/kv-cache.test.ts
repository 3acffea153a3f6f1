import { describe, expect, it } from 'vitest';
import {
  appendAll,
  createObservedDevice,
  expectContents,
  LEAF,
  numbers,
  PAGE,
  PAUSE,
  TRACKED_LEAF,
  tinyShape,
} from '../../test/support/tiny-cache.ts';
import { CapacityError } from '../util/errors.ts';
import { createKvCache, type KvCacheOptions } from './kv-cache.ts';
import { f16BlockBytes } from './leaf.ts';
import { type Pause, withPause } from './pause.ts';
import { readTail, tailTokens } from './tail.ts';

/** `capacity` is given the bytes of a sequence with a full tail. */
type Settings = Omit<KvCacheOptions, 'capacity'> & { sinks: number; capacity: (sequenceBytes: number) => number };

function create({ sinks = 2, capacity, ...options }: Partial<Settings> = {}) {
  const { device } = createObservedDevice();
  const defaults = { device, shape: tinyShape(sinks), leaf: LEAF, recent: 0, context: 40, ...options };
  const { sequenceBytes } = createKvCache(defaults);
  const sealing = { pageTokens: PAGE, recent: defaults.recent };
  const tailBytes = f16BlockBytes({ ...defaults.shape, layers: LEAF.layers }, tailTokens(sealing));
  const cache = createKvCache({ ...defaults, capacity: capacity?.(sequenceBytes + tailBytes) });
  /** Runs a prompt, and returns the sequence. */
  const run = (prompt: readonly number[], salt?: string, owner?: object) => {
    const sequence = cache.open(PAUSE, prompt, salt, owner);
    appendAll(device, sequence, prompt.slice(sequence.length));
    expectContents(sequence, prompt);
    return sequence;
  };
  return { cache, device, run };
}

const alice = { name: 'alice' };

describe('nearest', () => {
  it('is the text that shares the most tokens: a page, a tail, or a running sequence', () => {
    const { cache, run } = create();
    expect(cache.nearest(numbers(20))).toEqual({ shared: 0, next: [] });
    const first = run(numbers(20));
    expect(cache.nearest(numbers(20))).toEqual({ shared: 20, next: [] });
    // Within the second page, at its beginning, and in the tail.
    for (const [shared, end] of [
      [9, 12],
      [8, 12],
      [18, 20],
    ])
      expect(cache.nearest([...numbers(shared), 100])).toEqual({ shared, next: numbers(end).slice(shared) });
    cache.keep(first);
    expect(cache.nearest([...numbers(18), 100])).toEqual({ shared: 18, next: [18, 19] });
  });

  it('does not name a text if another one is the beginning of the prompt', () => {
    const { cache, run } = create();
    cache.keep(run(numbers(20)));
    cache.keep(run([...numbers(18), 100]));
    expect(cache.nearest([...numbers(20), 200])).toEqual({ shared: 20, next: [] });
    expect(cache.nearest([...numbers(18), 200])).toEqual({ shared: 18, next: [100] });
  });

  it('is never a text of another salt', () => {
    const { cache, run } = create();
    run(numbers(20), 'alice');
    expect(cache.nearest(numbers(20), 'bob')).toEqual({ shared: 0, next: [] });
    expect(cache.nearest(numbers(20), 'alice').shared).toBe(20);
  });
});

describe('open', () => {
  it('needs the pause that work between two passes gets, while that work runs', async () => {
    const { cache } = create();
    const pauses: Pause[] = [];
    await withPause(async pause => {
      pauses.push(pause);
      expect(cache.open(pause, [1, 2]).length).toBe(0);
    });
    // @ts-expect-error: nobody else can make one.
    cache.open({ isOver: false }, [1, 2]);
    expect(() => cache.open(pauses[0], [1, 2])).toThrow(/kvasir bug: the cache was opened after its pause/);
    expect(() => cache.restore(pauses[0])).toThrow(/kvasir bug/);
  });

  it('starts empty if nothing is known', () => {
    const { cache } = create();
    const sequence = cache.open(PAUSE, numbers(20));
    expect([cache.known(numbers(20)), sequence.length]).toEqual([0, 0]);
    expect(cache.stats.used).toBe(cache.sequenceBytes);
  });

  it('reuses the sealed pages of a prompt, whether or not the sequence that sealed them is still there', () => {
    const { cache, run } = create();
    const first = run(numbers(20));
    for (const dispose of [() => {}, first.dispose]) {
      dispose();
      expect(cache.known([...numbers(10), 100])).toBe(8);
      const sequence = cache.open(PAUSE, [...numbers(10), 100]);
      expectContents(sequence, numbers(8));
      sequence.dispose();
    }
  });

  it('reuses the tail of a running sequence', () => {
    const { cache, run } = create();
    const first = run(numbers(20));
    for (const [prompt, known] of [
      [numbers(20), 19],
      [[...numbers(18), 100, 101], 18],
      [[...numbers(16), 100], 16],
    ] as const) {
      expect(cache.known(prompt)).toBe(known);
      expectContents(run(prompt), prompt);
    }
    expectContents(first, numbers(20));
    first.dispose();
  });

  it('finds nothing that a sequence has sealed whose pass failed, nor what others have sealed after it', () => {
    const { cache, run } = create();
    run(numbers(10)).dispose();
    const failed = run(numbers(20));
    const after = run(numbers(30));
    failed.discard();
    expect(cache.known(numbers(30))).toBe(8);
    expectContents(after, numbers(30));
    after.dispose();
    expect(cache.stats.used).toBe(cache.stats.cachedBytes);
    failed.discard();
  });

  it('leaves at least one token to run: its logits are needed', () => {
    const { cache, run } = create();
    run(numbers(20)).dispose();
    expect([cache.known(numbers(8)), cache.known(numbers(9)), cache.known([])]).toEqual([4, 8, 0]);
    expect(cache.open(PAUSE, []).length).toBe(0);
  });

  it('reuses nothing before the page in which the sinks end', () => {
    const { cache, run } = create({ sinks: 6 });
    run(numbers(20)).dispose();
    expect(cache.known([...numbers(6), 100, 101, 102])).toBe(0);
    expect(cache.known([...numbers(8), 100])).toBe(8);
    expectContents(run([...numbers(8), 100, 101]), [...numbers(8), 100, 101]);
  });

  it('shares nothing across salts', () => {
    const { cache, run } = create();
    cache.keep(run(numbers(20), 'me'), alice);
    expect([cache.known(numbers(20), 'me'), cache.known(numbers(20), 'you'), cache.known(numbers(20))]).toEqual([
      19, 0, 0,
    ]);
    run(numbers(20), 'you');
    expect(cache.stats.sharedLeaves).toBe(8);
  });

  it('counts the pages that were looked up and found', () => {
    const { cache, run } = create();
    run(numbers(18));
    run(numbers(18));
    expect(cache.stats).toMatchObject({ pageQueries: 10, pageHits: 4, sharedLeaves: 4, cachedLeaves: 0 });
  });

  it('evicts what was used least recently to make room', () => {
    const { cache, run } = create({ capacity: bytes => bytes + 7 * LEAF.bytes });
    run(numbers(9)).dispose();
    run(numbers(9, 100)).dispose();
    run(numbers(9)).dispose();
    run(numbers(17, 200)).dispose();
    expect([cache.known(numbers(9)), cache.known(numbers(9, 100))]).toEqual([8, 0]);
    expect(cache.stats.evictions).toBeGreaterThan(0);
    expect(cache.stats.used).toBeLessThanOrEqual(cache.stats.capacity);
  });

  it('reuses less if the prompt itself leaves no room for the rest', () => {
    const { cache, run } = create({ leaf: TRACKED_LEAF, capacity: bytes => 2 * bytes + 3 * LEAF.bytes - 8 });
    run(numbers(17)).dispose();
    const other = cache.open(PAUSE, [1, 2]);
    // Four leaves and their sinks are cached, and a sequence is open: the rest is too small for the errors of pages.
    expect(cache.known(numbers(17))).toBe(16);
    expectContents(cache.open(PAUSE, numbers(17)), numbers(12));
    expectContents(other, []);
  });

  it('throws a CapacityError if what is in use leaves no room', () => {
    const { cache, run, device } = create({ capacity: bytes => bytes + 4 * LEAF.bytes });
    const sequence = run(numbers(20));
    const known = cache.open(PAUSE, numbers(9));
    expectContents(known, numbers(8));
    expect(cache.makeRoom(known.bytesFor(1))).toBe(false);
    expect(() => known.plan(1)).toThrow(CapacityError);
    known.dispose();
    expect(() => cache.open(PAUSE, numbers(9, 100))).toThrow(CapacityError);
    expectContents(sequence, numbers(20));
    sequence.dispose();
    expectContents(run(numbers(9, 100)), numbers(9, 100));
    expect(cache.stats.used).toBe(device.allocatedBytes);
  });
});

describe('without a recent window', () => {
  it('an answer is kept for its owner as a sequence; of others, the tail is', () => {
    const { cache, run } = create();
    cache.keep(run(numbers(11)), alice);
    expect(cache.stats).toMatchObject({ idleSequences: 1, cachedTails: 0 });
    expect(cache.known(numbers(20))).toBe(11);
    cache.keep(run(numbers(11, 100)));
    expect(cache.stats).toMatchObject({ idleSequences: 1, cachedTails: 1 });
    expect(cache.known(numbers(20, 100))).toBe(11);
    expectContents(run(numbers(20, 100)), numbers(20, 100));
  });

  it('a tail is continued at any of its tokens, any number of times', () => {
    for (const [sinks, length] of [
      [0, 3],
      [2, 3],
      [2, PAGE],
      [2, PAGE + 3],
      [PAGE, 2 * PAGE],
    ]) {
      const { cache, run } = create({ sinks });
      cache.keep(run(numbers(length)));
      for (let shared = 0; shared <= length; shared++) {
        const prompt = [...numbers(shared), 100, 101];
        if (shared >= PAGE * Math.floor((length - 1) / PAGE)) expect(cache.known(prompt)).toBe(shared);
        cache.keep(run(prompt));
      }
      expect(cache.known([...numbers(length), 5])).toBe(length);
      cache.dispose();
      expect(cache.stats.used).toBe(0);
    }
  });

  it('a tail replaces those that it begins with', () => {
    const { cache, run } = create();
    for (const length of [2, 3, 3, PAGE + 1, PAGE + 3]) cache.keep(run(numbers(length)));
    // That of 3 tokens lies in the page that was sealed since.
    expect(cache.stats.cachedTails).toBe(2);
    expect(cache.known([...numbers(3), 100])).toBe(3);
  });

  it('a tail is dropped with the leaf before it', () => {
    const { cache, run } = create({ capacity: bytes => 8 * bytes });
    const failed = run(numbers(PAGE + 2));
    cache.keep(run([...numbers(PAGE + 1), 100]));
    cache.keep(run(numbers(PAGE + 2, 50)));
    expect(cache.stats.cachedTails).toBe(2);
    failed.discard();
    expect(cache.stats.cachedTails).toBe(1);
    expect(cache.makeRoom(cache.stats.capacity)).toBe(true);
    expect(cache.stats).toMatchObject({ cachedTails: 0, cachedLeaves: 0, used: 0 });
  });

  it('tails take no more than an eighth of the room that leaves need', () => {
    const { cache, run } = create({ capacity: bytes => 8 * bytes });
    for (let i = 0; i < 40; i++) cache.keep(run(numbers(11, 100 * i)));
    const { cachedTails, cachedLeaves, capacity } = cache.stats;
    expect(cachedTails).toBeGreaterThan(0);
    expect(cachedLeaves).toBeGreaterThan(cachedTails);
    expect(cache.known(numbers(12, 3900))).toBe(11);
    expect(cache.stats.used).toBeLessThanOrEqual(capacity);
  });

  it('a token that nobody has read is not kept', () => {
    const { cache, run, device } = create();
    const sequence = run(numbers(10));
    appendAll(device, sequence, [-7]);
    cache.keep(sequence);
    expect(cache.known(numbers(20))).toBe(10);
  });

  it('the owner continues the sequence itself, without a copy; others copy it', () => {
    const { cache, run } = create();
    const sequence = run(numbers(11));
    cache.keep(sequence, alice);
    expect(cache.idleOf(alice)).toBe(sequence);
    expect(cache.open(PAUSE, numbers(20))).not.toBe(sequence);
    expect(cache.open(PAUSE, numbers(20), '', alice)).toBe(sequence);
    expect([cache.idleOf(alice), cache.stats.idleSequences]).toEqual([undefined, 0]);
  });

  it('an edited message continues a copy, and the answer stays', () => {
    const { cache, run } = create();
    const sequence = run(numbers(11));
    cache.keep(sequence, alice);
    const edited = run([...numbers(10), 100, 101], '', alice);
    expect(edited).not.toBe(sequence);
    expect(cache.idleOf(alice)).toBe(sequence);
    expectContents(sequence, numbers(11));
  });

  it('an edited message continues at the last page if there is no room for a copy of the tail', () => {
    const { cache, run } = create({ capacity: bytes => bytes + 2 * LEAF.bytes });
    cache.keep(run(numbers(11)), alice);
    const edited = cache.open(PAUSE, [...numbers(10), 100], '', alice);
    expectContents(edited, numbers(8));
    expect(cache.stats.idleSequences).toBe(0);
  });

  it('each answer replaces the last one of its owner', () => {
    const { cache, run } = create();
    for (const first of [0, 100, 200]) cache.keep(run(numbers(11, first)), alice);
    expect(cache.stats.idleSequences).toBe(1);
    expect([cache.known(numbers(12)), cache.known(numbers(12, 200))]).toEqual([8, 11]);
  });
});

describe('with a recent window', () => {
  const recent = { recent: 3 };

  it('a sequence is private, while it runs and when it is idle', () => {
    const { cache, run } = create(recent);
    const sequence = run(numbers(17));
    expect(cache.known(numbers(20))).toBe(0);
    cache.keep(sequence, alice);
    expect([cache.known(numbers(20)), cache.open(PAUSE, numbers(20)).length]).toEqual([0, 0]);
    expect(cache.nearest(numbers(20), 'other').shared).toBe(0);
    expect(cache.stats).toMatchObject({ idleSequences: 1, sharedLeaves: 0, cachedLeaves: 0 });
  });

  it('its owner continues it itself, where the window is still there', () => {
    const { cache, run } = create(recent);
    const sequence = run(numbers(17));
    cache.keep(sequence, alice);
    const more = [...numbers(17), 100, 101];
    expect(run(more, '', alice)).toBe(sequence);
    cache.keep(sequence, alice);
    // The same pages are sealed after 17 tokens, and after 16; a point before that would need a window that is gone.
    expect(run([...numbers(16), 200], '', alice)).toBe(sequence);
    cache.keep(sequence, alice);
    expect(cache.open(PAUSE, [...numbers(10), 100], '', alice).length).toBe(0);
  });

  it('nothing is kept of a sequence without an owner', () => {
    const { cache, run } = create(recent);
    cache.keep(run(numbers(17)));
    expect(cache.stats.used).toBe(0);
  });
});

describe('memory', () => {
  it('of idle sequences is reclaimed before that of leaves, the least recently used first', () => {
    const { cache, run } = create({ capacity: bytes => 4 * bytes + 6 * LEAF.bytes });
    const owners = [0, 100, 200].map(first => {
      const owner = { first };
      cache.keep(run(numbers(9, first)), owner);
      return owner;
    });
    const kept = () => owners.map(owner => cache.idleOf(owner) !== undefined);
    const { capacity, used } = cache.stats;
    cache.makeRoom(capacity - used + 1);
    expect(kept()).toEqual([false, true, true]);
    expect(cache.stats).toMatchObject({ cachedLeaves: 2, sharedLeaves: 4, evictions: 0 });
    cache.makeRoom(capacity - cache.stats.used + 2 * cache.sequenceBytes);
    expect(kept()).toEqual([false, false, false]);
    expect(cache.known(numbers(9, 200))).toBe(8);
  });

  it('is made on demand, and not beyond what is in use', () => {
    const { cache, run } = create({ capacity: bytes => 2 * bytes + 4 * LEAF.bytes });
    cache.keep(run(numbers(9)), alice);
    const running = run(numbers(9, 100));
    const { capacity, used } = cache.stats;
    expect(cache.makeRoom(capacity - used)).toBe(true);
    expect(cache.stats).toMatchObject({ idleSequences: 1, used });
    expect(cache.makeRoom(capacity - used + 1)).toBe(true);
    expect(cache.stats).toMatchObject({ idleSequences: 0, cachedLeaves: 2 });
    expect(cache.makeRoom(capacity - running.bytes + 1)).toBe(false);
    expect(cache.stats).toMatchObject({ cachedLeaves: 0, sharedLeaves: 2, used: running.bytes });
    expectContents(running, numbers(9, 100));
  });

  it('of what an owner forgets is freed, except for its leaves', () => {
    const { cache, run } = create();
    cache.keep(run(numbers(11)), alice);
    cache.forget(alice);
    expect(cache.stats).toMatchObject({ idleSequences: 0, sharedLeaves: 0, cachedLeaves: 2 });
    expect(cache.known(numbers(20))).toBe(8);
  });

  it('of an empty sequence is not kept', () => {
    const { cache } = create({ recent: 3 });
    cache.keep(cache.open(PAUSE, [1, 2]), alice);
    expect(cache.stats).toMatchObject({ idleSequences: 0, used: 0 });
  });

  it.each([0, 3])('is all freed by dispose (recent %i)', recent => {
    const { cache, device, run } = create({ recent });
    cache.keep(run(numbers(30)), alice);
    cache.keep(run([...numbers(15), 100]));
    cache.dispose();
    expect([cache.stats.used, device.allocatedBytes]).toEqual([0, 0]);
  });
});

describe('a restored sequence', () => {
  const restore = (shares: boolean) => {
    const { cache, run, device } = create();
    const saved = run(numbers(11));
    const { sinkBlock, leaves } = saved.view;
    const source = create();
    const restoring = source.cache.restore(PAUSE);
    const copyInto = async () => {
      for (const leaf of leaves) await restoring.addLeaf(PAUSE, await device.readBlock(leaf));
      const sinks = await device.readBlock(sinkBlock);
      const tail = await readTail(device, saved.view, { pageTokens: PAGE, recent: 0 }, { from: 8, to: 11 });
      await restoring.finish(PAUSE, { ids: numbers(11), sinks, tail }, alice, shares);
      saved.dispose();
      cache.dispose();
    };
    return { ...source, restoring, copyInto };
  };

  it('continues where it was, and shares its leaves with prompts that begin like it', async () => {
    const { cache, copyInto } = restore(true);
    await copyInto();
    expectContents(cache.open(PAUSE, [...numbers(9), 100]), numbers(9));
    expect(cache.stats).toMatchObject({ idleSequences: 1, sharedLeaves: 2 });
    expectContents(cache.open(PAUSE, numbers(20), '', alice), numbers(11));
  });

  it('is continued by its owner only, if another device has computed it', async () => {
    const { cache, copyInto } = restore(false);
    await copyInto();
    expect([cache.known(numbers(20)), cache.open(PAUSE, numbers(20)).length]).toEqual([0, 0]);
    expectContents(cache.open(PAUSE, numbers(20), '', alice), numbers(11));
  });

  it('that is refused leaves nothing', async () => {
    const { cache, restoring } = restore(true);
    await restoring.addLeaf(PAUSE, new Uint8Array(0));
    restoring.discard();
    expect(cache.stats.used).toBe(0);
  });
});
