/**
 * Rows of floats: the dims of a token are contiguous and shared by some lanes, each with one or two groups of eight
 * dims.
 *
 *   keys     a lane holds its dims of all queries in registers and computes partial dot products of as many tokens as lanes
 *            share a row; a reduce-scatter then gives each lane one complete token
 *   values   a lane accumulates its eight dims of every few tokens under probabilities in workgroup memory
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { each } from '../snippets.ts';
import {
  addTerm,
  type KeyStage,
  LOG2E,
  roundsOf,
  sharedSumIndex,
  sharedSumVectors,
  type ValueStage,
  vec4Of,
} from './attend.ts';
import { component, dots, pageFactor, probabilities, queryOrigin, rescaleOf, vectors } from './names.ts';
import { reduceScatter } from './reduce-scatter.ts';
import { LANES } from './subgroup.ts';

/** Maximum dims per row: with more, the exchange between lanes takes compilers minutes. */
export const MAX_ROW_DIMS = 128;

/** How rows are read. Names begin with `key` or `value` where the sides differ. */
export interface Rows {
  name: string;
  dim: number;
  /** Maximum tokens per round, and the actual count. */
  tokens: number;
  count: string;
  /** Vectors prefetched before the first is used. */
  ahead: { keys: number; values: number };
  /** Factor of all values. */
  unit: number;
  /** Whether the groups of eight dims of a lane are neighbours, or as far apart as possible. */
  adjacent: boolean;
  /** Loads of groups `cs` of token t. */
  load(t: string, cs: readonly string[]): string[];
  /** Half h of group n of what was loaded into variables with prefix `id`. */
  four(id: string, n: number, h: number): string;
  text?: string;
}

/** Dim n of a query. */
interface Queries {
  words: number;
  at(origin: string, n: string): string;
}

/** Groups of eight dims per lane, and lanes per row. The sums have the same bits either way. */
function shareOf(D: number, Q: number): { eights: number; lanes: number } {
  const all = Math.ceil(D / 8);
  const eights = all > 1 && Q <= 4 ? 2 : 1;
  const lanes = 2 ** Math.ceil(Math.log2(all / eights));
  return { eights, lanes };
}

export function rowKeys(rows: Rows, queries: Queries): KeyStage {
  const { dim: D, tokens: P, count, adjacent } = rows;
  const all = Math.ceil(D / 8);
  const sums = (Q: number) => {
    const V = vectors(Q);
    const { eights, lanes } = shareOf(D, Q);
    const scatter = reduceScatter(lanes, adjacent);
    const eightOf = (n: number) => (adjacent ? `part * ${eights} + ${n}` : `part + ${n * lanes}`);
    const places = Array.from({ length: eights }, (_, n) =>
      eights * lanes === all ? eightOf(n) : `min(${eightOf(n)}, ${all - 1}u)`,
    );
    // The next tokens load while one is multiplied.
    const ahead = (c: number) =>
      scatter.prefetch(Math.max(1, Math.floor(rows.ahead.keys / eights)), `keys${c}`, (batch, e) =>
        rows.load(`min(${128 * c} + ${LANES} * ${batch} + base + ${e}, ${P - 1}u)`, places),
      );
    const make = (read: ReturnType<typeof ahead>) => (e: number) =>
      `${each(eights, h => {
        const sums = (text: (v: number) => string) => each(V, text, ' ');
        const products = (k: number) =>
          each(4, i =>
            sums(v => `sum${e}_${h}_${v} = fma(x${8 * h + 4 * k + i}_${v}, vec4f(x[${i}]), sum${e}_${h}_${v});`),
          );
        return `${sums(v => `var sum${e}_${h}_${v} = vec4f(0.0);`)}
      ${each(2, k => `{ let x = ${rows.four(read.of(e), h, k)}; ${products(k)} }`)}`;
      })}
      ${read.next(e)}`;
    const sum = (e: number, v: number) => each(eights, h => `sum${e}_${h}_${v}`, ' + ');
    return `
    let part = lane % ${lanes};
    let base = lane / ${lanes} * ${lanes};
    ${each(
      roundsOf(P),
      c => `
    ${each(Q, q => `var ${dots(c, q)} = vec4f(0.0);`, ' ')}
    ${ahead(c).first}
    for (var batch = 0u; batch < min(4u, (max(${count}, ${128 * c}u) - ${128 * c} + ${LANES - 1}) / ${LANES}); batch++) {
      ${scatter.reduce(V, make(ahead(c)), sum)}
      let is_batch = vec4u(batch) == vec4u(0, 1, 2, 3);
      ${each(Q, q => `${dots(c, q)} = select(${dots(c, q)}, vec4f(${component(scatter.result, q)}), is_batch);`)}
    }`,
    )}`;
  };
  return {
    name: `rows ${rows.name}`,
    dim: D,
    queryWords: queries.words,
    strided: true,
    text: () => `${rows.text ?? ''}\n${reduceScatter(1, adjacent).text}`,
    load: Q => {
      const { eights, lanes } = shareOf(D, Q);
      const first = (n: number) =>
        adjacent ? `(8 * (lane % ${lanes} * ${eights} + ${n}))` : `(8 * (lane % ${lanes} + ${n * lanes}))`;
      const number = (q: number, n: string) =>
        8 * eights * lanes === D
          ? queries.at(queryOrigin(q), n)
          : `select(0.0, ${queries.at(queryOrigin(q), `min(${n}, ${D - 1}u)`)}, ${n} < ${D})`;
      return `
  ${each(8 * eights, i => each(vectors(Q), v => `let x${i}_${v} = ${rows.unit} * vec4f${vec4Of(Q, v, q => number(q, `(${first(i >> 3)} + ${i & 7})`))};`, ' '))}`;
    },
    sums,
    score: (q, c, plus) => addTerm(`${dots(c, q)}`, plus),
  };
}

