/** A leaf as the graph knows it: it is cached, or remembered. */
import type { Edge, EdgeKind } from './edges.ts';

/**
 * Where the bytes of a leaf are; `none`: nowhere, it is only remembered; `stored`: in a tier below the device. Which one is
 * not known: leaves are put into all of them, and each evicts on its own.
 */
export type LeafTier = 'none' | 'device' | 'stored';

/** What the graph tells of a leaf. */
export interface GraphLeaf {
  readonly key: number;
  /** All uses that are remembered, also of earlier times in the cache. */
  readonly uses: number;
  readonly tier: LeafTier;
  /** Attention mass per step, relative to the mean of all leaves: 1 is average. NaN before any was noted. */
  readonly importance: number;
}

export interface GraphNode extends GraphLeaf {
  uses: number;
  tier: LeafTier;
  importance: number;
  /** The leaf before it in its text. */
  parent?: GraphNode;
  /** The number of uses of all leaves when its last use ended. */
  lastUsed: number;
  /** The order in which uses ended: the larger, the later. */
  idleSince: number;
  isBusy: boolean;
  /** Whether it was used again since the graph last asked whether to forget it. */
  isRecent: boolean;
  edges?: Partial<Record<EdgeKind, Edge[]>>;
  /** Per cache (the real one and the ghosts), the number of its children there; -1: the cache does not hold the leaf. */
  readonly children: number[];
  /** Per order, where it is in that order; -1: it is not in it. */
  readonly places: number[];
}
