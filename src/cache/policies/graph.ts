import type { Evictable, EvictionPolicy } from '../eviction.ts';
import { createKvGraph } from '../graph/kv-graph.ts';

/** The eviction order of the graph (graph/kv-graph.ts). */
export function createGraphPolicy<T extends Evictable>(): EvictionPolicy<T> {
  const graph = createKvGraph();
  const cached = new Map<number, T>();
  return {
    use(leaf) {
      cached.set(leaf.key, leaf);
      graph.noteUse(leaf.key, leaf.parent?.key ?? -1);
    },
    idle: leaf => graph.noteIdle(leaf.key),
    remove(leaf) {
      if (cached.get(leaf.key) !== leaf) return;
      cached.delete(leaf.key);
      graph.noteRemoved(leaf.key);
    },
    add: leaf => graph.offer(leaf.key),
    next() {
      const key = graph.next();
      return key === undefined ? undefined : cached.get(key);
    },
  };
}
