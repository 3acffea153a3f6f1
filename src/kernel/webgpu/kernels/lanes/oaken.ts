/**
 * Oaken's pages (codec/oaken/format.ts has the bytes) as integers. All values are taken for middle ones first: a code times
 * its token's step, and one of two shifts by whether it reaches the token's first code from 0 on, so that codes and these
 * bits are what is multiplied. Then lanes walk the lists of their tokens and add what outliers differ by: to the token's
 * scores, or to the sums of dims, as integers in workgroup memory, whose order does not matter.
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import { BLOCK, MANY, STEPS } from '../oaken.ts';
import type { PageShape } from '../shape.ts';
import { placeOf, stripsOf } from '../strips.ts';
import { each, float } from '../text.ts';
import { type KeyPart, of, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { type Lines, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

type Oaken = PageFragment & { kind: 'oaken' };

/** Pages of 128 tokens of two blocks each, whose lines can be read whole: a lane has the counts of four tokens in a word. */
function oakenOf(fragment: Fragment, order: 'rows' | 'columns', { headDim: D, pageTokens: P }: PageShape) {
  const { page, sharedBytes, blockBytes, codedDim } = fragment;
  if (page.kind !== 'oaken' || page.codes.order !== order || codedDim !== D || fragment.turn) return undefined;
  if (D !== 2 * BLOCK || P !== 4 * LANES) return undefined;
  if ([sharedBytes, blockBytes, page.codes.offset].some(n => n % 16 !== 0)) return undefined;
  if ([page.ranges, page.starts, page.counts].some(n => n % 4 !== 0)) return undefined;
  return page;
}

/** What both sides share. `SIDE_outliers` finds out where the list of each token begins and its two sizes. */
function common(side: 'key' | 'value', { thresholds, ranges, starts, lists, counts }: Oaken): string {
  const [outerLow, innerLow, innerHigh, outerHigh] = thresholds.map(float);
  return /* wgsl */ `
var<workgroup> ${side}_sizes: array<vec4u, ${LANES / 4}>;
var<workgroup> ${side}_lists_at: array<u32, ${4 * LANES}>;
var<workgroup> ${side}_open: u32;
/** Of token t: step and lowest of its middle values, the first code that is not below 0, and the ends of its outliers. */
struct ${side}_Token { step: f32, low: f32, first: f32, outer: vec2f, inner: vec2f }
fn ${side}_token(page: u32, t: u32) -> ${side}_Token {
  let at = (page + ${ranges}) / 4 + 3 * t;
  let middle = unpack2x16float(pool[at + 1]);
  let step = (middle.y - middle.x) / ${STEPS}.0;
  var first = clamp(ceil(-middle.x / max(step, 1e-30)), 0.0, 16.0);
  if (first > 0 && fma(first - 1, step, middle.x) >= 0) { first -= 1; }
  if (first < 16 && fma(first, step, middle.x) < 0) { first += 1; }
  return ${side}_Token(step, middle.x, first, unpack2x16float(pool[at]) / ${STEPS}.0, unpack2x16float(pool[at + 2]) / ${STEPS}.0);
}
/** What an outlier differs by from the middle value of its code. */
fn ${side}_differs(token: ${side}_Token, entry: u32, code: f32) -> f32 {
  let outer = (entry & 64) != 0;
  let negative = (entry & 128) != 0;
  let ends = select(token.inner, token.outer, outer);
  let value = fma(code, select(ends.y, ends.x, negative), select(0.0, select(${outerHigh}, ${outerLow}, negative), outer));
  return value - (fma(code, token.step, token.low) + select(${innerLow}, ${innerHigh}, code >= token.first));
}
fn ${side}_lists(page: u32, head: u32) -> u32 { return page + ${lists} + pool[(page + ${starts}) / 4 + head]; }
/** Sizes of lists are bytes: of the first blocks of four tokens, and of the second. A list of ${MANY} or more has its size in it. */
fn ${side}_outliers(lists: u32, block: u32) {
  let word = pool[(block + ${counts}) / 4 + lane];
  let many = word & (word >> 1) & (word >> 2) & (word >> 3) & 0x11111111;
  var sizes = vec2u(word & 0x0f0f0f0f, (word >> 4) & 0x0f0f0f0f);
  var open = vec2u(many & 0x01010101, (many >> 4) & 0x01010101);
  sizes &= ~(open * 15);
  var before = 0u;
  for (var turn = 0u; turn <= ${4 * LANES * 2}; turn++) {
    let own = dot4U8Packed(sizes.x, 0x01010101) + dot4U8Packed(sizes.y, 0x01010101);
    workgroupBarrier();
    ${side}_sizes[lane / 4][lane % 4] = (own << 1) | select(0u, 1u, any(open != vec2u(0)));
    workgroupBarrier();
    before = 0;
    var first = ${LANES}u;
    for (var n = 0u; n < ${LANES / 4}; n++) {
      let four = ${side}_sizes[n];
      ${each(4, k => `if (4 * n + ${k} < lane) { before += four[${k}] >> 1; } if ((four[${k}] & 1) == 1) { first = min(first, 4 * n + ${k}); }`)}
    }
    if (lane == 0) { ${side}_open = first; }
    if (workgroupUniformLoad(&${side}_open) == ${LANES}) { break; }
    if (lane == first) {
      let both = vec2u(firstTrailingBit(open.x), firstTrailingBit(open.y));
      let second = both.y < both.x;
      let bit = min(both.x, both.y);
      let below = vec2u((1u << bit) - 1);
      let lower = sizes & below;
      let at = lists + before + dot4U8Packed(lower.x, 0x01010101) + dot4U8Packed(lower.y, 0x01010101) + select(0u, (sizes.x >> bit) & 255, second);
      let size = (1 + byte(at)) << bit;
      if (second) { sizes.y |= size; open.y &= ~(1u << bit); } else { sizes.x |= size; open.x &= ~(1u << bit); }
    }
  }
  for (var j = 0u; j < 4; j++) {
    let pair = (sizes >> vec2u(8 * j)) & vec2u(255);
    ${side}_lists_at[4 * lane + j] = before | (pair.x << 16) | (pair.y << 24);
    before += pair.x + pair.y;
  }
  workgroupBarrier();
}`;
}

