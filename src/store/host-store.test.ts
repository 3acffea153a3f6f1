import { describe, expect, it } from 'vitest';
import { countIntact, storeSuite, testRecord, testRecords } from '../../test/support/store-suite.ts';
import { InputError } from '../util/errors.ts';
import { createHostStore } from './host-store.ts';

describe('the host store', () => {
  storeSuite(async () => createHostStore({ capacity: 2e6 }));

  it('evicts the least recently used records', async () => {
    const store = createHostStore({ capacity: 4000 });
    const records = testRecords(5);
    await store.put(records.slice(0, 4));
    await countIntact(store, records.slice(0, 1));
    await store.put([records[4]]);
    expect(await store.has([records[0]])).toBe(1);
    expect(await store.has([records[1]])).toBe(0);
    expect(store.stats).toMatchObject({ records: 4, bytes: 4000, capacity: 4000, evictions: 1 });
  });

  it('does not store what is larger than itself', async () => {
    const store = createHostStore({ capacity: 4000 });
    await store.put([testRecord(1), testRecord(2, 4001)]);
    expect(store.stats).toMatchObject({ records: 1, evictions: 0 });
  });

  it('does not reuse the memory of a record while it is read', async () => {
    const store = createHostStore({ capacity: 2000 });
    const [a, b, c, d, e] = testRecords(5);
    await store.put([a, b]);
    const reading = store.get([a]);
    const { value } = await reading.next();
    await store.put([c, d]);
    await store.put([e]);
    expect(value).toEqual(a.payload);
    await reading.return();
  });

  it('refuses a capacity that is none', () => {
    for (const capacity of [0, -1, 1.5, Number.NaN]) expect(() => createHostStore({ capacity })).toThrow(InputError);
  });
});
