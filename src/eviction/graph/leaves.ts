/** What the graph knows of each leaf, as columns over the slots of its nodes. */
import { type Column, createNodes, type Nodes } from './nodes.ts';

export interface Leaves {
  readonly nodes: Nodes;
  /** The slot of the leaf before it in its text; -1: none. It holds while the leaf is cached, or a shadow holds it. */
  readonly parent: Column<Int32Array>;
  /** All uses that are remembered, also of earlier times in the cache. */
  readonly uses: Column<Float64Array>;
  /** The number of uses of all leaves up to its last one: the clock of the graph. */
  readonly lastUsed: Column<Float64Array>;
  /** When its last use ended: a time of the prefix index. */
  readonly idleSince: Column<Float64Array>;
  /** 1 while it is in the cache. */
  readonly isCached: Column<Uint8Array>;
  /** 1 while somebody uses it. */
  readonly isBusy: Column<Uint8Array>;
  /** Children that are in the cache. */
  readonly children: Column<Int32Array>;
}

export function createLeaves(): Leaves {
  const nodes = createNodes();
  return {
    nodes,
    parent: nodes.column(Int32Array, -1),
    uses: nodes.column(Float64Array, 0),
    lastUsed: nodes.column(Float64Array, 0),
    idleSince: nodes.column(Float64Array, 0),
    isCached: nodes.column(Uint8Array, 0),
    isBusy: nodes.column(Uint8Array, 0),
    children: nodes.column(Int32Array, 0),
  };
}