/** Does `text` for every outlier of token t: its dim `i` and what it `differs` by. `code` is the code of (t, i). */
const walkLists = (side: 'key' | 'value', code: string, text: string) => `
      let token = ${side}_token(${side}Page, t);
      let info = ${side}_lists_at[t];
      let sizes = vec2u((info >> 16) & 255, info >> 24);
      let long = vec2u(sizes > vec2u(${MANY}));
      let counts = sizes - long;
      let first_entry = lists + (info & 0xffff) + long.x;
      for (var n = 0u; n < counts.x + counts.y; n++) {
        let second = n >= counts.x;
        let entry = byte(first_entry + n + select(0u, long.y, second));
        let i = (entry & 63) + select(0u, 64u, second);
        let differs = ${side}_differs(token, entry, f32(${code}));
        ${text}
      }`;

/** The lines of a lane, and code `at` of the line at a place. */
const STRIPS = stripsOf(4, 4 * LANES, 4 * LANES)!;
const linesOf = (id: string, at: string): Lines => ({
  strips: STRIPS,
  id,
  at,
  places: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
});
const codeAt = (block: string, place: string, at: string) =>
  `(byte(${block} + ((${at}) / 32 * ${4 * LANES} + ${place}) * 16 + (${at}) % 16) >> ((${at}) / 16 % 2 * 4)) & 15`;

/** Bytes of 128 where codes reach the first one that is not below 0. */
const reached = (codes: string, first: string) => `((${codes} | 0x80808080u) - ${first}) & 0x80808080u`;

