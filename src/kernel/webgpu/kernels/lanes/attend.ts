/**
 * Attention by lanes: as ../attend.ts has it, for parts that need little workgroup memory. A workgroup is 32 lanes. It has
 * one KV head, some pages of one sequence (an item) and all queries that read them: the query heads of the group, of one row
 * or of several. A lane owns four tokens of a page and four dims of a result (and as many 128 further on, where there are
 * more), so scores and sums are whole in a lane:
 *
 *   1. the key part makes the dots of a lane's tokens with all queries
 *   2. lanes tell one another their largest scores and make weights
 *   3. the value part sums values under these weights
 *
 * What is unpacked is unpacked once for all queries. It leaves a partial state {o, m, l} a query; `finish` (domain.ts)
 * merges them in order. Every sum runs in an order that depends on the shape alone, not on how many queries share the
 * workgroup. Barriers cost little: where subgroups have 32 lanes nobody is waited for.
 */

import type { Kernel } from '../../gpu.ts';
import { type AttendShape, ITEM, NEVER, type SourceOf } from '../attend.ts';
import { stateFloats } from '../domain.ts';
import { each, most4 } from '../text.ts';
import { LANES, talk } from './talk.ts';

/** Scores are logarithms to the base 2: what a score is multiplied by is multiplied by this too. */
export const LOG2E = `f32(${Math.fround(Math.LOG2E)})`;

const LN2 = `f32(${Math.fround(Math.LN2)})`;

/** A score and what is to be added to it, if anything. */
export const withPlus = (score: string, plus: string | undefined): string => (plus ? `(${score} + ${plus})` : score);

/** Above every score that is not seen: what is left of those under it is 0. */
const LOWEST = '-1e37';

/** Below the least factor of a value that an f16 can hold. */
const LEAST = '2e-8';

/** Numbers of all queries are in vectors of four: how many, and that of query q. */
export const vectors = (Q: number): number => Math.ceil(Q / 4);
export const of = (name: string, q: number): string => `${name}${q >> 2}[${q & 3}]`;
/** A vector of all queries from an expression of each. */
export const vectorOf = (Q: number, v: number, text: (q: number) => string): string =>
  `(${each(4, k => text(Math.min(4 * v + k, Q - 1)), ', ')})`;

/** Where shared sums have dim i for the queries of vector v, so that lanes find their own side by side; and their number. */
export const sumOf = (Q: number, i: string, v: number): string =>
  `(((${i} / ${4 * LANES} * 4 + ${i} % 4) * ${vectors(Q)} + ${v}) * ${LANES} + ${i} / 4 % ${LANES})`;

export const sumsOf = (Q: number, dim: number): number => roundsOf(dim) * 4 * vectors(Q) * LANES;

/** Rounds of 32 lanes that n fours take: chunks of a page's tokens, or of a result's dims. */
export const roundsOf = (n: number): number => Math.ceil(n / 4 / LANES);

/**
 * The tokens that a lane has: four neighbours, or, where rows are read, every 32nd, so that lanes side by side read rows
 * side by side. `at(c, j)` is token j of chunk c.
 */
export interface Tokens {
  strided: boolean;
  at(c: number, j: number): string;
}

const tokensOf = ({ strided = false, place = 'lane' }: KeyPart): Tokens => ({
  strided,
  at: (c, j) => (strided ? `(${place} + ${4 * LANES * c + LANES * j})` : `(4 * lane + ${4 * LANES * c + j})`),
});

/** What both sides have. Texts may depend on the number of queries, Q. */
interface Part {
  name: string;
  /** Length of a coded vector. */
  dim: number;
  /** Queries at most, if not as many as there is memory for. */
  most?: number;
  /** Extensions of WGSL. */
  enable?: readonly string[];
  /** Vectors of `room: array<vec4u>` in workgroup memory, which is the keys' until weights are made and then the values'. */
  room?(Q: number): number;
  /** Functions and variables. */
  text(Q: number): string;
  /** Constants of a page that are read before anything is waited for. */
  fetch?(tokens: Tokens): string;
}

