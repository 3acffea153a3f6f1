/** A leaf as the graph knows it, cached or evicted. */
import type { Evictable } from '../eviction.ts';

export interface GraphNode {
  readonly key: number;
  /** The leaf before it in its text. */
  parent?: GraphNode;
  /** All uses that are remembered, also of earlier times in the cache. */
  uses: number;
  /** The number of uses of all leaves up to its last one: the clock of the graph. */
  lastUsed: number;
  /** The leaf, while it is cached. */
  leaf?: Evictable;
}
