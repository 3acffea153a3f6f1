/** int8 queries (transform.ts) in a workgroup: words in workgroup memory, scalars in registers. */

import { each } from '../snippets.ts';
import { LOG2E, vec4Of } from './attend.ts';
import { queryOrigin, queryScale, querySum, vectors } from './names.ts';
import { LANES } from './subgroup.ts';

export const queryDeclaration = (Q: number, dim: number): string =>
  `var<workgroup> query: array<vec4u, ${(dim / 4) * vectors(Q)}>;`;

/** Word n of the queries in vec4 v. */
export const queryWord = (Q: number, n: string, v: number): string => `query[(${n}) * ${vectors(Q)} + ${v}]`;

/**
 * Fills `query` with `word(origin)` for n, and loads what follows the words of each query: `queryScale`, `querySum`.
 */
export function loadQueries(Q: number, dim: number, word = (origin: string) => `queries[${origin} + n]`): string {
  const scalar = (n: number, v: number) =>
    `bitcast<vec4f>(vec4u${vec4Of(Q, v, q => `queries[${queryOrigin(q)} + ${dim / 4 + n}]`)})`;
  return `
  for (var n = lane; n < ${dim / 4}; n += ${LANES}) {
    ${each(vectors(Q), v => `${queryWord(Q, 'n', v)} = vec4u${vec4Of(Q, v, q => word(queryOrigin(q)))};`)}
  }
  ${each(vectors(Q), v => `let ${queryScale(v)} = ${scalar(0, v)} * ${LOG2E}; let ${querySum(v)} = ${scalar(1, v)};`)}`;
}
