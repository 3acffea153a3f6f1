/**
 * Attention by teams: a workgroup is four teams of 32 lanes, and has one KV head, up to four pages of one sequence (an
 * item) and all queries that read them: the query heads of the group, of one row or of several. Each team has a page, and
 * a lane every 32nd token of it and every 32nd dim of the result, so scores and sums are whole in a lane, and nothing is
 * kept from page to page:
 *
 *   1. the key part makes the dots of a lane's tokens with all queries
 *   2. lanes of a team tell one another their largest scores and make weights
 *   3. the value part sums values under these weights
 *   4. teams add up what they have
 *
 * What is unpacked is unpacked once for all queries. It leaves a partial state {o, m, l} a query; `finish` (domain.ts)
 * merges them in order. Every sum runs in an order that depends on the shape alone, not on how many queries share the
 * workgroup.
 */

import type { Kernel } from '../../gpu.ts';
import { type AttendShape, ITEM, NEVER, type SourceOf } from '../attend.ts';
import { stateFloats } from '../domain.ts';
import { LANES } from '../lanes/talk.ts';
import { each } from '../text.ts';
import { SIZE, TEAMS, talk } from './talk.ts';

/** Below the least factor of a value that an f16 can hold. */
const LEAST = '2e-8';

/** Teams add up what they have one after the other, but two halves of them side by side. */
const GROUPS = 2;
/** Which array of sums a team adds to. */
export const groupOf = `team / ${TEAMS / GROUPS}`;
/** Words of workgroup memory that the frame takes a query. */
export const frameWords = (dim: number): number => GROUPS * (dim + 2 * LANES) + TEAMS + 2;

/** Numbers of all queries are in vectors of four: how many there are. */
export const vectors = (Q: number): number => Math.ceil(Q / 4);
/** A vector of queries from an expression of each. */
export const vectorOf = (Q: number, v: number, text: (q: number) => string): string =>
  `(${each(4, k => text(Math.min(4 * v + k, Q - 1)), ', ')})`;

/** The tokens of a lane: every 32nd, or four neighbours. `at(j)` is token j of `each`. */
export interface Tokens {
  neighbours: boolean;
  each: number;
  at(j: number): string;
}

/** Of so many that a team has. */
export const tokensOf = (P: number, neighbours = false): Tokens => ({
  neighbours,
  each: neighbours ? 4 : P / LANES,
  at: j => (neighbours ? `(4 * lane + ${j})` : `(lane + ${LANES * j})`),
});

/** What keys that are relative to their page make of a query (turned.ts). */
export interface Words {
  /** The most words of a head; functions and variables. */
  most: number;
  text: string;
  /** Statements that make `count`, the words of `head`. */
  count: string;
  /** What coded dim n is multiplied by, and the share of it that is added to all dots. */
  step(n: string): string;
  share: number;
  /** Of word n, the four dims and the factor of each (vec4u, f32). */
  dims(n: string): string;
  factor(n: string): string;
}

/** What both sides have. Texts may depend on the number of queries, Q. */
interface Part {
  name: string;
  /** Length of a coded vector. */
  dim: number;
  /** Words of workgroup memory a query, and in all. */
  loaded: number;
  fixed?: number;
  /** Whether it is as fast by lanes, which are taken then where both sides are. */
  even?: boolean;
  /** Functions and variables. */
  text(Q: number): string;
  /** Statements before the page: tables that all lanes fill together. */
  setup?: string;
  /** Constants of a page that are read before anything is waited for. */
  fetch?(tokens: Tokens): string;
}

export interface KeyPart extends Part {
  /** Words of a prepared query in `queries`; none where every page has its own, which `turned` says how to make. */
  words: number;
  turned?: Words;
  /** The type of `queries`, unless it is array<u32>. */
  queries?: string;
  /** Takes the queries: the words of query q begin at `origin(item, head, q)`; lane `own` of all. */
  load(Q: number): string;
  /** Whether a lane has four neighbours. */
  neighbours?: boolean;
  /** Makes what scores are of, for token j of a lane. */
  sums(Q: number): string;
  /** The scores of token j for the queries of vector v. */
  score(Q: number, j: number, v: number): string;
}

