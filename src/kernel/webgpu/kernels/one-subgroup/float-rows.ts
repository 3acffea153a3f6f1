/**
 * Rows of floats: the dims of a token are contiguous and shared by some lanes, each with one or two groups of eight
 * dims.
 *
 *   keys     a lane holds its dims of all queries in registers and computes partial dot products of as many tokens as lanes
 *            share a row; a reduce-scatter then gives each lane one complete token
 *   values   a lane accumulates its eight dims of every few tokens under probabilities in workgroup memory
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart, type Side } from '../names.ts';
import type { PageShape } from '../shape.ts';
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
import { vectors } from './names.ts';
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
  /** Half h of group n (numbers, or indices of loops) of what was loaded into variables with prefix `id`. */
  four(id: string, n: string, h: string): string;
  text?: string;
}

/** Words per query, and dim n of query `$q`. */
interface Queries {
  words: number;
  at(n: string): string;
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
    const ahead = scatter.prefetch(Math.max(1, Math.floor(rows.ahead.keys / eights)), 'keys$c', (batch, e) =>
      rows.load(`min($(128 * c) + ${LANES} * ${batch} + base + ${e}, ${P - 1}u)`, places),
    );
    const make = (e: number) => `
      @unroll(h, ${eights}) {
        @unroll(v, ${V}) var sum${e}_$h_$v = vec4f(0.0);
        @unroll(k, 2) {{
          let x = ${rows.four(ahead.of(e), 'h', 'k')};
          @unroll(i, 4) @unroll(v, ${V}) sum${e}_$h_$v = fma(x$(8 * h + 4 * k + i)_$v, vec4f(x[$i]), sum${e}_$h_$v);
        }}
      }
      ${ahead.next(e)}`;
    return `
    let part = lane % ${lanes};
    let base = lane / ${lanes} * ${lanes};
    @unroll(c, ${roundsOf(P)}) {
      @unroll(q, ${Q}) var dots$c_$q = vec4f(0.0);
      ${ahead.first}
      for (var batch = 0u; batch < min(4u, (max(${count}, $(128 * c)u) - $(128 * c) + ${LANES - 1}) / ${LANES}); batch++) {
        ${scatter.reduce(V, make, e => `@sum(h, ${eights}, sum${e}_$h_$v)`)}
        let is_batch = vec4u(batch) == vec4u(0, 1, 2, 3);
        @unroll(q, ${Q}) dots$c_$q = select(dots$c_$q, vec4f(${scatter.result}$[q]), is_batch);
      }
    }`;
  };
  return {
    name: `rows ${rows.name}`,
    dim: D,
    queryWords: queries.words,
    strided: true,
    text: () => `${rows.text ?? ''}\n${reduceScatter(1, adjacent).text}`,
    load: Q => {
      const { eights, lanes } = shareOf(D, Q);
      const first = adjacent
        ? `(8 * (lane % ${lanes} * ${eights} + $(i / 8)))`
        : `(8 * (lane % ${lanes} + $(i / 8 * ${lanes})))`;
      const n = `(${first} + $(i % 8))`;
      const number =
        8 * eights * lanes === D ? queries.at(n) : `select(0.0, ${queries.at(`min(${n}, ${D - 1}u)`)}, ${n} < ${D})`;
      return `
  @unroll(i, ${8 * eights}) @unroll(v, ${vectors(Q)}) let x$i_$v = ${rows.unit} * vec4f${vec4Of(Q, number)};`;
    },
    sums,
    score: plus => addTerm('dots$c_$q', plus),
  };
}

