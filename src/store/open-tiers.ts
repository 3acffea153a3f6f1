/** Opens the stores of tiers. Modules of Node and the client of Redis are loaded only for the tiers that need them. */
import { describeValue } from '../util/describe-value.ts';
import { InputError } from '../util/errors.ts';
import { createHostStore } from './host-store.ts';
import type { LeafStore, StoreOptions } from './leaf-store.ts';
import { type ChainedStore, createTierChain, type TierChain } from './tier-chain.ts';
import { parseTiers, type Tier } from './tiers.ts';

/** Tiers as text, or as objects, the fastest first. A store of the caller is not closed with the model. */
export type TiersInput = string | readonly (Tier | LeafStore)[];

export interface OpenTiersOptions extends StoreOptions {
  /** Fingerprint of the model. */
  model: string;
}

export async function openTiers(tiers: TiersInput, options: OpenTiersOptions): Promise<TierChain> {
  const chained: ChainedStore[] = [];
  try {
    for (const tier of typeof tiers === 'string' ? parseTiers(tiers) : tiers)
      chained.push(
        isStore(tier) ? { store: tier, isOwned: false } : { store: await openTier(tier, options), isOwned: true },
      );
  } catch (error) {
    for (const { store, isOwned } of chained) if (isOwned) await store.close();
    throw error;
  }
  return createTierChain(chained);
}

const isStore = (tier: Tier | LeafStore): tier is LeafStore => 'put' in tier;

/** Opens the store of a tier. Throws if a folder cannot be used; a server that is down now may be up later. */
export async function openTier(tier: Tier, options: OpenTiersOptions): Promise<LeafStore> {
  checkTimes(tier);
  switch (tier.type) {
    case 'host':
      return createHostStore({ ...options, capacity: tier.capacity });
    case 'disk': {
      const { openDiskStore } = await import('./disk-store.ts');
      return openDiskStore({ ...tier, ...options });
    }
    case 'opfs': {
      const { openDiskStore } = await import('./disk-store.ts');
      const { createOpfsFileSystem, LEAF_FOLDER } = await import('./opfs-file-system.ts');
      return openDiskStore({ ...tier, ...options, path: LEAF_FOLDER, fs: createOpfsFileSystem() });
    }
    case 'redis': {
      const { openRedisStore } = await import('./redis-store.ts');
      return openRedisStore({ ...tier, ...options });
    }
    default:
      throw new InputError(`A tier is a host, disk, opfs or redis tier, or a store; got ${describeValue(tier)}.`);
  }
}

function checkTimes(tier: Tier): void {
  const times: Partial<Record<string, unknown>> = { ...tier };
  for (const name of ['ttlMs', 'timeoutMs']) {
    const ms = times[name];
    if (ms !== undefined && !(Number.isSafeInteger(ms) && (ms as number) > 0))
      throw new InputError(`${name} of a tier must be a whole number of ms above 0; got ${describeValue(ms)}.`);
  }
}