export function rowValues(rows: Rows): ValueStage {
  const { dim: D, tokens: P, count, ahead } = rows;
  const row = Math.ceil(D / 8);
  // Tokens in parallel; several groups of eight per lane where a row has more than 32.
  const shares = Math.max(1, Math.floor(LANES / row));
  const columns = Math.ceil(row / LANES);
  const slot = shares > 1 ? `(lane / ${row})` : '0u';
  const chunk = (j: number) => (shares > 1 ? `(lane % ${row})` : `min(lane + ${j * LANES}, ${row - 1}u)`);
  const live = (j: number) => (shares > 1 ? `${slot} < ${shares}` : `lane + ${j * LANES} < ${row}`);
  // The next tokens load while sums are computed.
  const loads = (j: number, u: number, t: string) =>
    rows.load(`min(${t === '0' ? slot : t} + ${u * shares}, ${P - 1}u)`, [chunk(j)]);
  const products = (Q: number, u: number) => `
        ${each(vectors(Q), v => `let w${v} = token_probabilities[t${u} * ${vectors(Q)} + ${v}];`, ' ')}
        ${each(columns, j => `{ let low = ${rows.four(`values${j}_${u}_`, 0, 0)}; let high = ${rows.four(`values${j}_${u}_`, 0, 1)}; ${each(Q, q => `low${j}_${q} = fma(vec4f(${component('w', q)}), low, low${j}_${q}); high${j}_${q} = fma(vec4f(${component('w', q)}), high, high${j}_${q});`)} }`)}`;
  const prefetch = () =>
    each(columns, j =>
      each(ahead.values, u =>
        loads(j, u, '0')
          .map((text, k) => `var values${j}_${u}_${k} = ${text};`)
          .join(' '),
      ),
    );
  const put = (Q: number, j: number, i: number) =>
    each(vectors(Q), v => {
      const sum = `vec4f${vec4Of(Q, v, q => `${i < 4 ? 'low' : 'high'}${j}_${q}[${i & 3}]`)}`;
      return `{ let at = ${sharedSumIndex(Q, `(8 * ${chunk(j)} + ${i})`, v)}; token_probabilities[at] = fma(${sum}, vec4f(${rows.unit}), select(token_probabilities[at], vec4f(0.0), current_slot == 0)); }`;
    });
  return {
    name: `rows ${rows.name}`,
    dim: D,
    // Probabilities of a round, and the sums in the end.
    sharedSums: 'token_probabilities',
    text: Q => `var<workgroup> token_probabilities: array<vec4f, ${Math.max(P * vectors(Q), sharedSumVectors(Q, D))}>;`,
    declare: Q =>
      each(columns, j => each(Q, q => `var low${j}_${q} = vec4f(0.0); var high${j}_${q} = vec4f(0.0);`, ' ')),
    prefetch,
    accumulate: (Q, tokens) => `
    workgroupBarrier();
    ${each(roundsOf(P), c => each(4, j => `if (${tokens.at(c, j)} < ${P}) { ${each(vectors(Q), v => `token_probabilities[${tokens.at(c, j)} * ${vectors(Q)} + ${v}] = vec4f${vec4Of(Q, v, q => `${probabilities(c, q)}[${j}]`)} * ${pageFactor(v)};`, ' ')} }`))}
    workgroupBarrier();
    ${each(columns, j => each(Q, q => `low${j}_${q} *= ${rescaleOf(q)}; high${j}_${q} *= ${rescaleOf(q)};`, ' '))}
    for (var t = ${slot}; t < ${count}; t += ${shares * ahead.values}) {
      ${each(ahead.values, u => `let t${u} = ${P % (shares * ahead.values) === 0 ? `t + ${u * shares}` : `min(t + ${u * shares}, ${P - 1}u)`};`, ' ')}
      ${each(ahead.values, u => {
        const next = each(columns, j =>
          loads(j, u, `t + ${shares * ahead.values}`)
            .map((text, k) => `values${j}_${u}_${k} = ${text};`)
            .join(' '),
        );
        return `${P % (shares * ahead.values) === 0 ? '' : `if (t + ${u * shares} < ${P}) `}{ ${products(Q, u)} }
      ${next}`;
      })}
    }`,
    finish: Q => `
  for (var current_slot = 0u; current_slot < ${shares}; current_slot++) {
    workgroupBarrier();
    ${each(
      columns,
      j => `if (${slot} == current_slot && ${live(j)}) {
      ${each(8, i => (D % 8 === 0 ? put(Q, j, i) : `if (8 * ${chunk(j)} + ${i} < ${D}) { ${put(Q, j, i)} }`))}
    }`,
    )}
  }`,
  };
}