export function rowValues(rows: Rows): ValueStage {
  const { dim: D, tokens: P, count, ahead } = rows;
  const row = Math.ceil(D / 8);
  // Tokens in parallel; several groups of eight per lane where a row has more than 32.
  const shares = Math.max(1, Math.floor(LANES / row));
  const columns = Math.ceil(row / LANES);
  const slot = shares > 1 ? `(lane / ${row})` : '0u';
  const chunk = shares > 1 ? `(lane % ${row})` : `min(lane + $(${LANES} * j), ${row - 1}u)`;
  const live = shares > 1 ? `${slot} < ${shares}` : `lane + $(${LANES} * j) < ${row}`;
  // The next tokens load while sums are computed: `$u` of group `$j`.
  const loads = (t: string, word = '') =>
    rows
      .load(`min(${t} + $(${shares} * u), ${P - 1}u)`, [chunk])
      .map((text, k) => `${word}values$j_$u_${k} = ${text};`)
      .join(' ');
  const stride = shares * ahead.values;
  const whole = P % stride === 0;
  /** Adds four sums of dims `first` and on. */
  const put = (Q: number, half: 'low' | 'high', first: number) => {
    const i = `(8 * ${chunk} + $(${first} + i))`;
    const add = `@unroll(v, ${vectors(Q)}) {{
          let at = ${sharedSumIndex(Q, i)};
          token_probabilities[at] = fma(vec4f${vec4Of(Q, `${half}$j_$q[$i]`)}, vec4f(${rows.unit}),
            select(token_probabilities[at], vec4f(0.0), current_slot == 0));
        }}`;
    return `@unroll(i, 4) ${D % 8 === 0 ? add : `if (8 * ${chunk} + $(${first} + i) < ${D}) { ${add} }`}`;
  };
  return {
    name: `rows ${rows.name}`,
    dim: D,
    // Probabilities of a round, and the sums in the end.
    sharedSums: 'token_probabilities',
    text: Q => `var<workgroup> token_probabilities: array<vec4f, ${Math.max(P * vectors(Q), sharedSumVectors(Q, D))}>;`,
    declare: Q => `@unroll(j, ${columns}) @unroll(q, ${Q}) { var low$j_$q = vec4f(0.0); var high$j_$q = vec4f(0.0); }`,
    prefetch: () => `@unroll(j, ${columns}) @unroll(u, ${ahead.values}) { ${loads(slot, 'var ')} }`,
    accumulate: (Q, { at }) => `
    workgroupBarrier();
    @unroll(c, ${roundsOf(P)}) @unroll(j, 4) if (${at} < ${P}) {
      @unroll(v, ${vectors(Q)}) token_probabilities[${at} * ${vectors(Q)} + $v] = vec4f${vec4Of(Q, 'prob$c_$q[$j]')} * page_factor$v;
    }
    workgroupBarrier();
    @unroll(j, ${columns}) @unroll(q, ${Q}) { low$j_$q *= rescale$[q]; high$j_$q *= rescale$[q]; }
    for (var t = ${slot}; t < ${count}; t += ${stride}) {
      @unroll(u, ${ahead.values}) let t$u = ${whole ? `t + $(${shares} * u)` : `min(t + $(${shares} * u), ${P - 1}u)`};
      @unroll(u, ${ahead.values}) {
        ${whole ? '' : `if (t + $(${shares} * u) < ${P}) `}{
          @unroll(v, ${vectors(Q)}) let w$v = token_probabilities[t$u * ${vectors(Q)} + $v];
          @unroll(j, ${columns}) {{
            let low = ${rows.four('values$j_$u_', '0', '0')};
            let high = ${rows.four('values$j_$u_', '0', '1')};
            @unroll(q, ${Q}) {
              low$j_$q = fma(vec4f(w$[q]), low, low$j_$q);
              high$j_$q = fma(vec4f(w$[q]), high, high$j_$q);
            }
          }}
        }
        @unroll(j, ${columns}) { ${loads(`t + ${stride}`)} }
      }
    }`,
    finish: Q => `
  for (var current_slot = 0u; current_slot < ${shares}; current_slot++) {
    workgroupBarrier();
    @unroll(j, ${columns}) if (${slot} == current_slot && ${live}) {
      ${put(Q, 'low', 0)}
      ${put(Q, 'high', 4)}
    }
  }`,
  };
}

/** Four of the eight f16 values of a vector. */
export const fourF16 = (id: string, n: string, h: string): string =>
  `vec4f(@list(i, 2, unpack2x16float(${id}$(${n})[$(2 * ${h} + i)])))`;

/** Pages of f16 and fp8. */
function pageRows(side: Side, layout: PageLayout, { headDim: D, pageTokens: P }: PageShape): Rows | undefined {
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
      four: (id, n, h) => `scaled_fp8(${id}0[$(2 * ${n} + ${h})])`,
    };
  return undefined;
}

export function floatRowKeys(layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const rows = layout.ropeFrequencies ? undefined : pageRows('key', layout, shape);
  if (!rows) return undefined;
  const { codedDim } = layout;
  return rowKeys(rows, {
    words: codedDim,
    at: n => `bitcast<f32>(queries[query_origin$q + ${n}]) * ${LOG2E}`,
  });
}

export function floatRowValues(layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const rows = pageRows('value', layout, shape);
  return rows && rowValues(rows);
}
