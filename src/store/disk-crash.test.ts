/** Loss of power and failing disks: never wrong bytes, and everything that was flushed is still there. */
import { describe, expect, it } from 'vitest';
import {
  createFaultyFileSystem,
  createMemoryFileSystem,
  type Fault,
  losePower,
} from '../../test/support/file-systems.ts';
import { ALL_CASES, LONG_CASES } from '../../test/support/matrix.ts';
import { seeded } from '../../test/support/random.ts';
import { countIntact, testRecord } from '../../test/support/store-suite.ts';
import { KvasirError } from '../util/errors.ts';
import { type DiskStore, openDiskStore } from './disk-store.ts';
import type { FileSystem } from './file-system.ts';
import type { CacheRecord } from './record.ts';

/** Seeds per test, and crashes per run. */
const SEEDS = LONG_CASES ? 60 : ALL_CASES ? 3 : 1;
const CRASHES = ALL_CASES ? 20 : 8;
const open = (fs: FileSystem) =>
  openDiskStore({ path: '/cache', model: 'ab'.repeat(32), capacity: 1e9, segmentBytes: 20_000, fs });

/** What is known to be on the disk, or known not to be, after so many operations of the log. */
interface Checkpoint {
  operations: number;
  /** Flushed, and not deleted since. */
  durable: Set<number>;
  /** Deleted, and not put since. */
  deleted: Set<number>;
}

const sizeOf = (number: number) => 100 + ((number * 7919) % 6000);
const recordOf = (number: number): CacheRecord => testRecord(number, sizeOf(number));

/** Puts, gets, flushes and deletes at random; a store that cannot be opened is opened again later. */
async function work(
  fs: FileSystem,
  random: () => number,
  rounds: number,
  note: (durable: Set<number>, deleted: Set<number>) => void,
): Promise<Set<number>> {
  const [durable, deleted, written] = [new Set<number>(), new Set<number>(), new Set<number>()];
  const changed = () => note(new Set(durable), new Set(deleted));
  const tryOpen = () =>
    open(fs).catch(error => {
      expect(error).toBeInstanceOf(KvasirError);
      return undefined;
    });
  let store: DiskStore | undefined;
  for (let round = 0; round < rounds; round++) {
    store ??= await tryOpen();
    if (!store) continue;
    const numbers = Array.from({ length: 1 + Math.floor(random() * 5) }, () => Math.floor(random() * 80));
    const choice = random();
    if (choice < 0.5) {
      // From now on it may or may not be there.
      for (const n of numbers) deleted.delete(n);
      changed();
      await store.put(numbers.map(recordOf), `tenant ${round % 3}`);
      for (const n of numbers) if ((await store.has([recordOf(n)])) === 1) written.add(n);
    } else if (choice < 0.75) {
      const before = [...written];
      if (await store.flush()) for (const n of before) durable.add(n);
    } else if (choice < 0.8) {
      for (const n of numbers) durable.delete(n);
      for (const n of numbers) written.delete(n);
      changed();
      if (await store.delete(numbers.map(recordOf))) for (const n of numbers) deleted.add(n);
    } else if (choice < 0.95) {
      await countIntact(store, numbers.map(recordOf));
    } else {
      await store.close();
      // Whether that has flushed them is not known.
      written.clear();
      store = undefined;
    }
    changed();
  }
  await store?.close();
  return durable;
}

async function check(fs: FileSystem, durable: Set<number>, deleted: Set<number>): Promise<void> {
  const store = await open(fs);
  const found = new Set<number>();
  for (let n = 0; n < 80; n++) if ((await countIntact(store, [recordOf(n)])) === 1) found.add(n);
  expect([...durable].filter(n => !found.has(n))).toEqual([]);
  expect([...deleted].filter(n => found.has(n))).toEqual([]);
  // It goes on working.
  const numbers = Array.from({ length: 80 }, (_, n) => n);
  await store.put(numbers.map(recordOf));
  expect(await countIntact(store, numbers.map(recordOf))).toBe(80);
  await store.close();
}

describe('the disk store after a loss of power', () => {
  it.each(Array.from({ length: LONG_CASES ? 200 : ALL_CASES ? 10 : 4 }, (_, i) => i))(
    'has all that was flushed (run %i)',
    async seed => {
      const random = seeded(seed).next;
      const fs = createMemoryFileSystem();
      const checkpoints: Checkpoint[] = [{ operations: 0, durable: new Set(), deleted: new Set() }];
      await work(fs, random, 80, (durable, deleted) => {
        checkpoints.push({ operations: fs.log.length, durable, deleted });
      });
      expect(fs.log.length).toBeGreaterThan(50);
      for (let crash = 0; crash < CRASHES; crash++) {
        const operations = Math.floor(random() * (fs.log.length + 1));
        const { durable, deleted } = checkpoints.findLast(point => point.operations <= operations)!;
        await check(losePower(fs.log.slice(0, operations), random), durable, deleted);
      }
    },
  );
});

describe('the disk store on a failing disk', () => {
  const faults: Fault[] = ['EIO', 'ENOSPC', 'short read', 'short write', 'flip on read', 'flip on write', 'slow'];
  it.each(faults)('returns no wrong bytes, and keeps what was flushed: %s', async fault => {
    // What is flipped in every read is damaged, as far as anybody can tell.
    for (const every of fault === 'flip on read' ? [3, 5, 7, 13, 29] : [1, 2, 3, 5, 7, 13, 29])
      for (let seed = 0; seed < SEEDS; seed++) {
        const random = seeded(1000 * every + seed).next;
        const disk = createMemoryFileSystem();
        let isOn = true;
        const fs = createFaultyFileSystem(disk, { fault, every, random, isOn: () => isOn });
        const durable = await work(fs, random, fault === 'slow' ? 20 : 60, () => {});
        isOn = false;
        // A bit that the disk itself has flipped cannot be restored.
        const expected = fault === 'flip on write' ? new Set<number>() : durable;
        await check(
          losePower(disk.log, () => 1),
          expected,
          new Set(),
        );
      }
  });
});