export interface KeyPart extends Part {
  /** Statements at the start of a page, with barriers of its own. */
  begin?(Q: number): string;
  /** Words of a prepared query in `queries: array<u32>`. */
  words: number;
  /** Whether they are int8. */
  int8?: boolean;
  /** Whether a lane has every 32nd token, and which of 32 it begins with, if not that of its own number. */
  strided?: boolean;
  place?: string;
  /** Takes the queries: the words of query q begin at `originQ`, or, of any, at `origin(item, head, q)`. */
  load(Q: number): string;
  /** Makes `dotsC_Q`, the dots of query Q with the four tokens of chunk C, a vec4f. */
  sums(Q: number): string;
  /** Scores out of them (to the base 2), with what is to be added. */
  score(q: number, c: number, plus?: string): string;
  /** What all scores of the queries in vector v lack, to the base e. */
  constant?(v: number): string;
}

export interface ValuePart extends Part {
  /** Factors of the four tokens of chunk c, which its weights shall have in them; none unless given. */
  factor?(c: number): string;
  /** Variables of its own. */
  declare?(Q: number): string;
  /** Asks for what it reads first, before weights are made. */
  ask?(tokens: Tokens): string;
  /**
   * Adds to `oR_J_V`: of dim 4 (lane + 32 R) + J, the sums of the queries in vector V. `wC_Q` (vec4f) are the weights of
   * chunk C, of which the page's largest is 1; they all count by `wholeV`, and what was summed before by `keptV`.
   */
  sum(Q: number, tokens: Tokens): string;
  /** The dim of `oR_J`, if not that. */
  dimOf?(r: number, j: number): string;
  /** Whether J has dim lane + 32 J (and 128 R) instead, for columns likewise. */
  strided?: boolean;
  /** Statements after the last page. */
  result?(Q: number): string;
  /** The array in workgroup memory where these leave the sums (sumOf), if they do; of `sumsOf` vectors. */
  shared?: string;
}