export function oakenKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const page = oakenOf(fragment, 'rows', shape);
  if (!page) return undefined;
  const { headDim: D } = shape;
  const [, innerLow, innerHigh] = page.thresholds;
  const at = `keyBlock + ${page.codes.offset}`;
  const lines = linesOf('k', at);
  return {
    name: `oaken ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    loaded: D / 4 + LANES + 4 * LANES,
    text: Q => `${common('key', page)}\n${queryText(Q, D)}`,
    load: Q => takeQueries(Q, D),
    begin: () => 'let lists = key_lists(keyPage, head); key_outliers(lists, keyBlock);',
    sums: Q => `
    ${each(4, j => `let token${j} = key_token(keyPage, 4 * lane + ${j}); let first${j} = u32(token${j}.first) * 0x01010101u; ${each(vectors(Q), v => `var d${j}_${v} = vec4i(0); var b${j}_${v} = vec4i(0);`, ' ')}`)}
    ${walk(
      lines,
      (n, words) =>
        `${each(vectors(Q), v => `let q${v} = ${queryAt(Q, n, v)};`, ' ')} ${words.map(({ codes }, j) => `{ let c = ${codes}; let b = ${reached('c', `first${j}`)}; ${each(Q, q => `${of(`d${j}_`, q)} += dot4I8Packed(c, ${of('q', q)}); ${of(`b${j}_`, q)} += dot4I8Packed(b, ${of('q', q)});`, ' ')} }`).join(' ')}`,
    )}
    ${each(vectors(Q), v => each(4, j => `var all${j}_${v} = fma(vec4f(d${j}_${v}), vec4f(token${j}.step), fma(vec4f(b${j}_${v}), vec4f(${float(-(innerHigh - innerLow) / 128)}), sums${v} * (token${j}.low + ${float(innerLow)})));`, ' '))}
    for (var j = 0u; j < 4; j++) {
      let t = 4 * lane + j;
      ${each(vectors(Q), v => `var more${v} = vec4f(0.0);`, ' ')}
      ${walkLists(
        'key',
        codeAt(at, `(${placeOf('t', 4 * LANES)})`, 'i'),
        `let shift = 24 - 8 * (i % 4); let n4 = i / 4;
        ${each(vectors(Q), v => `more${v} = fma(vec4f(bitcast<vec4i>(${queryAt(Q, 'n4', v)} << vec4u(shift)) >> vec4u(24)), vec4f(differs), more${v});`, ' ')}`,
      )}
      ${each(vectors(Q), v => each(4, j => `all${j}_${v} += select(vec4f(0.0), more${v}, j == ${j});`, ' '))}
    }
    ${each(Q, q => `let dots0_${q} = vec4f(${each(4, j => of(`all${j}_`, q), ', ')});`)}`,
    score: (q, _, plus) => withPlus(`dots0_${q} * vec4f(${of('scale', q)})`, plus),
    constant: v => `constants${v}`,
  };
}

export function oakenValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const page = oakenOf(fragment, 'columns', shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const [outerLow, innerLow, innerHigh, outerHigh] = page.thresholds;
  const at = `valueBlock + ${page.codes.offset}`;
  const apart = innerHigh - innerLow;
  const most = Math.max(...[outerLow, innerLow, innerHigh, outerHigh].map(Math.abs));
  // Weights times steps for codes, and as they are for the bits.
  const weighed = weighedBytes(P, 2);
  const middle = STEPS / 2;
  const lines = linesOf('c', at);
  return {
    name: `oaken ${name}`,
    dim: D,
    loaded: weighed.loaded + D + LANES + 4 * LANES,
    room: weighed.room,
    strided: true,
    text: Q => `${common('value', page)}
${weighed.declare(Q)}
var<workgroup> firsts: array<u32, ${P / 4}>;
var<workgroup> apart: array<atomic<i32>, ${Q * D}>;
fn most4(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
fn most2(x: vec2f) -> f32 { return max(abs(x.x), abs(x.y)); }`,
    declare: Q => each(vectors(Q), v => `var more_${v} = vec4f(0.0);`),
    sum: (Q, tokens) => `{
    let value_start = value_lists(valuePage, head);
    value_outliers(value_start, valueBlock);
    for (var n = lane; n < ${Q * D}; n += ${LANES}) { atomicStore(&apart[n], 0); }
    ${each(4, j => `let worth${j} = value_token(valuePage, ${tokens.at(0, j)});`)}
    { ${each(4, j => `let first${j} = value_token(valuePage, 4 * lane + ${j}).first;`)} firsts[lane] = pack4xU8(vec4u(${each(4, j => `u32(first${j})`, ', ')})); }
    let steps = vec4f(${each(4, j => `worth${j}.step`, ', ')});
    let lows = vec4f(${each(4, j => `fma(${float(middle)}, worth${j}.step, worth${j}.low)`, ', ')}) + ${float((innerLow + innerHigh) / 2)};
    // An outlier and the middle value that it is not are no further apart.
    let reach = vec4f(${each(4, j => `max(most2(worth${j}.outer), most2(worth${j}.inner)) * ${STEPS}.0 + abs(worth${j}.low) + ${STEPS}.0 * worth${j}.step`, ', ')}) + ${float(2 * most)};
    let largest_of = largest(vec4f(most4(steps), most4(reach), 0.0, 0.0));
    let most_step = max(largest_of.x, 1e-30);
    let shares = steps * (1.0 / most_step);
    let unit = ${float(2 ** 30 / P)} / largest_of.y;
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
    { let lists = value_start;
    ${each(Q, q => `let weight${q} = w0_${q} * unit;`)}
    for (var j = 0u; j < 4; j++) {
      let t = ${tokens.strided ? `lane + ${LANES} * j` : '4 * lane + j'};
      ${each(vectors(Q), v => `let weights${v} = ${['0', '1', '2'].reduceRight((rest, j) => `select(${rest}, vec4f${vectorOf(Q, v, q => `weight${q}[${j}]`)}, j == ${j})`, `vec4f${vectorOf(Q, v, q => `weight${q}[3]`)}`)};`)}
      ${walkLists(
        'value',
        codeAt(at, 'i', 't'),
        each(Q, q => `atomicAdd(&apart[${q * D} + i], i32(round(${of('weights', q)} * differs)));`, ' '),
      )}
    } }
    workgroupBarrier();
    ${each(4, j => each(vectors(Q), v => `{ let outlying = vec4f(vec4i${vectorOf(Q, v, q => `atomicLoad(&apart[${q * D} + lane + ${LANES * j}])`)}) / unit; o0_${j}_${v} = fma(fma(vec4f(d${j}_${v}), vec4f(most_step * ${float(1 / 255)}), fma(vec4f(b${j}_${v}), vec4f(${float(apart / 255 / 128)}), outlying)), whole${v}, o0_${j}_${v} * kept${v}); }`))}
    workgroupBarrier(); }`,
    result: Q => `
  ${each(vectors(Q), v => `{ let all = all_of(more_${v}); ${each(4, j => `o0_${j}_${v} += all;`, ' ')} }`)}`,
  };
}
