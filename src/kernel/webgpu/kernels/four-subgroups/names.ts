/**
 * WGSL names that the attention loop (attend.ts) shares with the key and value stages. J is one of the four tokens
 * of a lane (token 4 lane + J), I one of its output dims and V a vec4 of queries.
 *
 *   dotsJ_V            dot products of token J: written by the key stage
 *   query_scaleV       scale of page-relative queries
 *   query_offsetV      what is added to their scores
 *   probJ_V            unnormalized probabilities of token J: the largest of a page is 1
 *   prob_sumV          sum of a lane's quantized probabilities
 *   page_factorV       factor of this subgroup's page relative to the largest score of all pages
 *   dimI, outI_V       a lane's output dim I and its sums: written by the value stage
 */

/** `array<vec4u>` in workgroup memory: the key stage's until the scores are known, then the value stage's and the output sums. */
export const SCRATCH = 'scratch';

export { FOUR_PARAM, opaque, vectors } from '../one-subgroup/names.ts';
