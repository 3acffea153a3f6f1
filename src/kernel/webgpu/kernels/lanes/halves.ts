/** The f16 tokens of tails and sinks: eight dims of a token at a time, as floats. */

import { each } from '../text.ts';
import { type KeyPart, of, roundsOf, sumOf, sumsOf, type ValuePart, vectorOf, vectors } from './attend.ts';
import { LANES, takeQueries } from './talk.ts';

/** Tokens a round: four a lane. */
export const ROUND = 4 * LANES;
/** Eights, or tokens, that are read before the first of them is used. */
const AHEAD = 4;

/** `count` is how many tokens a round has. */
export function halfKeys(D: number, text: string, count: string): KeyPart {
  const E = Math.ceil(D / 8);
  const ahead = E % AHEAD === 0 ? AHEAD : 1;
  return {
    name: `f16 ${D}`,
    dim: D,
    words: D,
    loaded: 8 * E + 4,
    strided: true,
    text: Q => `${text}\nvar<workgroup> query: array<vec4f, ${2 * E * Q}>;`,
    load: Q =>
      takeQueries(
        Q,
        D,
        'bitcast<f32>(queries[first_word + n]) * p.scale',
        `query[(n / 8 * ${Q} + q) * 2 + n / 4 % 2][n % 4] = number;`,
      ),
    sums: Q => `${each(Q, q => `var dots0_${q} = vec4f(0.0);`, ' ')}
    for (var eight = 0u; eight < select(0u, ${E}u, lane < ${count}); eight += ${ahead}) {
      ${each(ahead, k => `let c${k} = eight + ${k}; ${each(4, j => `let e${k}_${j} = key_eight(sinks, start, room, first + lane + ${LANES * j}, c${k});`, ' ')}`)}
      ${each(ahead, k => each(Q, q => `{ let x = query[(c${k} * ${Q} + ${q}) * 2]; let y = query[(c${k} * ${Q} + ${q}) * 2 + 1]; ${each(4, j => `${each(4, i => `dots0_${q}[${j}] = fma(x[${i}], e${k}_${j}.low[${i}], dots0_${q}[${j}]);`, ' ')} ${each(4, i => `dots0_${q}[${j}] = fma(y[${i}], e${k}_${j}.high[${i}], dots0_${q}[${j}]);`, ' ')}`)} }`))}
    }`,
    score: q => `dots0_${q}`,
  };
}

export function halfValues(D: number, count: string): ValuePart {
  const row = Math.ceil(D / 8);
  // Tokens that lanes take side by side; several eights a lane where a row takes more than all of them.
  const shares = Math.max(1, Math.floor(LANES / row));
  const columns = Math.ceil(row / LANES);
  const slot = shares > 1 ? `(lane / ${row})` : '0u';
  const chunk = (j: number) => (shares > 1 ? `(lane % ${row})` : `min(lane + ${j * LANES}, ${row - 1}u)`);
  const live = (j: number) => (shares > 1 ? `${slot} < ${shares}` : `lane + ${j * LANES} < ${row}`);
  return {
    name: `f16 ${D}`,
    dim: D,
    loaded: Math.max(ROUND, 4 * LANES * roundsOf(D)),
    // The weights of a round, and in the end the sums.
    shared: 'weighed',
    text: Q => `var<workgroup> weighed: array<vec4f, ${Math.max(ROUND * vectors(Q), sumsOf(Q, D))}>;`,
    declare: Q =>
      each(columns, j => each(Q, q => `var low${j}_${q} = vec4f(0.0); var high${j}_${q} = vec4f(0.0);`, ' ')),
    sum: (Q, tokens) => `
    workgroupBarrier();
    ${each(4, j => each(vectors(Q), v => `weighed[${tokens.at(0, j)} * ${vectors(Q)} + ${v}] = vec4f${vectorOf(Q, v, q => `w0_${q}[${j}]`)} * whole${v};`))}
    workgroupBarrier();
    ${each(columns, j => each(Q, q => `low${j}_${q} *= ${of('kept', q)}; high${j}_${q} *= ${of('kept', q)};`, ' '))}
    for (var t = ${slot}; t < ${count}; t += ${shares * AHEAD}) {
      ${each(AHEAD, u => `let t${u} = min(t + ${u * shares}, ${ROUND - 1}u);`, ' ')}
      ${each(columns, j => each(AHEAD, u => `let e${j}_${u} = value_eight(sinks, start, room, first + t${u}, ${chunk(j)});`))}
      ${each(
        AHEAD,
        u => `if (t + ${u * shares} < ${ROUND}) {
        ${each(vectors(Q), v => `let w${v} = weighed[t${u} * ${vectors(Q)} + ${v}];`, ' ')}
        ${each(columns, j => each(Q, q => `low${j}_${q} = fma(vec4f(${of('w', q)}), e${j}_${u}.low, low${j}_${q}); high${j}_${q} = fma(vec4f(${of('w', q)}), e${j}_${u}.high, high${j}_${q});`))}
      }`,
      )}
    }`,
    result: Q => `
  workgroupBarrier();
  for (var n = lane; n < ${sumsOf(Q, D)}; n += ${LANES}) { weighed[n] = vec4f(0.0); }
  for (var turn = 0u; turn < ${shares}; turn++) {
    workgroupBarrier();
    ${each(
      columns,
      j => `if (${slot} == turn && ${live(j)}) {
      for (var k = 0u; k < 4; k++) {
        let i = vec2u(8 * ${chunk(j)} + k, 8 * ${chunk(j)} + 4 + k);
        ${each(Q, q => `if (i.x < ${D}) { weighed[${sumOf(Q, 'i.x', q >> 2)}][${q & 3}] += low${j}_${q}[k]; }`)}
        ${each(Q, q => `if (i.y < ${D}) { weighed[${sumOf(Q, 'i.y', q >> 2)}][${q & 3}] += high${j}_${q}[k]; }`)}
      }
    }`,
    )}
  }`,
  };
}
