/**
 * Attention by teams: a workgroup is four teams of 32 lanes, and has one KV head, up to four pages of one sequence (an
 * item) and all queries that read them: the query heads of the group, of one row or of several. Each team has a page, and
 * a lane four neighbouring tokens of it and some dims of the result, so scores and sums are whole in a lane, and nothing is
 * kept from page to page:
 *
 *   1. the key part makes the dots of a lane's tokens with all queries
 *   2. lanes of a team tell one another their largest scores and make weights
 *   3. the value part sums values under these weights, and what the largest of all pages makes of them
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

/** Numbers of all queries are in vectors of four: how many there are. */
export const vectors = (Q: number): number => Math.ceil(Q / 4);

/** Token j of a lane's four. */
export const tokenAt = (j: number): string => `(4 * lane + ${j})`;

/** What keys that are relative to their page make of a query (turned.ts): words of four coded dims. */
export interface Words {
  /** The most words of a head. */
  most: number;
  /** Statements that make `count`, the words of `head`. */
  count: string;
  /** What coded dim n is multiplied by: 0 if no word has it. */
  step(n: string): string;
  /** Of word n the four dims (vec4u). */
  dims(n: string): string;
  /** Twice what is added to all four codes of word n: four int8 that are the same. */
  twice?(n: string): string;
}

/** Words of a round of books: sixteen of each lane. */
export const BOOK_ROUND = 16 * LANES;

/** What both sides have. Texts may depend on the number of queries, Q. */
interface Part {
  name: string;
  /** Length of a coded vector. */
  dim: number;
  /** Vectors of `room` that it takes: keys until scores are known, values from then on. */
  room?(Q: number): number;
  /** Functions and variables. */
  text?: string;
  /** Statements before the page: tables that all lanes fill together. */
  setup?: string;
  /** Sixteens of words that it looks up, in `books`, which the keys have first and then the values; statements that fill them. */
  books?: { rounds: number; fill: string };
  /** Constants of a page that are read before anything is waited for. */
  fetch?: string;
}

export interface KeyPart extends Part {
  /** How the words of queries are made, which every page has its own of. */
  turned: Words;
  /** Makes what scores are of, for token j of a lane. */
  sums(Q: number): string;
  /** The scores of token j for the queries of vector v. */
  score(Q: number, j: number, v: number): string;
}

export interface ValuePart extends Part {
  /**
   * Makes `oI_V`: the sums of the queries in vector V for a lane's dim I, times `byV`, from the weights `wJ_V`, of which the
   * page's largest is 1.
   */
  sum(Q: number): string;
  /** Which dim is a lane's I; and how many it has. */
  dims: number;
  dimOf(i: number): string;
  /**
   * Where lanes share dims they have none of their own: it then adds to `room[sums + dim x vectors + V]` (bits of a float),
   * beside what else it has there. Two teams share these sums: it is a team's turn when `team / 2 == half`.
   */
  shared?: boolean;
}

/** Arrays of sums: two teams share one. Less memory is more teams on a processor. */
const SUMS = 2;

/** Where sums begin in `room`, and how many vectors that has. */
function roomOf(keys: KeyPart, values: ValuePart, Q: number): { sumsAt: number; size: number } {
  const sumsAt = values.shared ? (values.room?.(Q) ?? 0) : 0;
  return {
    sumsAt,
    size: Math.max(keys.room?.(Q) ?? 0, values.room?.(Q) ?? 0, sumsAt + SUMS * values.dim * vectors(Q)),
  };
}

const roundsOf = (keys: KeyPart, values: ValuePart) => Math.max(keys.books?.rounds ?? 0, values.books?.rounds ?? 0);

export interface Source extends SourceOf<KeyPart, ValuePart> {
  /** Whether token t is seen. */
  seen(t: string): string;
}

/**
 * Words of an item: row, rows, [source's own], rounds, [source's own], first state, states between rows, and two more
 * of the source's own.
 */
