/** Sequences that share leaves and sinks: forks, and those that find each other's pages in the index. */
import { describe, expect, it } from 'vitest';
import {
  appendAll,
  appendTokens,
  createObservedDevice,
  expectContents,
  LEAF,
  numbers,
  PAGE as P,
  tinyShape,
} from '../../test/support/tiny-cache.ts';
import { CapacityError } from '../util/errors.ts';
import { createSequence } from './create-sequence.ts';
import { createPool, type Pool } from './pool.ts';
import { createPrefixIndex, type PrefixIndex } from './prefix.ts';
import type { Leaf } from './prefix-node.ts';
import { type Sequence, type SequenceOptions, sinkPage } from './sequence.ts';

type Settings = SequenceOptions & { capacity: number; sinks: number };

/** Sequences that share a pool and an index, filled with values that identify their texts. */
function createShared({ capacity = 10_000, sinks = 2, ...options }: Partial<Settings> = {}) {
  const { device } = createObservedDevice();
  /** What a full pool does; evicting by default. */
  const reclaim = { use: () => index.evict() };
  const pool: Pool = createPool(device, {
    capacity,
    reclaim: () => reclaim.use(),
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  const index: PrefixIndex = createPrefixIndex(() => pool, { pageTokens: P });
  const shape = tinyShape(sinks);
  const defaults = { device, pool, index, shape, leaf: LEAF, recent: 0, context: 40, ...options };
  const open = (more: Partial<SequenceOptions> = {}) => createSequence({ ...defaults, ...more });
  /** A sequence with these tokens. */
  const fill = (ids: readonly number[], more?: Partial<SequenceOptions>) => {
    const sequence = open(more);
    appendAll(device, sequence, ids);
    return sequence;
  };
  /** A sequence that starts with leaves of the index. */
  const adopt = (ids: readonly number[]) => {
    const path = index.find('', ids, ids.length);
    const leaves = path.map(({ leaf }) => leaf!);
    return open({ start: { ids: ids.slice(0, path.length * P), leaves, sinks: path[sinkPage(shape)].sinks! } });
  };
  /** Takes all memory that is left. */
  const fillUp = () => pool.allocate(capacity - pool.used, [0]);
  return { device, pool, index, open, fill, adopt, fillUp, reclaim };
}

describe('fork', () => {
  it('has the same tokens, holds the same leaves and sinks, and has a tail of its own', () => {
    const { device, fill } = createShared();
    const original = fill(numbers(10));
    const before = device.allocatedBytes;
    const fork = original.fork();
    expectContents(fork, numbers(10));
    expect(fork.view.leaves).toEqual(original.view.leaves);
    expect(fork.view.leaves.every((leaf, i) => leaf === original.view.leaves[i])).toBe(true);
    expect(fork.view.sinkBlock).toBe(original.view.sinkBlock);
    expect(fork.view.tail).not.toBe(original.view.tail);
    expect(fork.view.tail[0]).not.toBe(original.view.tail[0]);
    expect(device.allocatedBytes - before).toBe(original.privateBytes);
    expect([fork.salt, fork.maxChunk]).toEqual([original.salt, original.maxChunk]);
  });

  it.each([0, 3])('continues with other tokens without affecting the original (recent %i)', recent => {
    const { device, fill } = createShared({ recent, sinks: 6 });
    for (let length = 0; length < 16; length++) {
      const original = fill(numbers(length));
      const fork = original.fork();
      appendAll(device, fork, numbers(9, 100));
      appendAll(device, original, numbers(9, 200));
      expectContents(original, [...numbers(length), ...numbers(9, 200)]);
      expectContents(fork, [...numbers(length), ...numbers(9, 100)]);
      for (const sequence of [original, fork]) sequence.dispose();
    }
  });

  it('outlives the original', () => {
    const { device, pool, index, fill } = createShared();
    const original = fill(numbers(10));
    const fork = original.fork();
    original.dispose();
    appendAll(device, fork, numbers(5, 100));
    expectContents(fork, [...numbers(10), ...numbers(5, 100)]);
    fork.dispose();
    while (index.evict());
    expect([pool.used, device.allocatedBytes]).toEqual([0, 0]);
  });

  it('can be cropped without affecting the original', () => {
    const { device, fill } = createShared({ sinks: 6 });
    const original = fill(numbers(14));
    for (const length of [13, 9, 5, 0]) {
      const fork = original.fork();
      const kept = fork.crop(length);
      appendAll(device, fork, numbers(12, 100));
      expectContents(fork, [...numbers(kept), ...numbers(12, 100)]);
      expectContents(original, numbers(14));
      fork.dispose();
    }
  });

  it('of a sequence that has slid has dropped the same pages', () => {
    const { device, fill } = createShared({ context: 10, overflow: 'slide' });
    const original = fill(numbers(19));
    const fork = original.fork();
    expect([fork.droppedTokens, original.droppedTokens]).toEqual([12, 12]);
    appendAll(device, fork, numbers(5, 100));
    expectContents(fork, [...numbers(19), ...numbers(5, 100)]);
    expectContents(original, numbers(19));
  });

  it('of a snapshot that is disposed to make room for the copy still gets its tail', () => {
    const { device, fill, pool, fillUp, reclaim } = createShared({ index: undefined });
    const snapshot = fill([1, 2, 3]);
    const rest = fillUp();
    reclaim.use = () => {
      snapshot.dispose();
      pool.release(rest);
      return true;
    };
    const fork = snapshot.fork();
    expect(snapshot.bytes).toBe(0);
    expectContents(fork, [1, 2, 3]);
    fork.dispose();
    expect([pool.used, device.allocatedBytes]).toEqual([0, 0]);
  });

  it('of a sequence whose pass is running is a bug: the pass would lose its blocks', () => {
    const sequence = createShared().open();
    // Seals nothing: it has planned blocks of the tail only.
    sequence.plan(1);
    expect(() => sequence.fork()).toThrow(/kvasir bug: a sequence was copied while a pass was running/);
    sequence.commit(1, [1]);
    expect(sequence.fork().ids).toEqual([1]);
  });

  it('of a disposed sequence is a bug', () => {
    const sequence = createShared().open();
    sequence.dispose();
    expect(() => sequence.fork()).toThrow(/kvasir bug: a disposed sequence/);
    expect(() => sequence.plan(1)).toThrow(/kvasir bug: a disposed sequence/);
  });
});

describe('what is held', () => {
  it.each([0, 3])('stays as it was while the sequence goes on and is disposed, recent window %i', recent => {
    const { device, pool, fill } = createShared({ recent, sinks: 6 });
    const sequence = fill(numbers(5));
    const held = sequence.hold();
    const expectHeld = () => expectContents({ ...held, salt: '', ids: numbers(5) } as unknown as Sequence, numbers(5));
    expect(sequence.bytesFor(1)).toBeGreaterThan(0);
    for (let length = 5; length < 30; length++) {
      const { used } = pool;
      const bytes = sequence.bytesFor(1);
      appendTokens(device, sequence, [length]);
      expect(pool.used).toBeLessThanOrEqual(used + bytes);
      expectHeld();
    }
    expectContents(sequence, numbers(30));
    sequence.dispose();
    expectHeld();
    held.release();
    held.release();
    while (pool.makeRoom(10_000) && pool.used > 0);
    expect([pool.used, device.allocatedBytes]).toEqual([0, 0]);
  });
});

describe('the sinks', () => {
  it('are shared, and copied before they are written', () => {
    const { device, fill } = createShared({ sinks: 6 });
    const original = fill(numbers(3));
    const fork = original.fork();
    expect(fork.view.sinkBlock).toBe(original.view.sinkBlock);
    expect(fork.bytesFor(1)).toBe(fork.view.sinkBlock.bytes);
    appendTokens(device, fork, [100]);
    expect(fork.view.sinkBlock).not.toBe(original.view.sinkBlock);
    // Now each has its own.
    const own = original.view.sinkBlock;
    expect(original.bytesFor(1)).toBe(0);
    appendTokens(device, original, [200]);
    expect(original.view.sinkBlock).toBe(own);
    expectContents(fork, [0, 1, 2, 100]);
    expectContents(original, [0, 1, 2, 200]);
  });

  it('are shared for good once they are complete', () => {
    const { device, fill } = createShared({ sinks: 6 });
    const original = fill(numbers(6));
    const fork = original.fork();
    for (const [sequence, first] of [
      [original, 100],
      [fork, 200],
    ] as const)
      appendAll(device, sequence, numbers(10, first));
    expect(fork.view.sinkBlock).toBe(original.view.sinkBlock);
    expectContents(fork, [...numbers(6), ...numbers(10, 200)]);
  });

  it('in the index are not overwritten by the sequence that published them', () => {
    const { device, fill, adopt } = createShared({ sinks: 6 });
    const sequence = fill(numbers(9));
    sequence.crop(0);
    appendAll(device, sequence, numbers(9, 100));
    expectContents(adopt(numbers(8)), numbers(8));
    expectContents(sequence, numbers(9, 100));
  });
});

describe('publishing', () => {
  it('puts each sealed page into the index, with its tokens, when they are committed', () => {
    const { device, index, fill } = createShared();
    const sequence = fill(numbers(P));
    expect(index.size).toBe(0);
    appendTokens(device, sequence, [P]);
    expect(index.find('', numbers(P), P)).toHaveLength(1);
    appendTokens(device, sequence, numbers(2 * P, P + 1));
    expect(index.find('', numbers(3 * P), 3 * P).map(({ leaf }) => leaf?.block)).toEqual(sequence.view.leaves);
  });

  it('keeps a page that two sequences have sealed once', () => {
    const { device, index, fill, pool } = createShared();
    const first = fill(numbers(9));
    const { used } = pool;
    const second = fill(numbers(9));
    expect(second.view.leaves.every((leaf, i) => leaf === first.view.leaves[i])).toBe(true);
    expect(pool.used - used).toBe(second.privateBytes + second.view.sinkBlock.bytes);
    appendAll(device, second, numbers(4, 100));
    expectContents(second, [...numbers(9), ...numbers(4, 100)]);
    expect(index.size).toBe(3);
  });

  it('keeps the pages of different salts apart', () => {
    const { index, fill } = createShared();
    const [mine, yours] = ['me', 'you'].map(salt => fill(numbers(9), { salt }));
    expect(index.size).toBe(4);
    expect(mine.view.leaves.some(leaf => yours.view.leaves.includes(leaf))).toBe(false);
    expectContents(yours, numbers(9));
  });

  it('stops when the sequence slides: its later pages saw less', () => {
    const { device, index, fill } = createShared({ context: 10, overflow: 'slide' });
    const sequence = fill(numbers(10));
    expect(index.size).toBe(2);
    appendAll(device, sequence, numbers(20, 10));
    expect(index.size).toBe(2);
    // From the beginning, it publishes again.
    sequence.crop(0);
    appendAll(device, sequence, numbers(9, 100));
    expect(index.size).toBe(4);
  });

  it('does not keep a sliding sequence from reusing the memory of its first pages', () => {
    const context = 10;
    const { device, open, pool } = createShared({
      context,
      overflow: 'slide',
      // Two leaves and a page in the tail at a time are enough.
      capacity: createShared().fill(numbers(P)).bytes + 2 * LEAF.bytes,
    });
    const sequence = open();
    appendAll(device, sequence, numbers(50));
    expectContents(sequence, numbers(50));
    expect(pool.used).toBeLessThanOrEqual(pool.capacity);
  });

  it('does not happen without token ids', () => {
    const { index, open } = createShared();
    const sequence = open();
    sequence.plan(9);
    sequence.commit(9);
    expect(index.size).toBe(0);
  });
});

describe('a sequence that starts with leaves of the index', () => {
  it('continues as if it had sealed them itself', () => {
    const { device, fill, adopt, index } = createShared({ sinks: 6 });
    fill(numbers(13)).dispose();
    const sequence = adopt(numbers(12));
    expectContents(sequence, numbers(12));
    expect(sequence.plan(1)).toEqual([{ row: 0, count: 1, position: 12, sealedPages: 3, sealsPage: false }]);
    appendAll(device, sequence, numbers(6, 100));
    expectContents(sequence, [...numbers(12), ...numbers(6, 100)]);
    expect(index.size).toBe(4);
  });

  it('does not evict them to make room for its own tail', () => {
    const { device, fill, adopt, index, fillUp } = createShared();
    fill(numbers(9)).dispose();
    fill(numbers(9, 100)).dispose();
    fillUp();
    const sequence = adopt(numbers(8));
    appendTokens(device, sequence, [8]);
    expectContents(sequence, numbers(9));
    expect(index.find('', numbers(8), 8)).toHaveLength(2);
    // The other text was used later, but only the index holds it.
    expect(index.find('', numbers(8, 100), 8)).toHaveLength(1);
  });

  it('releases them if there is no room for its tail', () => {
    const { fill, open, index, pool, fillUp } = createShared();
    fill(numbers(9)).dispose();
    const rest = fillUp();
    const path = index.find('', numbers(8), 8);
    const start = { ids: numbers(9), leaves: path.map(({ leaf }) => leaf!), sinks: path[0].sinks! };
    expect(() => open({ start })).toThrow(CapacityError);
    expect([index.size, index.idle]).toEqual([2, 2]);
    pool.release(rest);
    while (index.evict());
    expect(pool.used).toBe(0);
  });
});
