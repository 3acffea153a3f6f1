/** int8 queries (transform.ts) in a workgroup: words in workgroup memory, scalars in registers. */

import { LOG2E, vec4Of } from './attend.ts';
import { vectors } from './names.ts';
import { LANES } from './subgroup.ts';

export const queryDeclaration = (Q: number, dim: number): string =>
  `var<workgroup> query: array<vec4u, ${(dim / 4) * vectors(Q)}>;`;

/** Word n of the queries in vec4 `$v`. */
export const queryWord = (Q: number, n: string): string => `query[(${n}) * ${vectors(Q)} + $v]`;

/** Fills `query` with `word` for each n, and loads what follows the words of each query: `query_scaleV`, `query_sumV`. */
export function loadQueries(Q: number, dim: number, word = 'queries[query_origin$q + n]'): string {
  const scalar = (n: number) => `bitcast<vec4f>(vec4u${vec4Of(Q, `queries[query_origin$q + ${dim / 4 + n}]`)})`;
  return `
  for (var n = lane; n < ${dim / 4}; n += ${LANES}) {
    @unroll(v, ${vectors(Q)}) ${queryWord(Q, 'n')} = vec4u${vec4Of(Q, word)};
  }
  @unroll(v, ${vectors(Q)}) { let query_scale$v = ${scalar(0)} * ${LOG2E}; let query_sum$v = ${scalar(1)}; }`;
}