export function attend(source: Source, shape: AttendShape, rows: number): Kernel {
  const { group: G, kvHeads, subgroups } = shape;
  const { tokens: P, keys, values } = source;
  const H = G * kvHeads;
  const Q = G * rows;
  const V = vectors(Q);
  const C = values.dim;
  const together = subgroups === LANES;
  const rounds = roundsOf(keys, values);
  const { sumsAt, size } = roomOf(keys, values, Q);
  const eachSum = (text: (at: string, sum: string) => string) =>
    each(values.dims, i => each(V, v => text(`sums + ${values.dimOf(i)} * ${V} + ${v}`, `o${i}_${v}`), ' '));
  const addAll = `workgroupBarrier();
  if (team >= 2) { ${eachSum((at, sum) => `room[${at}] = bitcast<vec4u>(${sum});`)} }
  workgroupBarrier();
  if (team < 2) { ${eachSum((at, sum) => `{ let at = ${at}; room[at] = bitcast<vec4u>(${sum} + bitcast<vec4f>(room[at])); }`)} }`;
  const ofRow = (q: number, text: string) => (q < G ? text : `if (${Math.floor(q / G)} < rows) { ${text} }`);
  const ofTeams = (text: (t: number) => string) => `(${each(TEAMS, text, ' + ')})`;
  const all = (text: (j: number, v: number) => string) => each(4, j => each(V, v => text(j, v)));
  const body = /* wgsl */ `
${talk(together)}
var<workgroup> tops: array<array<vec4f, ${V}>, ${TEAMS}>;
var<workgroup> room: array<vec4u, ${size}>;
var<workgroup> lengths: array<array<vec4f, ${V}>, ${TEAMS}>;
${rounds > 0 ? `var<workgroup> books: array<array<u32, ${BOOK_ROUND}>, ${rounds}>;` : ''}
${keys.text ?? ''}
${values.text ?? ''}

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
  ${keys.books?.fill ?? ''}
  ${source.begin}
  ${keys.fetch ?? ''}
  ${values.fetch ?? ''}
  workgroupBarrier();
  // 1. dots
  ${keys.sums(Q)}
  // 2. weights
  ${all((j, v) => `let s${j}_${v} = select(vec4f(${NEVER}), ${keys.score(Q, j, v)}, ${source.seen(tokenAt(j))});`)}
  ${each(
    V,
    v => `let top${v} = largest(${[0, 1, 2, 3].map(j => `s${j}_${v}`).reduce((a, b) => `max(${a}, ${b})`)});
  var l${v} = vec4f(0.0);`,
  )}
  ${all((j, v) => `let w${j}_${v} = select(exp(s${j}_${v} - top${v}), vec4f(0.0), s${j}_${v} < vec4f(-1e38)); l${v} += w${j}_${v};`)}
  if (lane == 0) { ${each(V, v => `tops[team][${v}] = top${v};`, ' ')} }
  workgroupBarrier();
  ${each(V, v => `var top_of_all${v} = tops[0][${v}];`, ' ')}
  ${each(TEAMS - 1, t => each(V, v => `top_of_all${v} = max(top_of_all${v}, tops[${t + 1}][${v}]);`, ' '), ' ')}
  ${each(V, v => `let by${v} = exp(top${v} - top_of_all${v});`, ' ')}
  // 3. values
  ${values.books?.fill ?? ''}
  let sums = ${sumsAt} + team % 2 * ${C * V};
  ${each(values.dims, i => each(V, v => `var o${i}_${v} = vec4f(0.0);`, ' '))}
  { ${values.sum(Q)} }
  // 4. all teams together
  ${each(V, v => `l${v} = all_of(l${v}) * by${v};`, ' ')}
  ${values.shared ? '' : addAll}
  if (lane == 0) { ${each(V, v => `lengths[team][${v}] = l${v};`, ' ')} }
  workgroupBarrier();
  ${each(Q, q => `let to${q} = ((first_state + ${Math.floor(q / G)} * between) * ${H} + head * ${G} + ${q % G}) * ${stateFloats(C)};`)}
  for (var i = own; i < ${C}; i += ${SIZE}) {
    ${each(V, v => `let sum${v} = ${each(SUMS, t => `bitcast<vec4f>(room[${sumsAt + t * C * V} + i * ${V} + ${v}])`, ' + ')};`)}
    ${each(Q, q => ofRow(q, `states[to${q} + i] = sum${q >> 2}[${q & 3}];`))}
  }
  if (own == 0) {
    ${each(V, v => `let length${v} = ${ofTeams(t => `lengths[${t}][${v}]`)};`)}
    ${each(Q, q => ofRow(q, `states[to${q} + ${4 * Math.ceil(C / 4)}] = top_of_all${q >> 2}[${q & 3}]; states[to${q} + ${4 * Math.ceil(C / 4) + 1}] = length${q >> 2}[${q & 3}];`))}
  }
}`;
  const bound = source.buffers.filter(text => body.includes(`${text.slice(0, text.indexOf(':'))}[`));
  return {
    name: `attend ${source.name} by teams ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads}${together ? ' together' : ''}`,
    params: ['table', 'items', 'four', ...source.params],
    buffers: ['data: array<u32>', 'queries: array<vec4u>', ...bound, 'write states: array<f32>'],
    size: SIZE,
    body,
    enable: together ? ['subgroups'] : [],
  };
}
