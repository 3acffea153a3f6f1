/**
 * S3-FIFO (Yang et al., SOSP 2023): new leaves enter a small queue of a tenth of the cache; those used again there, or soon
 * after they left it, go to the main queue, which is a FIFO with second chances. Here only leaves without children can leave a
 * queue; the others wait in their place.
 */
import type { Evictable, EvictionPolicy } from '../../src/eviction/eviction.ts';
import { createHeap } from '../../src/util/heap.ts';
import { createMemory } from './memory.ts';

const SMALL_SHARE = 0.1;
const MAX_FREQUENCY = 3;

interface Place {
  isMain: boolean;
  /** Position in its queue. */
  order: number;
  /** Uses after the first one, up to 3. */
  frequency: number;
}

export function createS3Fifo<T extends Evictable>(): EvictionPolicy<T> {
  const places = new Map<T, Place>();
  const ghosts = createMemory<true>(() => places.size);
  const createQueue = () => createHeap<{ leaf: T; order: number }>((a, b) => a.order < b.order);
  const [small, main] = [createQueue(), createQueue()];
  let smallCount = 0;
  let order = 0;
  const enqueue = (leaf: T, place: Place) => (place.isMain ? main : small).push({ leaf, order: place.order });
  const isCurrent = (leaf: T, isMain: boolean, at: number) => {
    const place = places.get(leaf);
    return place !== undefined && place.isMain === isMain && place.order === at;
  };
  /** Moves a leaf to the end of the main queue. */
  const moveToMain = (leaf: T, place: Place, frequency: number) => {
    if (!place.isMain) smallCount--;
    Object.assign(place, { isMain: true, order: ++order, frequency });
    enqueue(leaf, place);
  };
  /** The first leaf of a queue that is not worth keeping there. */
  const takeFrom = (isMain: boolean): T | undefined => {
    const queue = isMain ? main : small;
    for (let entry = queue.pop(); entry; entry = queue.pop()) {
      const { leaf } = entry;
      if (!isCurrent(leaf, isMain, entry.order)) continue;
      const place = places.get(leaf)!;
      if (isMain ? place.frequency === 0 : place.frequency <= 1) return leaf;
      moveToMain(leaf, place, isMain ? place.frequency - 1 : 0);
    }
    return undefined;
  };
  return {
    use(leaf) {
      const place = places.get(leaf);
      if (place) {
        place.frequency = Math.min(MAX_FREQUENCY, place.frequency + 1);
        return;
      }
      const isMain = ghosts.take(leaf.key) === true;
      if (!isMain) smallCount++;
      places.set(leaf, { isMain, order: ++order, frequency: 0 });
    },
    remove(leaf) {
      const place = places.get(leaf)!;
      places.delete(leaf);
      if (place.isMain) return;
      smallCount--;
      ghosts.put(leaf.key, true);
    },
    add(leaf) {
      const queue = places.get(leaf)!.isMain ? main : small;
      // A leaf that is used over and over is added each time.
      if (queue.size > 2 * places.size) {
        const seen = new Set<T>();
        const { isMain } = places.get(leaf)!;
        queue.filter(
          entry => isCurrent(entry.leaf, isMain, entry.order) && !seen.has(entry.leaf) && !!seen.add(entry.leaf),
        );
      }
      enqueue(leaf, places.get(leaf)!);
    },
    next() {
      const smallFirst = smallCount > SMALL_SHARE * places.size;
      return takeFrom(!smallFirst) ?? takeFrom(smallFirst);
    },
  };
}
