/** Int8 queries (domain.ts makes them) as lanes take them: words in workgroup memory, scalars in registers. */

import { each } from '../text.ts';
import { LOG2E, vectorOf, vectors } from './attend.ts';
import { LANES } from './talk.ts';

export const queryText = (Q: number, dim: number): string =>
  `var<workgroup> query: array<vec4u, ${(dim / 4) * vectors(Q)}>;`;

/** Word n of the queries in vector v. */
export const queryAt = (Q: number, n: string, v: number): string => `query[(${n}) * ${vectors(Q)} + ${v}]`;

/**
 * Fills `query`: `word` is that of number n. `scaleV` (to the base 2), `sumsV` and `constantsV` are what follows the words of
 * each query.
 */
export function takeQueries(Q: number, dim: number, word = (origin: string) => `queries[${origin} + n]`): string {
  const scalar = (n: number, v: number) =>
    `bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + ${dim / 4 + n}]`)})`;
  return `
  for (var n = lane; n < ${dim / 4}; n += ${LANES}) {
    ${each(vectors(Q), v => `${queryAt(Q, 'n', v)} = vec4u${vectorOf(Q, v, q => word(`origin${q}`))};`)}
  }
  ${each(vectors(Q), v => `let scale${v} = ${scalar(0, v)} * ${LOG2E}; let sums${v} = ${scalar(1, v)}; let constants${v} = ${scalar(2, v)};`)}`;
}
