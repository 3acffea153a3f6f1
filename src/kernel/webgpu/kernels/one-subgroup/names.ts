/**
 * WGSL names that the attention loop (attend.ts) shares with the key and value stages. C is a chunk of 128
 * tokens, Q a query, V a vec4 of queries, R a round of 128 dims and J one of the four tokens or dims that a lane owns.
 * The value of query q in vec4s named NAMEV is NAME$[q] (unroll.ts).
 *
 *   query_originQ     offset of query Q in `queries`
 *   query_scaleV      scale of int8 queries, for scores to the base 2
 *   query_sumV        sum of the words of int8 queries
 *   dotsC_Q           dot products of query Q with a lane's four tokens of chunk C (vec4f): written by the key stage
 *   probC_Q           unnormalized probabilities of these tokens (vec4f): the largest of a page is 1
 *   sumV              sum of a lane's probabilities of the page
 *   rescaleV          online softmax: the factor of everything summed before this page
 *   page_factorV      and the factor of this page
 *   outR_J_V          output accumulators of dim 4 (lane + 32 R) + J: written by the value stage
 */

/** Number of vec4s that hold one value per query. */
export const vectors = (Q: number): number => Math.ceil(Q / 4);

/** `array<vec4u>` in workgroup memory: the key stage's until the probabilities are known, then the value stage's. */
export const SCRATCH = 'scratch';

/** A uniform that is always 4. Compilers do not know, so they neither unroll nor hoist what depends on it. */
export const FOUR = 'p.four';
export const FOUR_PARAM = 'four';
/** n as a loop bound that compilers do not know. */
export const opaque = (n: number): string => `${n} * ${FOUR} / 4`;
