/** The suite that every store runs, and records for it. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { crc32c } from '../../src/store/crc32c.ts';
import type { LeafKey } from '../../src/store/leaf-key.ts';
import type { LeafStore, RecordName } from '../../src/store/leaf-store.ts';
import type { CacheRecord, RecordKind } from '../../src/store/record.ts';

/** A record whose payload follows from its number and size: what a store returns can be checked against it. */
export function testRecord(number: number, bytes = 1000, kind: RecordKind = 'leaf'): CacheRecord {
  const key = new Uint8Array(32);
  new DataView(key.buffer).setUint32(4, number);
  key[0] = crc32c(key);
  const payload = new Uint8Array(bytes);
  let state = number * 2654435761 + bytes;
  for (let i = 0; i < bytes; i++) {
    state = (state * 1664525 + 1013904223) >>> 0;
    payload[i] = state >>> 24;
  }
  return { kind, key: key as LeafKey, payload };
}

export const testRecords = (count: number, bytes = 1000, first = 0): CacheRecord[] =>
  Array.from({ length: count }, (_, i) => testRecord(first + i, bytes));

/** Copies of all payloads that a store returns for a chain. */
export async function getAll(store: LeafStore, chain: readonly RecordName[]): Promise<Uint8Array[]> {
  const payloads: Uint8Array[] = [];
  for await (const payload of store.get(chain)) payloads.push(payload.slice());
  return payloads;
}

/** Gets a chain and checks every byte; returns how many records there were. */
export async function countIntact(store: LeafStore, chain: readonly CacheRecord[]): Promise<number> {
  let count = 0;
  for await (const payload of store.get(chain)) {
    // Buffer.compare: expect() on megabytes takes seconds.
    if (Buffer.compare(payload, chain[count].payload) !== 0) throw new Error(`wrong bytes of record ${count}`);
    count++;
  }
  return count;
}

/** Opens a new, empty store that holds at least 1 MB. */
export type OpenStore = () => Promise<LeafStore>;

export function storeSuite(open: OpenStore): void {
  const withStore = async (test: (store: LeafStore) => Promise<void>) => {
    const store = await open();
    try {
      await test(store);
    } finally {
      await store.close();
    }
  };

  it('returns what was put, in the order of the chain', () =>
    withStore(async store => {
      const records = [testRecord(0, 64, 'sinks'), ...testRecords(5), testRecord(9, 0), testRecord(10, 300_000)];
      await store.put(records);
      expect(await countIntact(store, records)).toBe(records.length);
      expect(await countIntact(store, records.toReversed())).toBe(records.length);
    }));

  it('returns a chain as far as it goes', () =>
    withStore(async store => {
      const records = testRecords(6);
      await store.put(records.filter((_, i) => i !== 3));
      expect(await countIntact(store, records)).toBe(3);
      expect(await store.has(records)).toBe(3);
      expect(await countIntact(store, records.slice(4))).toBe(2);
      expect(await getAll(store, testRecords(1, 1000, 100))).toEqual([]);
      expect(await getAll(store, [])).toEqual([]);
      expect(await store.has([])).toBe(0);
    }));

  it('tells records of the same key by their kind', () =>
    withStore(async store => {
      const [leaf, sinks] = [testRecord(1, 100, 'leaf'), testRecord(1, 50, 'sinks')];
      await store.put([leaf]);
      expect(await store.has([sinks])).toBe(0);
      await store.put([sinks]);
      expect(await countIntact(store, [leaf, sinks])).toBe(2);
    }));

  it('keeps its own copy', () =>
    withStore(async store => {
      const record = testRecord(1);
      const lent = { ...record, payload: record.payload.slice() };
      await store.put([lent]);
      lent.payload.fill(0);
      expect(await countIntact(store, [record])).toBe(1);
    }));

  it('takes the same record twice, and many puts and gets at once', () =>
    withStore(async store => {
      const records = testRecords(40, 2000);
      await Promise.all([store.put([records[0], records[0]]), ...records.map(record => store.put([record]))]);
      const counts = await Promise.all([1, 2, 3].map(() => countIntact(store, records)));
      expect(counts).toEqual([40, 40, 40]);
    }));

  it('deletes', () =>
    withStore(async store => {
      const records = testRecords(4);
      await store.put(records);
      expect(await store.delete([records[2], testRecord(99)])).toBe(true);
      expect(await store.has(records)).toBe(2);
      expect(await countIntact(store, records)).toBe(2);
      expect(await countIntact(store, [records[3]])).toBe(1);
      await store.put(records);
      expect(await countIntact(store, records)).toBe(4);
    }));

  it('counts hits, misses, puts and latencies', () =>
    withStore(async store => {
      const records = testRecords(4);
      await store.put(records.slice(0, 3));
      await getAll(store, records);
      for await (const _ of store.get(records)) break;
      const { hits, misses, puts, errors, damaged, pendingBytes, get, put } = store.stats;
      expect({ hits, misses, puts, errors, damaged, pendingBytes }).toEqual({
        ...{ hits: 4, misses: 1, puts: 3, errors: 0, damaged: 0, pendingBytes: 0 },
      });
      expect([get.count, put.count]).toEqual([2, 1]);
      expect(get.totalMs).toBeGreaterThanOrEqual(get.maxMs);
    }));

  it('misses everything after it is closed, and can be closed twice', async () => {
    const store = await open();
    const records = testRecords(2);
    await store.put(records);
    expect(await store.flush()).toBe(true);
    await store.close();
    await store.close();
    await store.put(records);
    expect(await store.has(records)).toBe(0);
    expect(await getAll(store, records)).toEqual([]);
  });

  it('behaves like a map, whatever is put, got and deleted', async () => {
    const number = fc.nat(20);
    const action = fc.oneof(
      fc.record({ type: fc.constant('put' as const), numbers: fc.array(number, { maxLength: 6 }) }),
      fc.record({ type: fc.constant('get' as const), numbers: fc.array(number, { maxLength: 6 }) }),
      fc.record({ type: fc.constant('delete' as const), numbers: fc.array(number, { maxLength: 2 }) }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(action, { maxLength: 20 }), actions =>
        withStore(async store => {
          const stored = new Set<number>();
          for (const { type, numbers } of actions) {
            const records = numbers.map(n => testRecord(n, 100 + 37 * n));
            if (type === 'put') await store.put(records);
            if (type === 'delete') await store.delete(records);
            for (const n of numbers) {
              if (type === 'put') stored.add(n);
              if (type === 'delete') stored.delete(n);
            }
            const missing = numbers.findIndex(n => !stored.has(n));
            const expected = missing < 0 ? numbers.length : missing;
            expect(await store.has(records)).toBe(expected);
            expect(await countIntact(store, records)).toBe(expected);
          }
        }),
      ),
      { numRuns: 15 },
    );
  });
}
