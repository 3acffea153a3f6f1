/**
 * Rows of floats: a token's dims side by side, shared by some lanes of which each has an eight or two of them.
 *
 *   keys     a lane has its dims of all queries in registers and sums their products with those of as many tokens as lanes
 *            share a row; then they swap sums (swap.ts) until each has one token whole
 *   values   a lane sums its eight dims of every few tokens under weights that all find in workgroup memory
 */

import type { Fragment } from '../../../fragment.ts';
import type { PageShape } from '../shape.ts';
import { each } from '../text.ts';
import {
  type KeyPart,
  LOG2E,
  of,
  roundsOf,
  sumOf,
  sumsOf,
  type ValuePart,
  vectorOf,
  vectors,
  withPlus,
} from './attend.ts';
import { swapping } from './swap.ts';
import { LANES } from './talk.ts';

/** Dims of a row at most: with more, lanes swap so often that compilers take minutes. */
export const MOST_DIMS = 128;

/** How rows are read; texts begin with `key` or `value` where the sides differ. */
export interface Rows {
  name: string;
  dim: number;
  /** Tokens a round, and how many of them there are. */
  tokens: number;
  count: string;
  /** Vectors that are read before the first of them is used. */
  ahead: { keys: number; values: number };
  /** What all numbers are to be multiplied by. */
  unit: number;
  /** Whether a lane's eights are neighbours, and not as far apart as can be. */
  adjacent: boolean;
  /** What is loaded for eights `cs` of token t. */
  load(t: string, cs: readonly string[]): string[];
  /** Half h of eight n of what was loaded as constants that begin with `id`. */
  four(id: string, n: number, h: number): string;
  text?: string;
}

/** Where queries are: number n of them, and the constant. */
interface Queries {
  words: number;
  at(origin: string, n: string): string;
  constant?(origin: string): string;
}

/** Eights a lane has of a row, and the lanes that a row takes. Sums are the same bits whichever way. */
function shareOf(D: number, Q: number): { eights: number; lanes: number } {
  const all = Math.ceil(D / 8);
  const eights = all > 1 && Q <= 4 ? 2 : 1;
  const lanes = 2 ** Math.ceil(Math.log2(all / eights));
  return { eights, lanes };
}