/** Four of the eight f16 values of a vector. */
export const fourF16 = (id: string, n: number, h: number): string =>
  `vec4f(unpack2x16float(${id}${n}[${2 * h}]), unpack2x16float(${id}${n}[${2 * h + 1}]))`;

/** Pages of f16 and fp8. */
function pageRows(
  side: 'key' | 'value',
  layout: PageLayout,
  { headDim: D, pageTokens: P }: PageShape,
): Rows | undefined {
  const { encoding, sharedBytes, blockBytes, codedDim } = layout;
  if (codedDim !== D || D % 16 !== 0 || D > MAX_ROW_DIMS || [sharedBytes, blockBytes].some(n => n % 16 !== 0))
    return undefined;
  const common = { name: `${encoding.kind} ${D}`, dim: D, tokens: P, count: `${P}u` };
  const block = blockStart(side);
  if (encoding.kind === 'f16')
    return {
      ...common,
      ahead: { keys: 16, values: 8 },
      unit: 1,
      adjacent: false,
      load: (t, cs) => cs.map(c => `pool4[${block} / 16 + (${t}) * ${D / 8} + ${c}]`),
      four: fourF16,
    };
  if (encoding.kind === 'fp8')
    return {
      ...common,
      ahead: { keys: 8, values: 8 },
      // fp8 bits read as f16 are 2^-8 as large.
      unit: 256,
      adjacent: true,
      load: (t, cs) => [
        cs.length === 2
          ? `pool4[${block} / 16 + ((${t}) * ${D / 8} + ${cs[0]}) / 2]`
          : `pool2[${block} / 8 + (${t}) * ${D / 8} + ${cs[0]}]`,
      ],
      four: (id, n, h) => `scaled_fp8(${id}0[${2 * n + h}])`,
    };
  return undefined;
}

export function floatRowKeys(layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const rows = layout.ropeFrequencies ? undefined : pageRows('key', layout, shape);
  if (!rows) return undefined;
  const { codedDim } = layout;
  return rowKeys(rows, {
    words: codedDim,
    at: (origin, n) => `bitcast<f32>(queries[${origin} + ${n}]) * ${LOG2E}`,
  });
}

export function floatRowValues(layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const rows = pageRows('value', layout, shape);
  return rows && rowValues(rows);
}
