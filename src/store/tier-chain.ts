/**
 * The stores below the device's memory as one, the fastest first. What is put goes to all of them in the background. A store
 * that cannot keep up skips records: they are computed again when they are needed, and the bytes that wait for it are
 * bounded.
 */
import { settleWithin } from '../platform/event-loop.ts';
import type { LeafStore, RecordName, StoreStats } from './leaf-store.ts';
import type { CacheRecord } from './record.ts';

/** The counters of a tier. */
export interface TierStats extends StoreStats {
  name: LeafStore['name'];
  /** Records that were not put: the store could not keep up, or they were evicted before they were read. */
  skipped: number;
}

/** The payload is valid until the next record is requested. */
export interface FoundRecord {
  payload: Uint8Array;
  /** Index of the tier that had it. */
  tier: number;
}

export interface TierChain {
  readonly stats: readonly TierStats[];
  /**
   * Puts records into the first `count` tiers (default: all) in the background. Their payloads must not change any more.
   */
  put(records: readonly CacheRecord[], tenant: string, count?: number): void;
  /** Counts records that cannot be put. */
  skip(count: number): void;
  /** The payloads of a chain, in order, as far as the tiers together have it. */
  get(names: readonly RecordName[]): AsyncGenerator<FoundRecord, void>;
  /** Resolves when at least one tier can take more. */
  ready(): Promise<void>;
  /** Waits for what is being put, makes it durable, and closes the stores that were opened here. */
  close(): Promise<void>;
}

/** A store, and whether closing the chain closes it. */
export interface ChainedStore {
  store: LeafStore;
  isOwned: boolean;
}

/** Max bytes that wait for one store. A single batch may be larger. */
const MAX_PENDING_BYTES = 64 * 2 ** 20;
/** A store that takes longer than this to finish is closed anyway. */
const CLOSE_TIME_LIMIT_MS = 10_000;

export function createTierChain(chained: readonly ChainedStore[]): TierChain {
  const tiers = chained.map(({ store, isOwned }) => ({ store, isOwned, pendingBytes: 0, skipped: 0 }));
  type ChainTier = (typeof tiers)[number];
  const puts = new Set<Promise<void>>();
  const isFull = ({ pendingBytes }: ChainTier) => pendingBytes >= MAX_PENDING_BYTES;

  const putInto = (tier: ChainTier, records: readonly CacheRecord[], tenant: string) => {
    if (isFull(tier)) {
      tier.skipped += records.length;
      return;
    }
    const bytes = records.reduce((sum, { payload }) => sum + payload.length, 0);
    tier.pendingBytes += bytes;
    const put = tier.store
      .put(records, tenant)
      // Only a store of the caller can fail: those of Kvasir count and report their errors.
      .catch(() => {
        tier.skipped += records.length;
      })
      .finally(() => {
        tier.pendingBytes -= bytes;
        puts.delete(put);
      });
    puts.add(put);
  };

  return {
    get stats() {
      return tiers.map(({ store, skipped, pendingBytes }) => ({
        ...store.stats,
        ...{ name: store.name, skipped, pendingBytes },
      }));
    },
    put(records, tenant, count = tiers.length) {
      for (const tier of tiers.slice(0, count)) putInto(tier, records, tenant);
    },
    skip(count) {
      for (const tier of tiers) tier.skipped += count;
    },
    async *get(names) {
      let at = 0;
      for (let tier = 0; tier < tiers.length && at < names.length; ) {
        const start = at;
        for await (const payload of tiers[tier].store.get(names.slice(at))) {
          at++;
          yield { payload, tier };
        }
        // After what a slower tier had, a faster one may go on.
        tier = tier > 0 && at > start ? 0 : tier + 1;
      }
    },
    async ready() {
      while (tiers.every(isFull)) await Promise.race(puts);
    },
    async close() {
      const work = Promise.all(puts).then(() => Promise.all(tiers.map(({ store }) => store.flush())));
      await settleWithin(work, CLOSE_TIME_LIMIT_MS);
      await Promise.all(tiers.map(({ store, isOwned }) => (isOwned ? store.close() : undefined)));
    },
  };
}
