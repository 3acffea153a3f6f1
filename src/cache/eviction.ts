/** The order in which cached leaves are evicted. */

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

/** Least recently used first: a binary heap by the time of last use when the candidate was added. */
export function createLru<T extends Evictable>(): EvictionPolicy<T> {
  let heap: { candidate: T; lastUsed: number }[] = [];
  let maxLength = MIN_COMPACTED;
  const less = (a: number, b: number) => heap[a].lastUsed < heap[b].lastUsed;
  const swap = (a: number, b: number) => {
    [heap[a], heap[b]] = [heap[b], heap[a]];
  };
  const siftUp = (start: number) => {
    for (let i = start; i > 0 && less(i, (i - 1) >> 1); i = (i - 1) >> 1) swap(i, (i - 1) >> 1);
  };
  const siftDown = () => {
    for (let i = 0; ; ) {
      let least = i;
      for (const child of [2 * i + 1, 2 * i + 2]) if (child < heap.length && less(child, least)) least = child;
      if (least === i) return;
      swap(i, least);
      i = least;
    }
  };
  /** Candidates that are used often leave outdated entries; a cache that never evicts would keep them forever. */
  const compact = () => {
    heap = heap.filter(({ candidate, lastUsed }) => candidate.lastUsed === lastUsed);
    heap.sort((a, b) => a.lastUsed - b.lastUsed);
    maxLength = Math.max(MIN_COMPACTED, 2 * heap.length);
  };
  return {
    add(candidate) {
      if (heap.length >= maxLength) compact();
      heap.push({ candidate, lastUsed: candidate.lastUsed });
      siftUp(heap.length - 1);
    },
    next() {
      while (heap.length > 0) {
        const { candidate, lastUsed } = heap[0];
        const last = heap.pop()!;
        if (heap.length > 0) {
          heap[0] = last;
          siftDown();
        }
        // It was used since, and added again then.
        if (candidate.lastUsed === lastUsed) return candidate;
      }
      return undefined;
    },
  };
}
