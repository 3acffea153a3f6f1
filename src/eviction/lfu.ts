import { createOrdered, type Evictable, type EvictionPolicy } from './eviction.ts';
import { createMemory } from './memory.ts';

/** Least frequently used first, among equals least recently used. Uses are counted while a leaf is cached. */
export const createLfu = <T extends Evictable>(): EvictionPolicy<T> => createOrdered(({ uses }) => uses);

/** LFU that remembers the uses of leaves after they were evicted. */
export function createLfuRemembered<T extends Evictable>(): EvictionPolicy<T> {
  const remembered = createMemory<number>();
  return {
    ...createLfu(),
    use(leaf) {
      if (leaf.uses === 1) leaf.uses += remembered.take(leaf.key) ?? 0;
    },
    remove: leaf => remembered.put(leaf.key, leaf.uses),
  };
}
