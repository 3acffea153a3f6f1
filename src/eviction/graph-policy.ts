/** The eviction order of the graph, computed in place. */
import type { Evictable, EvictionPolicy } from './eviction.ts';
import { createKvGraph } from './graph/kv-graph.ts';

export function createGraphPolicy<T extends Evictable>(): EvictionPolicy<T> {
  const graph = createKvGraph();
  const cached = new Map<number, T>();
  return {
    use(leaf) {
      cached.set(leaf.key, leaf);
      graph.noteUse(leaf.key, leaf.parent?.key ?? -1);
    },
    idle: leaf => graph.noteIdle(leaf.key, leaf.lastUsed),
    remove(leaf) {
      if (cached.get(leaf.key) !== leaf) return;
      cached.delete(leaf.key);
      graph.noteMove(leaf.key, leaf.isStored ? 'stored' : 'none');
    },
    // The graph knows which leaves are candidates.
    add() {},
    next() {
      const key = graph.nextEviction();
      return key === undefined ? undefined : cached.get(key);
    },
  };
}