export function rowKeys(rows: Rows, queries: Queries): KeyPart {
  const { dim: D, tokens: P, count, adjacent } = rows;
  const all = Math.ceil(D / 8);
  const sums = (Q: number) => {
    const V = vectors(Q);
    const { eights, lanes } = shareOf(D, Q);
    const swap = swapping(lanes, adjacent);
    const eightOf = (n: number) => (adjacent ? `part * ${eights} + ${n}` : `part + ${n * lanes}`);
    const places = Array.from({ length: eights }, (_, n) =>
      eights * lanes === all ? eightOf(n) : `min(${eightOf(n)}, ${all - 1}u)`,
    );
    // While a token's sums are made others are on their way.
    const ahead = (c: number) =>
      swap.ahead(Math.max(1, Math.floor(rows.ahead.keys / eights)), `keys${c}`, (batch, e) =>
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
    ${each(Q, q => `var dots${c}_${q} = vec4f(0.0);`, ' ')}
    ${ahead(c).first}
    for (var batch = 0u; batch < min(4u, (max(${count}, ${128 * c}u) - ${128 * c} + ${LANES - 1}) / ${LANES}); batch++) {
      ${swap.each(V, make(ahead(c)), sum)}
      let mine = vec4u(batch) == vec4u(0, 1, 2, 3);
      ${each(Q, q => `dots${c}_${q} = select(dots${c}_${q}, vec4f(${of(swap.result, q)}), mine);`)}
    }`,
    )}`;
  };
  return {
    name: `rows ${rows.name}`,
    dim: D,
    words: queries.words,
    strided: true,
    text: () => `${rows.text ?? ''}\n${swapping(1, adjacent).text}`,
    load: Q => {
      const { eights, lanes } = shareOf(D, Q);
      const first = (n: number) =>
        adjacent ? `(8 * (lane % ${lanes} * ${eights} + ${n}))` : `(8 * (lane % ${lanes} + ${n * lanes}))`;
      const number = (q: number, n: string) =>
        8 * eights * lanes === D
          ? queries.at(`origin${q}`, n)
          : `select(0.0, ${queries.at(`origin${q}`, `min(${n}, ${D - 1}u)`)}, ${n} < ${D})`;
      return `
  ${each(8 * eights, i => each(vectors(Q), v => `let x${i}_${v} = ${rows.unit} * vec4f${vectorOf(Q, v, q => number(q, `(${first(i >> 3)} + ${i & 7})`))};`, ' '))}
  ${each(vectors(Q), v => `let constants${v} = vec4f${vectorOf(Q, v, q => queries.constant?.(`origin${q}`) ?? '0.0')};`)}`;
    },
    sums,
    score: (q, c, plus) => withPlus(`dots${c}_${q}`, plus),
    constant: v => `constants${v}`,
  };
}

export function rowValues(rows: Rows): ValuePart {
  const { dim: D, tokens: P, count, ahead } = rows;
  const row = Math.ceil(D / 8);
  // Tokens that lanes take side by side; several eights a lane where a row takes more than all of them.
  const shares = Math.max(1, Math.floor(LANES / row));
  const columns = Math.ceil(row / LANES);
  const slot = shares > 1 ? `(lane / ${row})` : '0u';
  const chunk = (j: number) => (shares > 1 ? `(lane % ${row})` : `min(lane + ${j * LANES}, ${row - 1}u)`);
  const live = (j: number) => (shares > 1 ? `${slot} < ${shares}` : `lane + ${j * LANES} < ${row}`);
  // While sums are made the next tokens are on their way.
  const loads = (j: number, u: number, t: string) =>
    rows.load(`min(${t === '0' ? slot : t} + ${u * shares}, ${P - 1}u)`, [chunk(j)]);
  const products = (Q: number, u: number) => `
        ${each(vectors(Q), v => `let w${v} = weighed[t${u} * ${vectors(Q)} + ${v}];`, ' ')}
        ${each(columns, j => `{ let low = ${rows.four(`values${j}_${u}_`, 0, 0)}; let high = ${rows.four(`values${j}_${u}_`, 0, 1)}; ${each(Q, q => `low${j}_${q} = fma(vec4f(${of('w', q)}), low, low${j}_${q}); high${j}_${q} = fma(vec4f(${of('w', q)}), high, high${j}_${q});`)} }`)}`;
  const ask = () =>
    each(columns, j =>
      each(ahead.values, u =>
        loads(j, u, '0')
          .map((text, k) => `var values${j}_${u}_${k} = ${text};`)
          .join(' '),
      ),
    );
  const put = (Q: number, j: number, i: number) =>
    each(vectors(Q), v => {
      const sum = `vec4f${vectorOf(Q, v, q => `${i < 4 ? 'low' : 'high'}${j}_${q}[${i & 3}]`)}`;
      return `{ let at = ${sumOf(Q, `(8 * ${chunk(j)} + ${i})`, v)}; weighed[at] = fma(${sum}, vec4f(${rows.unit}), select(weighed[at], vec4f(0.0), turn == 0)); }`;
    });
  return {
    name: `rows ${rows.name}`,
    dim: D,
    // The weights of a round, and in the end the sums.
    shared: 'weighed',
    text: Q => `var<workgroup> weighed: array<vec4f, ${Math.max(P * vectors(Q), sumsOf(Q, D))}>;`,
    declare: Q =>
      each(columns, j => each(Q, q => `var low${j}_${q} = vec4f(0.0); var high${j}_${q} = vec4f(0.0);`, ' ')),
    ask,
    sum: (Q, tokens) => `
    workgroupBarrier();
    ${each(roundsOf(P), c => each(4, j => `if (${tokens.at(c, j)} < ${P}) { ${each(vectors(Q), v => `weighed[${tokens.at(c, j)} * ${vectors(Q)} + ${v}] = vec4f${vectorOf(Q, v, q => `w${c}_${q}[${j}]`)} * whole${v};`, ' ')} }`))}
    workgroupBarrier();
    ${each(columns, j => each(Q, q => `low${j}_${q} *= ${of('kept', q)}; high${j}_${q} *= ${of('kept', q)};`, ' '))}
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
    result: Q => `
  for (var turn = 0u; turn < ${shares}; turn++) {
    workgroupBarrier();
    ${each(
      columns,
      j => `if (${slot} == turn && ${live(j)}) {
      ${each(8, i => (D % 8 === 0 ? put(Q, j, i) : `if (8 * ${chunk(j)} + ${i} < ${D}) { ${put(Q, j, i)} }`))}
    }`,
    )}
  }`,
  };
}

/** Eight halves in a vector. */
export const ofHalves = (id: string, n: number, h: number): string =>
  `vec4f(unpack2x16float(${id}${n}[${2 * h}]), unpack2x16float(${id}${n}[${2 * h + 1}]))`;

/** Pages of f16 and fp8. */
function pageRows(
  side: 'key' | 'value',
  fragment: Fragment,
  { headDim: D, pageTokens: P }: PageShape,
): Rows | undefined {
  const { page, sharedBytes, blockBytes, codedDim } = fragment;
  if (codedDim !== D || D % 16 !== 0 || D > MOST_DIMS || [sharedBytes, blockBytes].some(n => n % 16 !== 0))
    return undefined;
  const common = { name: `${page.kind} ${D}`, dim: D, tokens: P, count: `${P}u` };
  const block = `${side}Block`;
  if (page.kind === 'f16')
    return {
      ...common,
      ahead: { keys: 16, values: 8 },
      unit: 1,
      adjacent: false,
      load: (t, cs) => cs.map(c => `pool4[${block} / 16 + (${t}) * ${D / 8} + ${c}]`),
      four: ofHalves,
    };
  if (page.kind === 'fp8')
    return {
      ...common,
      ahead: { keys: 8, values: 8 },
      // As f16 numbers of fp8 are 2^-8 as large.
      unit: 256,
      adjacent: true,
      load: (t, cs) => [
        cs.length === 2
          ? `pool4[${block} / 16 + ((${t}) * ${D / 8} + ${cs[0]}) / 2]`
          : `pool2[${block} / 8 + (${t}) * ${D / 8} + ${cs[0]}]`,
      ],
      four: (id, n, h) => `small_fp8(${id}0[${2 * n + h}])`,
    };
  return undefined;
}

export function pageRowKeys(fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const rows = fragment.turn ? undefined : pageRows('key', fragment, shape);
  if (!rows) return undefined;
  const { codedDim } = fragment;
  return rowKeys(rows, {
    words: codedDim + 1,
    at: (origin, n) => `bitcast<f32>(queries[${origin} + ${n}]) * ${LOG2E}`,
    constant: origin => `bitcast<f32>(queries[${origin} + ${codedDim}])`,
  });
}

export function pageRowValues(fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const rows = pageRows('value', fragment, shape);
  return rows && rowValues(rows);
}
