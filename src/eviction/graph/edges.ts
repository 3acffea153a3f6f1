/** Edges between leaves: per kind and leaf the few heaviest. */

/**
 * prefix_share: from a leaf to the one after it in a text. co_attend: to a leaf that gets much attention at the same time.
 * semantic: to a leaf of similar content. temporal: to the leaf that is used next. spill_link: to the leaf that moved to the
 * same tier next.
 */
export type EdgeKind = 'prefix_share' | 'co_attend' | 'semantic' | 'temporal' | 'spill_link';

/** An edge of a leaf. */
export interface Edge {
  /** The key of the leaf. */
  to: number;
  weight: number;
}

const MAX_EDGES = 4;

/**
 * Adds an edge, or to its weight. Space-Saving (Metwally et al., ICDT 2005): a new edge replaces the lightest one and inherits
 * its weight, so that frequent edges stay.
 */
export function addEdge(edges: Edge[], to: number): void {
  const known = edges.find(edge => edge.to === to);
  if (known) known.weight++;
  else if (edges.length < MAX_EDGES) edges.push({ to, weight: 1 });
  else {
    const lightest = edges.reduce((a, b) => (b.weight < a.weight ? b : a));
    lightest.to = to;
    lightest.weight++;
  }
}

const SIGNATURE_BITS = 12;

/** SimHash (Charikar, STOC 2002), a bit per random direction: vectors at a small angle mostly have the same signature. */
export function signatureOf(vector: ArrayLike<number>): number {
  let bits = 0;
  for (let bit = 0; bit < SIGNATURE_BITS; bit++) {
    let sum = 0;
    for (let i = 0; i < vector.length; i++) sum += randomSign(bit, i) * vector[i];
    bits = (bits << 1) | Number(sum > 0);
  }
  return bits;
}

/** Directions with entries of 1 and -1, from a hash of the indices. */
function randomSign(bit: number, i: number): number {
  let x = Math.imul(i + 1, 0x9e3779b1) ^ Math.imul(bit + 1, 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 15), 0xc2b2ae35);
  return (x ^ (x >>> 16)) & 1 ? 1 : -1;
}
