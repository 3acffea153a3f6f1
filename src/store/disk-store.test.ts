import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { createMemoryFileSystem } from '../../test/support/file-systems.ts';
import { countIntact, storeSuite, testRecord, testRecords } from '../../test/support/store-suite.ts';
import { InputError } from '../util/errors.ts';
import { type DiskStoreOptions, openDiskStore } from './disk-store.ts';
import type { FileSystem } from './file-system.ts';
import { openNodeFileSystem } from './node-file-system.ts';

const root = mkdtempSync(join(tmpdir(), 'kvasir-store-'));
afterAll(() => rmSync(root, { recursive: true }));

const model = 'ab'.repeat(32);
const newFolder = () => mkdtempSync(join(root, 's'));
const open = (path: string, options: Partial<DiskStoreOptions> = {}) =>
  openDiskStore({ path, model, capacity: 64e6, segmentBytes: 64e3, ...options });
const folderOf = (path: string) => join(path, model.slice(0, 16));
const segmentsIn = (path: string) => readdirSync(folderOf(path)).filter(name => name.endsWith('.seg'));
const sizeOf = (path: string) =>
  segmentsIn(path).reduce((sum, name) => sum + statSync(join(folderOf(path), name)).size, 0);

describe('the disk store', () => {
  storeSuite(() => open(newFolder()));

  it('keeps records across restarts', async () => {
    const path = newFolder();
    const records = testRecords(200, 1000);
    const first = await open(path);
    await first.put(records);
    await first.close();
    const second = await open(path);
    expect(await countIntact(second, records)).toBe(200);
    expect(second.stats).toMatchObject({ records: 200, errors: 0 });
    await second.close();
  });

  it('finds its records without the index files, and with damaged ones', async () => {
    const path = newFolder();
    const records = testRecords(200, 1000);
    const first = await open(path);
    await first.put(records);
    await first.close();
    const indexes = readdirSync(folderOf(path)).filter(name => name.endsWith('.idx'));
    expect(indexes.length).toBeGreaterThan(3);
    indexes.forEach((name, i) => {
      const file = join(folderOf(path), name);
      if (i % 3 === 0) rmSync(file);
      else if (i % 3 === 1) truncateSync(file, statSync(file).size - 80);
      else writeFileSync(file, readFileSync(file).fill(7, 100, 101));
    });
    const second = await open(path);
    expect(await countIntact(second, records)).toBe(200);
    await second.close();
  });

  it('reads records that lie next to each other at once', async () => {
    const fs = createMemoryFileSystem();
    const reads: number[] = [];
    const create: FileSystem['create'] = async path => {
      const file = await fs.create(path);
      const read: typeof file.read = (into, position) => {
        reads.push(into.length);
        return file.read(into, position);
      };
      return { ...file, read };
    };
    const store = await openDiskStore({ path: 'p', model, capacity: 64e6, fs: { ...fs, create } });
    const records = testRecords(40, 50_000);
    await store.put(records);
    expect(await countIntact(store, records)).toBe(40);
    // 10 records make half a MiB.
    expect(reads).toEqual(Array(4).fill(10 * 50_080));
    reads.length = 0;
    expect(await countIntact(store, records.toReversed())).toBe(40);
    expect(reads.length).toBe(40);
    await store.close();
  });

  it('stays within its capacity: the oldest go first, except for those that were read', async () => {
    const path = newFolder();
    const store = await open(path, { capacity: 1e6 });
    const hot = testRecords(5, 1000);
    await store.put(hot);
    for (let i = 0; i < 40; i++) {
      await store.put(testRecords(50, 1000, 1000 + 50 * i));
      expect(await countIntact(store, hot)).toBe(5);
      expect(sizeOf(path)).toBeLessThanOrEqual(1e6);
    }
    expect(await store.has([testRecord(1000)])).toBe(0);
    expect(await store.has(testRecords(400, 1000, 2600))).toBe(400);
    expect(store.stats.evictions).toBeGreaterThan(900);
    await store.close();
    const again = await open(path, { capacity: 1e6 });
    expect(await countIntact(again, hot)).toBe(5);
    await again.close();
  });

  it('removes what has expired, from sight and from the disk', async () => {
    const path = newFolder();
    let time = 1e12;
    const options = { ttlMs: 1000, now: () => time };
    const store = await open(path, options);
    await store.put(testRecords(100, 1000));
    time += 999;
    expect(await store.has(testRecords(100, 1000))).toBe(100);
    time += 1;
    expect(await store.has(testRecords(100, 1000))).toBe(0);
    expect(await countIntact(store, testRecords(100, 1000))).toBe(0);
    await store.close();
    const again = await open(path, options);
    await again.flush();
    expect(again.stats).toMatchObject({ records: 0, bytes: 0 });
    await again.close();
    expect(segmentsIn(path)).toEqual([]);
  });

  it('deletes for good: the bytes are gone from the disk, the others stay', async () => {
    const path = newFolder();
    const store = await open(path);
    const [secret, kept] = [testRecords(30, 1000), testRecords(70, 1000, 100)];
    for (let i = 0; i < 10; i++) {
      await store.put(secret.slice(3 * i, 3 * i + 3), 'Alice');
      await store.put(kept.slice(7 * i, 7 * i + 7), 'Bob');
    }
    expect([...store.usage().values()].map(({ records }) => records)).toEqual([30, 70]);
    const contains = (bytes: Uint8Array) =>
      readdirSync(folderOf(path)).some(name => readFileSync(join(folderOf(path), name)).includes(Buffer.from(bytes)));
    expect(contains(secret[0].payload)).toBe(true);
    expect(contains(Buffer.from('Alice'))).toBe(false);
    expect(await store.deleteTenant('Alice')).toBe(true);
    expect(secret.some(({ payload }) => contains(payload))).toBe(false);
    expect(await countIntact(store, kept)).toBe(70);
    await store.close();
    const again = await open(path);
    expect(again.usage().size).toBe(1);
    expect(await countIntact(again, kept)).toBe(70);
    expect(await again.deleteTenant()).toBe(true);
    await again.close();
    expect(segmentsIn(path)).toEqual([]);
  });

  it('merges small segments', async () => {
    const path = newFolder();
    for (let i = 0; i < 12; i++) {
      const store = await open(path);
      await store.put(testRecords(3, 1000, 3 * i));
      await store.close();
    }
    expect(segmentsIn(path).length).toBeLessThan(6);
    const store = await open(path);
    expect(await countIntact(store, testRecords(36, 1000))).toBe(36);
    await store.close();
  });

  it('can be read by its owner only', async () => {
    const path = join(newFolder(), 'new', 'folder');
    const store = await open(path);
    await store.put(testRecords(100, 1000));
    const modeOf = (file: string) => statSync(file).mode & 0o777;
    expect([path, folderOf(path)].map(modeOf)).toEqual([0o700, 0o700]);
    for (const name of readdirSync(folderOf(path))) expect(modeOf(join(folderOf(path), name)), name).toBe(0o600);
    await store.close();
  });

  it('has a folder per model', async () => {
    const path = newFolder();
    const [a, b] = [await open(path), await open(path, { model: 'cd'.repeat(32) })];
    await a.put(testRecords(3));
    expect(await b.has(testRecords(3))).toBe(0);
    await a.close();
    await b.close();
    expect(readdirSync(path).length).toBe(2);
    await expect(open(path, { model: '../../etc' })).rejects.toThrow(InputError);
  });

  it('is used by one process at a time', async () => {
    const path = newFolder();
    const store = await open(path);
    await expect(open(path)).rejects.toThrow(/in use by process \d+/);
    await expect(open(path)).rejects.toThrow(InputError);
    await store.close();
    expect(existsSync(join(folderOf(path), 'lock'))).toBe(false);
    const again = await open(path);
    await again.close();
  });

  it('takes over the lock of a process that is gone, and of a host that is silent', async () => {
    const path = newFolder();
    await (await open(path)).close();
    const lock = join(folderOf(path), 'lock');
    const { hostname } = await import('node:os');
    const gone = { pid: 2 ** 22 + 1, started: '1', host: hostname(), id: 'x', beat: Date.now() };
    // Process ids are reused: the same id, but started at another time.
    const reused = { ...gone, pid: process.pid };
    const silent = { ...gone, host: 'elsewhere', beat: Date.now() - 60_000 };
    for (const content of [JSON.stringify(gone), JSON.stringify(reused), JSON.stringify(silent), '', '{"pid":']) {
      writeFileSync(lock, content);
      await (await open(path)).close();
    }
    writeFileSync(lock, JSON.stringify({ ...gone, host: 'elsewhere', beat: Date.now() }));
    await expect(open(path)).rejects.toThrow(/in use by process 4194305 on elsewhere/);
  });

  it('takes over the lock of a process id that is used again, where the system does not say when a process started', async () => {
    const path = newFolder();
    await (await open(path)).close();
    const lock = join(folderOf(path), 'lock');
    const { hostname } = await import('node:os');
    const holder = { pid: process.pid, started: '', host: hostname(), id: 'x' };
    writeFileSync(lock, JSON.stringify({ ...holder, beat: Date.now() }));
    await expect(open(path)).rejects.toThrow(/in use by process/);
    writeFileSync(lock, JSON.stringify({ ...holder, beat: Date.now() - 60_000 }));
    await (await open(path)).close();
  });

  it('gives its lock back if it cannot be opened', async () => {
    const path = newFolder();
    const fs = await openNodeFileSystem();
    const locks: string[] = [];
    const broken: FileSystem = {
      ...fs,
      async lock(folder) {
        const { release } = await fs.lock(folder);
        locks.push('taken');
        return {
          async release() {
            locks.push('released');
            await release();
          },
        };
      },
      list: () => Promise.reject(Object.assign(new Error('EIO'), { code: 'EIO' })),
    };
    await expect(open(path, { fs: broken })).rejects.toThrow(/cannot be opened \(EIO\)/);
    expect(locks).toEqual(['taken', 'released']);
    await (await open(path)).close();
  });

  it('refuses a folder that it cannot use', async () => {
    const file = join(newFolder(), 'file');
    writeFileSync(file, '');
    await expect(open(file)).rejects.toThrow(/cannot be opened \(ENOTDIR|EEXIST/);
    await expect(open(newFolder(), { capacity: 0 })).rejects.toThrow(InputError);
  });

  it('misses damaged records, and can store them again', async () => {
    const path = newFolder();
    const errors: Error[] = [];
    const store = await open(path, { segmentBytes: 1e6, onError: error => errors.push(error) });
    const records = testRecords(50, 1000);
    await store.put(records);
    const [name] = segmentsIn(path);
    const file = join(folderOf(path), name);
    const bytes = readFileSync(file);
    bytes[bytes.indexOf(records[20].payload) + 500] ^= 4;
    writeFileSync(file, bytes);
    expect(await countIntact(store, records)).toBe(20);
    expect(store.stats).toMatchObject({ damaged: 1, errors: 1, hits: 20, misses: 30 });
    expect(errors[0].message).toMatch(/has a damaged record/);
    await store.put(records);
    expect(await countIntact(store, records)).toBe(50);
    await store.close();
  });
});
