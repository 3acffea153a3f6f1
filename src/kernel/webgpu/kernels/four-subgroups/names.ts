/**
 * WGSL names that the attention loop (attend.ts) shares with the key and value stages. J is one of the four tokens
 * of a lane, I one of its output dims and V a vec4 of queries.
 */

/** Unnormalized probabilities of token j (vec4f of queries): the largest of a page is 1. */
export const probabilities = (j: number, v: number): string => `prob${j}_${v}`;

/** Sum of a lane's quantized probabilities. */
export const probabilitySum = (v: number): string => `prob_sum${v}`;

/** Factor of this subgroup's page relative to the largest score of all pages. */
export const pageFactor = (v: number): string => `page_factor${v}`;

/** Output accumulators of a lane's dim i: written by the value stage. */
export const output = (i: number, v: number): string => `out${i}_${v}`;

/** Scale of page-relative queries, and what is added to their scores. */
export const queryScale = (v: number): string => `query_scale${v}`;
export const queryOffset = (v: number): string => `query_offset${v}`;

/** `array<vec4u>` in workgroup memory: the key stage's until the scores are known, then the value stage's and the output sums. */
export const SCRATCH = 'scratch';

export { FOUR, FOUR_PARAM, opaque, vectors } from '../one-subgroup/names.ts';
