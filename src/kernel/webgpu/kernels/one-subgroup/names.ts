/**
 * WGSL names that the attention loop (attend.ts) shares with the key and value stages. C is a chunk of 128
 * tokens, Q a query, V a vec4 of queries, R a round of 128 dims and J one of the four tokens or dims that a lane owns.
 */

/** Number of vec4s that hold one value per query. */
export const vectors = (Q: number): number => Math.ceil(Q / 4);

/** The value of query q in such vec4s, named NAME0, NAME1 and so on. */
export const component = (name: string, q: number): string => `${name}${q >> 2}[${q & 3}]`;

/** Offset of query q in `queries`. */
export const queryOrigin = (q: number): string => `query_origin${q}`;

/** Dot products of query q with a lane's four tokens of chunk c (vec4f): written by the key stage. */
export const dots = (c: number, q: number): string => `dots${c}_${q}`;

/** Unnormalized probabilities of a lane's four tokens of chunk c (vec4f): the largest of a page is 1. */
export const probabilities = (c: number, q: number): string => `prob${c}_${q}`;

/** Sum of a lane's probabilities of the page. */
export const probabilitySum = (v: number): string => `sum${v}`;

/** Online softmax: the factor of everything summed before this page, and the factor of this page. */
export const rescale = (v: number): string => `rescale${v}`;
export const rescaleOf = (q: number): string => component('rescale', q);
export const pageFactor = (v: number): string => `page_factor${v}`;

/** Output accumulators of dim 4 (lane + 32 r) + j: written by the value stage. */
export const output = (r: number, j: number, v: number): string => `out${r}_${j}_${v}`;
export const outputOf = (r: number, j: number, q: number): string => component(`out${r}_${j}_`, q);

/** What follows the words of an int8 query: its scale (for scores to the base 2) and the sum of its words. */
export const queryScale = (v: number): string => `query_scale${v}`;
export const queryScaleOf = (q: number): string => component('query_scale', q);
export const querySum = (v: number): string => `query_sum${v}`;

/** `array<vec4u>` in workgroup memory: the key stage's until the probabilities are known, then the value stage's. */
export const SCRATCH = 'scratch';

/** A uniform that is always 4. Compilers do not know, so they neither unroll nor hoist what depends on it. */
export const FOUR = 'p.four';
export const FOUR_PARAM = 'four';
/** n as a loop bound that compilers do not know. */
export const opaque = (n: number): string => `${n} * ${FOUR} / 4`;
