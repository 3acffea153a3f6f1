/**
 * The eviction order of the graph, computed in another thread. The cache writes what happens into shared memory and reads
 * from there which leaves to evict next; it never waits for the advisor. A ranking that is too old or used up is replaced by
 * LRU, and counted.
 */
import { platform } from '../../platform/node.ts';
import { createOrdered, type Evictable, type EvictionPolicy, type LeafSource, SOURCES } from '../eviction.ts';
import { LEAF_TIERS } from './kv-graph.ts';
import { createSharedMemory, EVENT, openCacheSide } from './shared-memory.ts';

/** Rankings that are older are not used. */
const MAX_AGE_MS = 2000;
const [NONE, , STORED] = LEAF_TIERS.keys();

export interface AdvisorStats {
  /** Leaves evicted by a ranking, and by LRU because the ranking was too old, or used up. */
  ranked: number;
  stale: number;
  usedUp: number;
  /** Events that the advisor has missed because it was too slow. */
  lostEvents: number;
  /** How long the last ranking took, and how old it is; undefined before the first one. */
  cycleMs?: number;
  ageMs?: number;
  /** Leaves that it knew: on the device, by who wrote the end of their text, and in lower tiers only. */
  cachedBySource?: Record<LeafSource, number>;
  stored?: number;
}

export interface AdvisedPolicy<T> extends EvictionPolicy<T> {
  readonly stats: AdvisorStats;
}

/** `memory` is shared with an advisor cycle. `now`: ms since 1970. */
export function createAdvisedPolicy<T extends Evictable>(
  memory: SharedArrayBuffer,
  now: () => number = Date.now,
): AdvisedPolicy<T> {
  const side = openCacheSide(memory);
  const cached = new Map<number, T>();
  const isCached = (leaf: T) => cached.get(leaf.key) === leaf;
  const leastRecent = createOrdered<T>(() => 0, isCached);
  const counts = { ranked: 0, stale: 0, usedUp: 0, lostEvents: 0 };
  const write = (kind: number, key: number, value: number) => {
    if (!side.write(kind, key, value)) counts.lostEvents++;
  };
  const nextRanked = (): T | undefined => {
    while (side.advance()) {
      const leaf = cached.get(side.key);
      // It was used or evicted since the ranking was made.
      if (leaf?.lastUsed === side.idleSince) return leaf;
      // The advisor has missed that it was evicted.
      if (!leaf) write(EVENT.removed, side.key, NONE);
    }
    return undefined;
  };
  return {
    usesSources: true,
    get stats() {
      const { published, cycleMs, stored } = side;
      if (published === 0) return { ...counts };
      const bySource = SOURCES.map((source, i) => [source, side.cachedOf(i)]);
      const cachedBySource: Record<LeafSource, number> = Object.fromEntries(bySource);
      return { ...counts, cycleMs, ageMs: now() - published, cachedBySource, stored };
    },
    use(leaf) {
      cached.set(leaf.key, leaf);
      write(EVENT.use, leaf.key, leaf.parent?.key ?? -1);
      if (leaf.uses === 1 && leaf.source) write(EVENT.source, leaf.key, SOURCES.indexOf(leaf.source));
    },
    idle: leaf => write(EVENT.idle, leaf.key, leaf.lastUsed),
    remove(leaf) {
      if (!isCached(leaf)) return;
      cached.delete(leaf.key);
      write(EVENT.removed, leaf.key, leaf.isStored ? STORED : NONE);
    },
    add: leaf => leastRecent.add(leaf),
    next() {
      const isStale = now() - side.published > MAX_AGE_MS;
      const leaf = isStale ? undefined : nextRanked();
      if (leaf) counts.ranked++;
      else counts[isStale ? 'stale' : 'usedUp']++;
      return leaf ?? leastRecent.next();
    },
  };
}

/** Starts a thread that ranks; undefined where there are no threads or no shared memory. */
export function startAdvisor<T extends Evictable>(): AdvisedPolicy<T> | undefined {
  if (!platform.startModule) return undefined;
  const memory = createSharedMemory();
  // If it stops, its rankings become too old: LRU goes on, and the counts say so.
  const dispose = platform.startModule(new URL('./advisor-worker.js', import.meta.url), memory);
  return Object.assign(createAdvisedPolicy<T>(memory), { dispose });
}
