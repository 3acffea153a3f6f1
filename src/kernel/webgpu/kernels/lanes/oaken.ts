/**
 * Oaken's pages (codec/oaken/format.ts has the bytes) as integers. All values are taken for middle ones first: a code times
 * its token's step, and one of two shifts by whether it reaches the token's first code from 0 on. Then lanes walk the lists of
 * their tokens (lists.ts) and add what outliers differ by: to the token's scores, or to the sums of dims, as integers in workgroup
 * memory, whose order does not matter.
 *
 *   keys     code and shift become one integer of 7 bits, so that one product serves both; of outliers, halves by a table of
 *            the queries' dims
 *   values   codes and the bits of shifts are two products, since weights have the steps in them; of outliers, two queries
 *            share an integer
 */

import type { Fragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import { BLOCK, STEPS } from '../oaken.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float, most4 } from '../text.ts';
import { type KeyPart, of, type Tokens, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { pairs } from './halves.ts';
import { common, DIM, eachToken, ofNeighbours, ofOthers, ROOM, walkLists } from './lists.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { type Lines, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

/** Pages of 128 tokens of two blocks each, whose lines can be read whole: a lane has the counts of four tokens in a word. */
function oakenOf(fragment: Fragment, order: 'rows' | 'columns', { headDim: D, pageTokens: P }: PageShape) {
  const { page, sharedBytes, blockBytes, codedDim } = fragment;
  if (page.kind !== 'oaken' || page.codes.order !== order || codedDim !== D || fragment.turn) return undefined;
  if (D !== 2 * BLOCK || P !== 4 * LANES) return undefined;
  if ([sharedBytes, blockBytes, page.codes.offset].some(n => n % 16 !== 0)) return undefined;
  if ([page.ranges, page.starts, page.counts].some(n => n % 4 !== 0)) return undefined;
  return page;
}

/** The lines of a lane. */
const STRIPS = stripsOf(4, 4 * LANES, 4 * LANES)!;
const linesOf = (id: string, at: string): Lines => ({
  strips: STRIPS,
  id,
  at,
  places: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
});

/** Queries are a thousandth of what they are where halves are summed, so that these have room. */
const LESS = 1024;

/**
 * A middle value is a code times a step and, from the first code that is not below 0 on, a shift. As an integer up to 127: what a
 * code counts, what the shift does, the unit of both, and half of what the shift then lacks.
 */
const keyLine = (apart: number) => /* wgsl */ `
fn key_line(step: f32) -> vec4f {
  let ratio = min(${float(apart)} / max(step, 1e-30), 1e6);
  let most = floor(127.0 / (15.0 + ratio));
  // Of the largest three, that by which the shift is nearest to an integer.
  let some = max(vec3f(most) - vec3f(0.0, 1.0, 2.0), vec3f(min(most, 1.0)));
  let off = abs(fract(some * ratio + 0.5) - 0.5) / max(some, vec3f(1.0));
  let by = select(select(some.z, some.y, off.y < off.z), some.x, off.x <= min(off.y, off.z));
  let unit = select(${float(apart / 127)}, step / max(by, 1.0), by > 0);
  let more = min(round(${float(apart)} / max(unit, 1e-30)), 127.0 - 15.0 * by);
  return vec4f(by, more, unit, 0.5 * fma(-more, unit, ${float(apart)}));
}`;

export function oakenKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const page = oakenOf(fragment, 'rows', shape);
  if (!page) return undefined;
  const { headDim: D, f16 = false } = shape;
  const [, innerLow, innerHigh] = page.thresholds;
  const apart = innerHigh - innerLow;
  const at = `keyBlock + ${page.codes.offset}`;
  const lines = linesOf('k', at);
  const { type, enable, of: pairOf } = pairs(f16);
  const own = ofNeighbours('key');
  const code = `pool[(${at}) / 4 + (entry & 32) * 16 + select(0u, 1024u, second) + j * 128 + 4 * lane + ((entry >> 2) & 3)] >> (((entry << 3) & 24) | ((entry >> 2) & 4))`;
  const queryDim = (Q: number, i: string, v: number) => `query_dims[${i} * ${vectors(Q)} + ${v}]`;
  return {
    name: `oaken ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    enable,
    room: () => ROOM,
    text: Q => `${common('key', page, 0)}
${queryText(Q, D)}
/** Of every dim, numbers of four queries as halves. */
var<workgroup> query_dims: array<vec2u, ${D * vectors(Q)}>;
${keyLine(apart)}`,
    load: Q => `${takeQueries(Q, D)}
  workgroupBarrier();
  for (var i = lane; i < ${D}; i += ${LANES}) {
    ${each(vectors(Q), v => `{ let four = vec4f(bitcast<vec4i>(${queryAt(Q, 'i / 4', v)} << vec4u(24 - i % 4 * 8)) >> vec4u(24)) * ${float(1 / LESS)}; ${queryDim(Q, 'i', v)} = vec2u(pack2x16float(four.xy), pack2x16float(four.zw)); }`)}
  }`,
    begin: () => `
    workgroupBarrier();
    let lists = key_lists(keyPage, head); key_ask(lists); let key_sizes = key_outliers(lists, keyBlock);`,
    sums: Q => `
    ${each(4, j => `let ends${j} = key_ends(keyPage, 4 * lane + ${j}); let middle${j} = key_middle(ends${j}.y); let first${j} = u32(middle${j}.z); let line${j} = key_line(middle${j}.x); ${each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' ')}`)}
    let all_firsts = first0 | (first1 << 8) | (first2 << 16) | (first3 << 24);
    ${each(4, j => `let reach${j} = (16 - first${j}) * 0x01010101u; let by${j} = u32(line${j}.x); let shifted${j} = u32(line${j}.y);`, ' ')}
    ${walk(
      lines,
      (n, words) =>
        `${each(vectors(Q), v => `let q${v} = ${queryAt(Q, n, v)};`, ' ')} ${words.map(({ codes }, j) => `{ let c = ${codes}; let b = c * by${j} + (((c + reach${j}) >> 4) & 0x01010101) * shifted${j}; ${each(Q, q => `${of(`d${j}_`, q)} += dot4I8Packed(b, ${of('q', q)});`, ' ')} }`).join(' ')}`,
    )}
    ${each(vectors(Q), v => each(4, j => `var all${j}_${v} = fma(vec4f(d${j}_${v}), vec4f(line${j}.z), sums${v} * (middle${j}.y + line${j}.w + ${float(innerLow)}));`, ' '))}
    workgroupBarrier();
    ${eachToken(
      own,
      `${own.lists}
      ${each(2 * vectors(Q), v => `var more${v} = ${type}();`, ' ')}
      let ends = key_ends(keyPage, 4 * lane + j);
      let first = (all_firsts >> (8 * j)) & 255;
      ${walkLists(
        'key',
        { f16, at: 0, apart, code },
        each(
          vectors(Q),
          v =>
            `{ let by = ${queryDim(Q, DIM, v)}; more${2 * v} = fma(${pairOf('by.x')}, differs, more${2 * v}); more${2 * v + 1} = fma(${pairOf('by.y')}, differs, more${2 * v + 1}); }`,
          ' ',
        ),
      )}
      ${each(vectors(Q), v => `{ let more = vec4f(vec2f(more${2 * v}), vec2f(more${2 * v + 1})) * ${LESS}.0; ${each(4, j => `all${j}_${v} += select(vec4f(0.0), more, j == ${j});`, ' ')} }`)}`,
    )}
    ${each(Q, q => `let dots0_${q} = vec4f(${each(4, j => of(`all${j}_`, q), ', ')});`)}`,
    score: (q, _, plus) => withPlus(`dots0_${q} * vec4f(${of('scale', q)})`, plus),
    constant: v => `constants${v}`,
  };
}

/**
 * Sums of what outliers differ by, under weights: `apart` has an integer of 16 bits for every dim and query, those of two queries
 * in a word. Added as one, the lower takes from the upper or gives to it what `sumOf` undoes.
 */
function sharedSums(Q: number, D: number) {
  const words = Math.ceil(Q / 2);
  /** The nearest integer, in the lowest bits of 1.5 x 2^23 and it. */
  const nearest = (q: number) => `bitcast<i32>(fma(${of('weights', q)}, by, 12582912.0))`;
  const both = (n: number) =>
    `${nearest(2 * n)} - 0x4b400000${2 * n + 1 < Q ? ` + (${nearest(2 * n + 1)} << 16)` : ''}`;
  const lower = (word: string) => `((${word} << 16) >> 16)`;
  return {
    size: words * D,
    // Where nobody asks what was there before, NVIDIA's compiler gathers what lanes add to one place, which takes longer.
    add: `let by = f32(differs.x); let i = ${DIM};
          ${each(words, n => `used |= atomicAdd(&apart[${n * D} + i], ${both(n)});`, ' ')}`,
    /** `pairJ_N`: words of dim lane + 32 J. */
    load: (j: number) =>
      each(words, n => `let pair${j}_${n} = atomicLoad(&apart[${n * D} + lane + ${LANES * j}]);`, ' '),
    sumOf: (j: number, q: number) => {
      const word = `pair${j}_${q >> 1}`;
      return q % 2 === 0 ? `f32(${lower(word)})` : `f32((${word} - ${lower(word)}) >> 16)`;
    },
  };
}

/** Bytes of 128 where codes reach the first one that is not below 0. */
const reached = (codes: string, first: string) => `((${codes} | 0x80808080u) - ${first}) & 0x80808080u`;

/** The first codes of a lane's four neighbours, if not those of the tokens it has `worth` of. */
const firstsOf = ({ strided }: Tokens) =>
  strided
    ? `{ ${each(4, j => `let first${j} = value_middle(value_ends(valuePage, 4 * lane + ${j}).y).z;`)} firsts[lane] = pack4xU8(vec4u(${each(4, j => `u32(first${j})`, ', ')})); }`
    : `firsts[lane] = pack4xU8(vec4u(${each(4, j => `u32(worth${j}.z)`, ', ')}));`;

export function oakenValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const page = oakenOf(fragment, 'columns', shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P, f16 = false } = shape;
  const [outerLow, innerLow, innerHigh, outerHigh] = page.thresholds;
  const at = `valueBlock + ${page.codes.offset}`;
  const apart = innerHigh - innerLow;
  const mostOuter = Math.max(-outerLow, outerHigh);
  const mostInner = Math.max(-innerLow, innerHigh);
  // Weights times steps for codes, and as they are for the bits.
  const weighed = weighedBytes(P, 2);
  const middle = STEPS / 2;
  const lines = linesOf('c', at);
  const code = `pool[(${at}) / 4 + (t >> 5) * ${4 * D} + ${DIM} * 4 + ((t >> 2) & 3)] >> shift`;
  return {
    name: `oaken ${name}`,
    dim: D,
    enable: pairs(f16).enable,
    // Weights are there while lists are followed and walked.
    room: Q => weighed.room(Q) + ROOM,
    strided: true,
    text: Q => `${common('value', page, weighed.room(Q))}
${weighed.declare(Q)}
var<workgroup> firsts: array<u32, ${P / 4}>;
var<workgroup> lists_at: array<u32, ${P}>;
var<workgroup> apart: array<atomic<i32>, ${sharedSums(Q, D).size}>;
fn most2(word: u32) -> f32 { let x = abs(unpack2x16float(word)); return max(x.x, x.y); }`,
    declare: Q => each(vectors(Q), v => `var more_${v} = vec4f(0.0);`),
    sum: (Q, tokens) => {
      const own = tokens.strided ? ofOthers('value') : ofNeighbours('value');
      const shared = sharedSums(Q, D);
      return `{
    workgroupBarrier();
    let lists = value_lists(valuePage, head);
    value_ask(lists);
    let value_sizes = value_outliers(lists, valueBlock);
    for (var n = lane; n < ${shared.size}; n += ${LANES}) { atomicStore(&apart[n], 0); }
    ${own.put}
    ${each(4, j => `let ends${j} = value_ends(valuePage, ${tokens.at(0, j)}); let worth${j} = value_middle(ends${j}.y);`)}
    ${firstsOf(tokens)}
    let steps = vec4f(${each(4, j => `worth${j}.x`, ', ')});
    let lows = vec4f(${each(4, j => `fma(${float(middle)}, worth${j}.x, worth${j}.y)`, ', ')}) + ${float((innerLow + innerHigh) / 2)};
    // An outlier and the middle value that it is not are no further apart.
    let reach = vec4f(${each(4, j => `max(most2(ends${j}.x) + ${float(mostOuter)}, most2(ends${j}.z)) + most2(ends${j}.y)`, ', ')}) + ${float(mostInner)};
    let largest_of = largest(vec4f(${most4('steps')}, ${most4('reach')}, 0.0, 0.0));
    let most_step = max(largest_of.x, 1e-30);
    let shares = steps * (1.0 / most_step);
    // Sums of outliers have 15 bits and a sign, and every token may be rounded up.
    ${each(vectors(Q), v => `let unit${v} = ${float(2 ** 15 - 1 - P)} / (largest_of.y * max(all_of(sum${v}), vec4f(1e-30)));`, ' ')}
    ${each(vectors(Q), v => `var added${v} = vec4f(0.0);`, ' ')}
    ${weighed.put(
      Q,
      tokens,
      (q, c, s) => (s === 0 ? `(w${c}_${q} * shares)` : `w${c}_${q}`),
      (v, _, s) =>
        `added${v} -= ${sumOfBytes} * ${s === 0 ? `(most_step * ${float(middle / 255)})` : float(apart / 2 / 255)};`,
    )}
    ${each(vectors(Q), v => `added${v} += vec4f${vectorOf(Q, v, q => `dot(w0_${q}, lows)`)};`)}
    ${each(vectors(Q), v => `more_${v} = fma(more_${v}, kept${v}, added${v} * whole${v});`, ' ')}
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0); var b${j}_${v} = vec4u(0);`, ' '))}
    ${walk(
      lines,
      (n, words) =>
        `let first = firsts[${n}]; ${each(vectors(Q), v => `let x${v} = ${weighed.at(Q, n, v)}; let y${v} = ${weighed.at(Q, `${P / 4} + ${n}`, v)};`, ' ')} ${words.map(({ codes }, j) => `{ let c = ${codes}; let b = ${reached('c', 'first')}; ${each(Q, q => `${of(`d${j}_`, q)} += dot4U8Packed(c, ${of('x', q)}); ${of(`b${j}_`, q)} += dot4U8Packed(b, ${of('y', q)});`, ' ')} }`).join(' ')}`,
    )}
    workgroupBarrier();
    ${each(Q, q => `let weight${q} = w0_${q} * ${of('unit', q)};`)}
    var used = 0;
    ${eachToken(
      own,
      `let t = ${tokens.strided ? `lane + ${LANES} * j` : '4 * lane + j'};
      let ends = value_ends(valuePage, t);
      let first = (firsts[t / 4] >> (t % 4 * 8)) & 255;
      ${each(vectors(Q), v => `let weights${v} = ${['0', '1', '2'].reduceRight((rest, j) => `select(${rest}, vec4f${vectorOf(Q, v, q => `weight${q}[${j}]`)}, j == ${j})`, `vec4f${vectorOf(Q, v, q => `weight${q}[3]`)}`)};`)}
      ${own.lists}
      let shift = (t & 3) * 8 + (t & 16) / 4;
      ${walkLists('value', { f16, at: weighed.room(Q), apart, code }, shared.add)}`,
    )}
    // Never so, which no compiler knows.
    if ((used & i32(p.four >> 8)) != 0) { o0_0_0 += vec4f(1.0); }
    workgroupBarrier();
    ${each(
      4,
      j => `${shared.load(j)}
    ${each(vectors(Q), v => `{ let outlying = vec4f${vectorOf(Q, v, q => shared.sumOf(j, q))} / unit${v}; o0_${j}_${v} = fma(fma(vec4f(d${j}_${v}), vec4f(most_step * ${float(1 / 255)}), fma(vec4f(b${j}_${v}), vec4f(${float(apart / 255 / 128)}), outlying)), whole${v}, o0_${j}_${v} * kept${v}); }`)}`,
    )} }`;
    },
    result: Q => `
  ${each(vectors(Q), v => `{ let all = all_of(more_${v}); ${each(4, j => `o0_${j}_${v} += all;`, ' ')} }`)}`,
  };
}
