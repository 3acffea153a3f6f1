/**
 * Edges between leaves: per kind and leaf the few heaviest, found by Space-Saving (Metwally et al., ICDT 2005): a new edge
 * replaces the lightest one and inherits its weight, so that frequent edges stay.
 */
import type { Nodes } from './nodes.ts';

export const EDGE_KINDS = ['prefix_share', 'co_attend', 'semantic', 'temporal', 'spill_link'] as const;

/**
 * prefix_share: from a leaf to the one after it in a text. co_attend: to a leaf that gets much attention at the same time.
 * semantic: to a leaf of similar content. temporal: to the leaf that is used next. spill_link: to the leaf that moved to the
 * same tier next.
 */
export type EdgeKind = (typeof EDGE_KINDS)[number];

export interface Edge {
  /** The key of the leaf. */
  readonly to: number;
  readonly weight: number;
}

export interface Edges {
  /** Adds an edge between two slots, or to its weight. */
  add(from: number, to: number): void;
  /** The edges of a slot, heaviest first. */
  of(slot: number): Edge[];
}

const MAX_EDGES = 4;

export function createEdges(nodes: Nodes): Edges {
  // By key: a slot may belong to another leaf later.
  const targets = nodes.column(Float64Array, -1, MAX_EDGES);
  const weights = nodes.column(Float32Array, 0, MAX_EDGES);
  return {
    add(from, to) {
      const key = nodes.key.data[to];
      const start = from * MAX_EDGES;
      let at = start;
      for (let i = start; i < start + MAX_EDGES; i++) {
        if (targets.data[i] === key) {
          at = i;
          break;
        }
        if (weights.data[i] < weights.data[at]) at = i;
      }
      targets.data[at] = key;
      weights.data[at]++;
    },
    of(slot) {
      const edges: Edge[] = [];
      for (let i = slot * MAX_EDGES; i < (slot + 1) * MAX_EDGES; i++)
        if (weights.data[i] > 0) edges.push({ to: targets.data[i], weight: weights.data[i] });
      return edges.sort((a, b) => b.weight - a.weight);
    },
  };
}
