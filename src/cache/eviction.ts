/** The order in which cached leaves are evicted. */
import { createHeap } from '../heap.ts';

/** A leaf of the prefix index that nobody uses and that has no children. */
export interface Evictable {
  /** When it was last used: a counter, not a time. */
  readonly lastUsed: number;
}

/** A policy only orders candidates; the index checks that a candidate may still be evicted. */
export interface EvictionPolicy<T extends Evictable> {
  /** Adds a candidate. It may be added again after it was used. */
  add(candidate: T): void;
  /** Removes and returns the next candidate. */
  next(): T | undefined;
}

/** Heaps up to this size are not worth compacting. */
const MIN_COMPACTED = 1024;

/** Least recently used first: a heap by the time of last use when the candidate was added. */
export function createLru<T extends Evictable>(): EvictionPolicy<T> {
  const heap = createHeap<{ candidate: T; lastUsed: number }>((a, b) => a.lastUsed < b.lastUsed);
  let maxSize = MIN_COMPACTED;
  /** It was not used since; otherwise it was added again then. */
  const isCurrent = ({ candidate, lastUsed }: { candidate: T; lastUsed: number }) => candidate.lastUsed === lastUsed;
  return {
    add(candidate) {
      // Candidates that are used often leave outdated entries; a cache that never evicts would keep them forever.
      if (heap.size >= maxSize) {
        heap.filter(isCurrent);
        maxSize = Math.max(MIN_COMPACTED, 2 * heap.size);
      }
      heap.push({ candidate, lastUsed: candidate.lastUsed });
    },
    next() {
      for (let entry = heap.pop(); entry; entry = heap.pop()) if (isCurrent(entry)) return entry.candidate;
      return undefined;
    },
  };
}