export interface Source extends SourceOf<KeyPart, ValuePart> {
  /** Whether the queries of a row see token t, and whether all see all. */
  seen(row: number, t: string): string;
  allSeen: string;
  /** How many rounds an item has. */
  rounds: string;
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
  const S = Math.ceil(C / 4);
  const [chunks, rounds] = [roundsOf(P), roundsOf(C)];
  const together = subgroups === LANES;
  const room = Math.max(keys.room?.(Q) ?? 0, values.room?.(Q) ?? 0);
  const tokens = tokensOf(keys);
  const seen = (row: number, c: number) => {
    const sees = each(4, j => source.seen(row, tokens.at(c, j)), ', ');
    const here = each(4, j => `${tokens.at(c, j)} < ${P}`, ', ');
    return `vec4<bool>(${sees})${P % (4 * LANES) === 0 ? '' : ` & vec4<bool>(${here})`}`;
  };
  // Lanes that have no token of a short page never see all.
  const allSeen = P % (4 * LANES) === 0 ? source.allSeen : 'false';
  const scores = (c: number) => `
    ${values.factor ? `let factors${c} = max(${values.factor(c)}, vec4f(${LEAST})); let logs${c} = log2(factors${c});` : ''}
    ${each(Q, q => `var s${c}_${q} = ${keys.score(q, c, values.factor && `logs${c}`)};`)}
    if (!(${allSeen})) {
      ${each(rows, row => `let seen${row} = ${seen(row, c)};`)}
      ${each(Q, q => `s${c}_${q} = select(vec4f(${NEVER}), s${c}_${q}, seen${Math.floor(q / G)});`)}
    }
    ${each(Q, q => `${of('top', q)} = max(${of('top', q)}, ${most4(`s${c}_${q}`)});`)}`;
  /** A sum of the four numbers of w, as they are or each times its own in `by`. */
  const sumOf4 = (w: string, by?: string) =>
    by
      ? `fma(${w}.x, ${by}.x, fma(${w}.y, ${by}.y, fma(${w}.z, ${by}.z, ${w}.w * ${by}.w)))`
      : `((${w}.x + ${w}.y) + (${w}.z + ${w}.w))`;
  const weights = (c: number) => `
    ${values.factor ? `let plain${c} = 1.0 / factors${c};` : ''}
    ${each(
      Q,
      q => `let w${c}_${q} = exp2(s${c}_${q} - vec4f(${of('top', q)}));
    ${of('sum', q)} += ${sumOf4(`w${c}_${q}`, values.factor && `plain${c}`)};`,
    )}`;
  const stored = (r: number, q: number) => {
    if (values.dimOf)
      return each(4, j => {
        const store = `states[at + i / 4][i % 4] = ${of(`o${r}_${j}_`, q)};`;
        return `{ let i = ${values.dimOf!(r, j)}; ${C % (4 * LANES) === 0 ? store : `if (i < ${C}) { ${store} }`} }`;
      });
    if (values.strided)
      return each(4, j => {
        const first = 4 * LANES * r + LANES * j;
        const store = `states[at + ${first / 4} + lane / 4][lane % 4] = ${of(`o${r}_${j}_`, q)};`;
        return first + LANES <= C ? store : `if (lane + ${first} < ${C}) { ${store} }`;
      });
    const store = `states[at + lane + ${r * LANES}] = vec4f(${each(4, j => of(`o${r}_${j}_`, q), ', ')});`;
    return S >= LANES * (r + 1) ? store : `if (lane + ${r * LANES} < ${S}) { ${store} }`;
  };
  const body = /* wgsl */ `
var<private> lane: u32;
${talk(together)}
fn origin(item: u32, head: u32, q: u32) -> u32 {
  return ((data[item] + min(q / ${G}, data[item + 1] - 1)) * ${H} + head * ${G} + q % ${G}) * ${keys.words};
}
${room > 0 ? `var<workgroup> room: array<vec4u, ${room}>;` : ''}
${keys.text(Q)}
${values.text(Q)}

fn main(group: vec3u, own_lane: u32) {
  lane = own_lane;
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  ${each(Q, q => `let origin${q} = origin(item, head, ${q}u);`)}
  ${keys.load(Q)}
  ${each(V, v => `var m${v} = vec4f(${NEVER}); var l${v} = vec4f(0.0);`)}
  ${each(rounds, r => each(4, j => each(V, v => `var o${r}_${j}_${v} = vec4f(0.0);`, ' '), ' '))}
  ${values.declare?.(Q) ?? ''}
  workgroupBarrier();

  for (var page = 0u; page < ${source.rounds}; page++) {
    ${source.begin}
    ${keys.fetch?.(tokens) ?? ''}
    ${values.fetch?.(tokens) ?? ''}
    ${keys.begin?.(Q) ?? ''}
    // 1. dots
    ${keys.sums(Q)}
    ${values.ask?.(tokens) ?? ''}
    // 2. weights
    ${each(V, v => `var top${v} = vec4f(${NEVER}); var sum${v} = vec4f(0.0);`)}
    ${each(chunks, scores)}
    ${each(
      V,
      v => `top${v} = max(largest(top${v}), vec4f(${LOWEST}));
    // Of what was summed before and of this page, the one with the smaller scores is made smaller.
    let higher${v} = top${v} > m${v};
    let less${v} = exp2(-abs(top${v} - m${v}));
    let kept${v} = select(vec4f(1.0), less${v}, higher${v});
    let whole${v} = select(less${v}, vec4f(1.0), higher${v});
    m${v} = max(m${v}, top${v});`,
    )}
    ${each(chunks, weights)}
    ${each(V, v => `l${v} = fma(l${v}, kept${v}, sum${v} * whole${v});`, ' ')}
    // 3. values
    ${values.sum(Q, tokens)}
    // done
  }

  ${each(V, v => `l${v} = all_of(l${v}); m${v} = m${v} * ${LN2}${keys.constant ? ` + ${keys.constant(v)}` : ''};`, ' ')}
  ${values.result?.(Q) ?? ''}
  ${
    values.shared
      ? `workgroupBarrier();
  ${each(rounds, r => each(4, j => each(V, v => `o${r}_${j}_${v} = ${values.shared}[${((4 * r + j) * V + v) * LANES} + lane];`, ' ')))}`
      : ''
  }
  ${each(
    Q,
    q => `if (${Math.floor(q / G)} < data[item + 1]) {
    let at = ((data[item + 5] + ${Math.floor(q / G)} * data[item + 6]) * ${H} + head * ${G} + ${q % G}) * ${stateFloats(C) / 4};
    ${each(rounds, r => stored(r, q))}
    if (lane == 0) { states[at + ${S}] = vec4f(${of('m', q)}, ${of('l', q)}, 0.0, 0.0); }
  }`,
  )}
}`;
  const bound = source.buffers.filter(text =>
    `${source.begin}${body}`.includes(`${text.slice(0, text.indexOf(':'))}[`),
  );
  return {
    name: `attend ${source.name} by lanes ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads}${together ? ' together' : ''}`,
    params: ['table', 'items', 'four', ...source.params],
    buffers: ['data: array<u32>', 'queries: array<u32>', ...bound, 'write states: array<vec4f>'],
    size: LANES,
    body,
    enable: [...new Set([...(together ? ['subgroups'] : []), ...(keys.enable ?? []), ...(values.enable ?? [])])],
  };
}