export interface ValuePart extends Part {
  /** Factor of token j of a lane, which its weights shall have in them; none unless given. */
  factor?(j: number): string;
  /**
   * Makes `oI_V`: the sums of the queries in vector V for a lane's dim I, from the weights `wJ_V`, of which the page's
   * largest is 1. What it puts into `moreV` is added up over lanes and added to all dims.
   */
  sum(Q: number, tokens: Tokens): string;
  /** Which dim is a lane's I; and how many it has. */
  dimOf(i: number): string;
  dims: number;
  /**
   * Otherwise, where lanes share dims: it takes so many turns for a team to add what it has, times `byV`, to
   * `sums[dim x vectors + V]`. Statements of turn `turn`.
   */
  turns?: { count: number; declare(Q: number): string; add(Q: number): string };
}

export interface Source extends SourceOf<KeyPart, ValuePart> {
  /** How lanes have them. */
  own: Tokens;
  /** Whether token t is seen. */
  seen(t: string): string;
}

/**
 * Words of an item: row, rows, [source's own], rounds, [source's own], first state, states between rows, and two more
 * of the source's own.
 */
export function attend(source: Source, shape: AttendShape, rows: number): Kernel {
  const { group: G, kvHeads, subgroups } = shape;
  const inTurn = TEAMS / GROUPS;
  const { tokens: P, keys, values, own } = source;
  const J = own.each;
  const H = G * kvHeads;
  const Q = G * rows;
  const V = vectors(Q);
  const C = values.dim;
  const together = subgroups === LANES;
  const logged = values.factor !== undefined;
  const grouped = (array: string, at: string, k: string) => each(GROUPS, g => `${array}[${g}][${at}][${k}]`, ' + ');
  const turns = values.turns?.count ?? 1;
  const addTo = (array: string, at: string, sum: string, v: number) =>
    `{ let at = ${at}; ${array}[${groupOf}][at] = fma(${sum}, by${v}, ${array}[${groupOf}][at]); }`;
  const all = (text: (j: number, v: number) => string) => each(J, j => each(V, v => text(j, v)));
  const body = /* wgsl */ `
${talk(together)}
var<workgroup> tops: array<array<vec4f, ${V}>, ${TEAMS}>;
// Zero at first, as all of workgroup memory is.
var<workgroup> sums: array<array<vec4f, ${C * V}>, ${GROUPS}>;
var<workgroup> lengths: array<array<vec4f, ${2 * V * LANES}>, ${GROUPS}>;
var<workgroup> totals: array<vec2f, ${Q}>;
fn origin(item: u32, head: u32, q: u32) -> u32 {
  return ((data[item] + min(q / ${G}, data[item + 1] - 1)) * ${H} + head * ${G} + q % ${G}) * ${keys.words};
}
${keys.text(Q)}
${values.text(Q)}

fn main(group: vec3u, own: u32) {
  lane = own % ${LANES};
  team = own / ${LANES};
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  let rows = data[item + 1];
  let first_state = data[item + 5];
  let between = data[item + 6];
  ${keys.setup ?? ''}
  ${values.setup ?? ''}
  ${keys.load(Q)}
  ${values.turns ? values.turns.declare(Q) : each(values.dims, i => each(V, v => `var o${i}_${v} = vec4f(0.0);`, ' '))}
  ${source.begin}
  ${keys.fetch?.(own) ?? ''}
  ${values.fetch?.(own) ?? ''}
  workgroupBarrier();
  // 1. dots
  ${keys.sums(Q)}
  // 2. weights
  ${logged ? each(J, j => `let factor${j} = max(${values.factor!(j)}, ${LEAST}); let log${j} = log(factor${j});`) : ''}
  ${all((j, v) => `let s${j}_${v} = select(vec4f(${NEVER}), ${keys.score(Q, j, v)}${logged ? ` + log${j}` : ''}, ${source.seen(own.at(j))});`)}
  ${each(
    V,
    v => `let top${v} = largest(${Array.from({ length: J }, (_, j) => `s${j}_${v}`).reduce((a, b) => `max(${a}, ${b})`)});
  var l${v} = vec4f(0.0);
  var more${v} = vec4f(0.0);`,
  )}
  ${all((j, v) => `let w${j}_${v} = select(exp(s${j}_${v} - top${v}), vec4f(0.0), s${j}_${v} < vec4f(-1e38)); l${v} ${logged ? `= fma(w${j}_${v}, vec4f(1.0 / factor${j}), l${v})` : `+= w${j}_${v}`};`)}
  // 3. values
  ${values.sum(Q, own)}
  // 4. all teams together
  if (lane == 0) { ${each(V, v => `tops[team][${v}] = top${v};`, ' ')} }
  workgroupBarrier();
  ${each(V, v => `var top_of_all${v} = tops[0][${v}];`, ' ')}
  ${each(TEAMS - 1, t => each(V, v => `top_of_all${v} = max(top_of_all${v}, tops[${t + 1}][${v}]);`, ' '), ' ')}
  ${each(V, v => `let by${v} = exp(top${v} - top_of_all${v});`, ' ')}
  for (var all_turns = 0u; all_turns < ${inTurn * turns}; all_turns++) {
    if (team % ${inTurn} == all_turns / ${turns}) {
      let turn = all_turns % ${turns};
      ${values.turns?.add(Q) ?? each(V, v => each(values.dims, i => addTo('sums', `${values.dimOf(i)} * ${V} + ${v}`, `o${i}_${v}`, v)))}
      if (turn == 0) {
        ${each(V, v => `${addTo('lengths', `${2 * v * LANES} + lane`, `l${v}`, v)} ${addTo('lengths', `${(2 * v + 1) * LANES} + lane`, `more${v}`, v)}`)}
      }
    }
    workgroupBarrier();
  }
  ${each(
    Math.ceil(Q / TEAMS),
    k => `{
    let q = min(${k * TEAMS} + team, ${Q - 1}u);
    let at = 2 * (q / 4) * ${LANES} + lane;
    let both = total(vec2f(${grouped('lengths', 'at', 'q % 4')}, ${grouped('lengths', `at + ${LANES}`, 'q % 4')}));
    if (lane == 0) { totals[q] = both; }
  }`,
  )}
  workgroupBarrier();
  ${each(
    Q,
    q => `if (${Math.floor(q / G)} < rows) {
    let to = ((first_state + ${Math.floor(q / G)} * between) * ${H} + head * ${G} + ${q % G}) * ${stateFloats(C)};
    for (var i = own; i < ${C}; i += ${SIZE}) { states[to + i] = ${grouped('sums', `i * ${V} + ${q >> 2}`, `${q & 3}`)} + totals[${q}].y; }
    if (own == 0) { states[to + ${4 * Math.ceil(C / 4)}] = top_of_all${q >> 2}[${q & 3}]; states[to + ${4 * Math.ceil(C / 4) + 1}] = totals[${q}].x; }
  }`,
  )}
}`;
  const bound = source.buffers.filter(text => body.includes(`${text.slice(0, text.indexOf(':'))}[`));
  return {
    name: `attend ${source.name} by teams ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads}${together ? ' together' : ''}`,
    params: ['table', 'items', 'four', ...source.params],
    buffers: ['data: array<u32>', `queries: ${keys.queries ?? 'array<u32>'}`, ...bound, 'write states: array<f32>'],
    size: SIZE,
    body,
    enable: together ? ['subgroups'] : [],
  };
}
