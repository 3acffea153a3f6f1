import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { testRecord, testRecords } from '../../test/support/store-suite.ts';
import { createHostStore } from './host-store.ts';
import type { LeafStore } from './leaf-store.ts';
import { openTiers } from './open-tiers.ts';
import { createTierChain, type TierChain } from './tier-chain.ts';
import type { Tier } from './tiers.ts';

const hostStore = () => createHostStore({ capacity: 2 ** 30 });
const chainOf = (...stores: LeafStore[]) => createTierChain(stores.map(store => ({ store, isOwned: false })));

async function getAll(chain: TierChain, records = testRecords(10)) {
  const found: { payload: Uint8Array; tier: number }[] = [];
  for await (const { payload, tier } of chain.get(records)) found.push({ payload: payload.slice(), tier });
  return found;
}

/** A store whose puts end when they are told to. */
function slowStore() {
  const pending: (() => void)[] = [];
  const put = () => new Promise<void>(resolve => pending.push(resolve));
  return { store: { ...hostStore(), put } as LeafStore, finishOne: () => pending.shift()!() };
}

describe('get', () => {
  it('returns the chain as far as the tiers together have it', () =>
    fc.assert(
      fc.asyncProperty(fc.array(fc.subarray([0, 1, 2]), { minLength: 10, maxLength: 10 }), async holders => {
        const stores = [hostStore(), hostStore(), hostStore()];
        const records = testRecords(10);
        for (const [i, tiers] of holders.entries()) for (const tier of tiers) await stores[tier].put([records[i]]);
        const found = await getAll(chainOf(...stores));
        const end = holders.findIndex(tiers => tiers.length === 0);
        expect(found.map(({ payload }) => payload)).toEqual(
          records.slice(0, end < 0 ? 10 : end).map(({ payload }) => payload),
        );
        for (const [i, { tier }] of found.entries()) expect(holders[i]).toContain(tier);
      }),
    ));

  it('finds nothing without tiers', async () => {
    expect(await getAll(chainOf())).toEqual([]);
  });
});

describe('put', () => {
  it('stores in all tiers, or in the fastest ones only', async () => {
    const stores = [hostStore(), hostStore(), hostStore()];
    const chain = chainOf(...stores);
    chain.put(testRecords(3), 'alice');
    chain.put([testRecord(7)], 'alice', 2);
    await chain.close();
    expect(stores.map(({ stats }) => stats.records)).toEqual([4, 4, 3]);
  });

  it('skips a tier that cannot keep up, and goes on when it has', async () => {
    const slow = slowStore();
    const fast = hostStore();
    const chain = chainOf(fast, slow.store);
    const large = () => [{ ...testRecord(1), payload: new Uint8Array(40 * 2 ** 20) }];
    for (let i = 0; i < 3; i++) {
      chain.put(large(), '');
      await new Promise(resolve => setTimeout(resolve));
    }
    expect(chain.stats.map(({ skipped }) => skipped)).toEqual([0, 1]);
    expect(chain.stats[1].pendingBytes).toBe(80 * 2 ** 20);
    slow.finishOne();
    await new Promise(resolve => setTimeout(resolve));
    chain.put(large(), '');
    expect(chain.stats[1]).toMatchObject({ skipped: 1, pendingBytes: 80 * 2 ** 20 });
  });

  it('is possible again when one tier has finished', async () => {
    const slow = slowStore();
    const chain = chainOf(slow.store);
    chain.put([{ ...testRecord(1), payload: new Uint8Array(64 * 2 ** 20) }], '');
    let isReady = false;
    const ready = chain.ready().then(() => {
      isReady = true;
    });
    await new Promise(resolve => setTimeout(resolve));
    expect(isReady).toBe(false);
    slow.finishOne();
    await ready;
  });
});

describe('close', () => {
  it('closes the stores that were opened, and flushes those of the caller', async () => {
    const own = hostStore();
    const chain = await openTiers([{ type: 'host', capacity: 1e6 }, own], { model: 'ab'.repeat(32) });
    chain.put(testRecords(3), '');
    await chain.close();
    expect(chain.stats.map(({ records }) => records)).toEqual([0, 3]);
  });

  it('opens all tiers or none', async () => {
    const host: Tier = { type: 'host', capacity: 1e6 };
    const open = (...tiers: unknown[]) => openTiers(tiers as Tier[], { model: 'ab'.repeat(32) });
    await expect(open(host, { type: 'disk', path: '/dev/null/x', capacity: 1e6 })).rejects.toThrow(/cannot be opened/);
    await expect(open({ type: 'tape' })).rejects.toThrow(/A tier is a host, disk, opfs or redis tier, or a store; got/);
  });
});
