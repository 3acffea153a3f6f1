/** The order in which cached leaves are evicted. */
import { createHeap } from '../util/heap.ts';

/** What a policy sees of a leaf of the prefix index. */
export interface Evictable {
  /** Names the leaf's text, the same every time it is cached: a hash of the tokens up to its end. */
  readonly key: number;
  readonly parent?: Evictable;
  /** When its last use ended: a counter, not a time. */
  readonly lastUsed: number;
  /** Uses since it was cached; uses that overlap count once. A policy may add uses from before. */
  uses: number;
  /** Whether a tier below the device has it, too. */
  readonly isStored?: boolean;
}

/**
 * A policy only orders candidates; the index checks that a candidate may still be evicted. It hears of every use, so that it
 * can learn.
 */
export interface EvictionPolicy<T> {
  /** Adds a candidate: a leaf without children that nobody uses. It may be added again after it was used. */
  add(candidate: T): void;
  /** Removes and returns the next candidate. */
  next(): T | undefined;
  /** A leaf was cached (its first use), or a cached one is in use again. Parents come before their children. */
  use?(leaf: T): void;
  /** Nobody uses a leaf any more. */
  idle?(leaf: T): void;
  /** A leaf left the index. */
  remove?(leaf: T): void;
}

/** Heaps up to this size are not worth compacting. */
const MIN_COMPACTED = 1024;

/** Lowest rank first, then least recently used. A candidate's rank is read when it is added. */
export function createOrdered<T extends Pick<Evictable, 'lastUsed'>>(
  rank: (candidate: T) => number,
): EvictionPolicy<T> {
  interface Entry {
    candidate: T;
    rank: number;
    lastUsed: number;
  }
  const heap = createHeap<Entry>((a, b) => a.rank < b.rank || (a.rank === b.rank && a.lastUsed < b.lastUsed));
  let maxSize = MIN_COMPACTED;
  /** It was not used since; otherwise it was added again then. */
  const isCurrent = ({ candidate, lastUsed }: Entry) => candidate.lastUsed === lastUsed;
  return {
    add(candidate) {
      // Candidates that are used often leave outdated entries; a cache that never evicts would keep them forever.
      if (heap.size >= maxSize) {
        heap.filter(isCurrent);
        maxSize = Math.max(MIN_COMPACTED, 2 * heap.size);
      }
      heap.push({ candidate, rank: rank(candidate), lastUsed: candidate.lastUsed });
    },
    next() {
      for (let entry = heap.pop(); entry; entry = heap.pop()) if (isCurrent(entry)) return entry.candidate;
      return undefined;
    },
  };
}

/** Least recently used first. */
export const createLru = <T extends Pick<Evictable, 'lastUsed'>>(): EvictionPolicy<T> => createOrdered(() => 0);
