/**
 * Oaken's pages (codec/oaken/format.ts has the bytes) as integers. All values are taken for middle ones first: a code times
 * its token's step, and one of two shifts by whether it reaches the token's first code from 0 on. Then lanes walk the lists of
 * their tokens and add what outliers differ by: to the token's scores, or to the sums of dims, as integers in workgroup
 * memory, whose order does not matter.
 *
 *   keys     code and shift become one integer of 7 bits, so that one product serves both; of outliers, halves by a table of
 *            the queries' dims
 *   values   codes and the bits of shifts are two products, since weights have the steps in them; of outliers, two queries
 *            share an integer
 *
 * What lists take is waiting, so lanes shall wait for few loads and for one another little:
 *
 *   - A list is read a word, four entries, at a time, and the next word is on its way. Codes are read where they lie.
 *   - Where a list begins depends on the sizes of all before it. Most are nibbles, which lanes add up; the few long lists,
 *     which have their sizes in them, are followed one after the other.
 *   - A lane takes its longest list first, so that lists of like length are walked together.
 *   - What an outlier differs by is linear in its code: by token and kind, factor and constant lie ready in workgroup memory.
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import { BLOCK, MANY, STEPS } from '../oaken.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float } from '../text.ts';
import { type KeyPart, of, type Tokens, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { pairs } from './halves.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { type Lines, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

type Oaken = PageFragment & { kind: 'oaken' };
type Side = 'key' | 'value';

/** Pages of 128 tokens of two blocks each, whose lines can be read whole: a lane has the counts of four tokens in a word. */
function oakenOf(fragment: Fragment, order: 'rows' | 'columns', { headDim: D, pageTokens: P }: PageShape) {
  const { page, sharedBytes, blockBytes, codedDim } = fragment;
  if (page.kind !== 'oaken' || page.codes.order !== order || codedDim !== D || fragment.turn) return undefined;
  if (D !== 2 * BLOCK || P !== 4 * LANES) return undefined;
  if ([sharedBytes, blockBytes, page.codes.offset].some(n => n % 16 !== 0)) return undefined;
  if ([page.ranges, page.starts, page.counts].some(n => n % 4 !== 0)) return undefined;
  return page;
}

/** Vectors of `room`: a word for every list of a page, if all are long, and some more; later, words of kinds of outliers. */
const ROOM = 2 * LANES + 4;

/** The sum of a word's bytes. */
const bytesOf = (word: string) => `dot4U8Packed(${word}, 0x01010101)`;

/** What both sides share; `at` is the first vector of `room` that is theirs. */
function common(side: Side, { thresholds, ranges, starts, lists, counts }: Oaken, at: number): string {
  const [outerLow, innerLow, , outerHigh] = thresholds;
  const long = `room[${at} + n / 4][n % 4]`;
  const kind = (n: number, end: string, base: string) =>
    `room[${at + 8 * n} + lane / 4][lane % 4] = pack2x16float(vec2f(fma(${end}, ${float(1 / STEPS)}, -step), ${base}));`;
  return /* wgsl */ `
var<workgroup> ${side}_open: u32;
/** Words of token t: ends of the outer values, of the middle ones and of the inner. */
fn ${side}_ends(page: u32, t: u32) -> vec3u {
  let at = (page + ${ranges}) / 4 + 3 * t;
  return vec3u(pool[at], pool[at + 1], pool[at + 2]);
}
/** Step and lowest of middle values, and the first code that is not below 0. */
fn ${side}_middle(word: u32) -> vec3f {
  let ends = unpack2x16float(word);
  let step = (ends.y - ends.x) / ${STEPS}.0;
  var first = clamp(ceil(-ends.x / max(step, 1e-30)), 0.0, 16.0);
  if (first > 0 && fma(first - 1, step, ends.x) >= 0) { first -= 1; }
  if (first < 16 && fma(first, step, ends.x) < 0) { first += 1; }
  return vec3f(step, ends.x, first);
}
/** Where a head's lists begin; and word n of them, from the vector on that they begin in. */
fn ${side}_lists(page: u32, head: u32) -> u32 { return page + ${lists} + pool[(page + ${starts}) / 4 + head]; }
fn ${side}_word(lists: u32, n: u32) -> u32 { return pool[lists / 16 * 4 + n]; }
/** Asks for the lists, so that they are near when they are walked. No compiler leaves out a load that something depends on. */
fn ${side}_ask(lists: u32) {
  if (${side}_word(lists, ${LANES} * lane) == 0xffffffff) { room[${at} + lane / 4][lane % 4] = 0; }
}
/** Where the lists of a lane's four tokens begin; and the bytes of those of the first blocks and of the second, a byte each. */
struct ${side}_Sizes { before: u32, sizes: vec2u }
/**
 * A list of ${MANY} or more has its size in it, and where that is depends on all before it. So lanes write down where such lists
 * would be but for the sizes of others, and these are followed: by all lanes, but it is the first that counts.
 */
fn ${side}_outliers(lists: u32, block: u32) -> ${side}_Sizes {
  let word = pool[(block + ${counts}) / 4 + lane];
  let many = word & (word >> 1) & (word >> 2) & (word >> 3) & 0x11111111;
  let known = word & ~(many * 15);
  var sizes = vec2u(known & 0x0f0f0f0f, (known >> 4) & 0x0f0f0f0f);
  let sum = ${bytesOf('sizes.x')} + ${bytesOf('sizes.y')};
  let ahead = ahead_of(sum | (countOneBits(many) << 16));
  var before = lists % 16 + (ahead & 0xffff);
  var n = ahead >> 16;
  if (lane == ${LANES - 1}) { ${side}_open = n + countOneBits(many); }
  let open = workgroupUniformLoad(&${side}_open);
  if (open > 0) {
    for (var rest = many; rest != 0; rest &= rest - 1) {
      let lower = known & ((rest & (~rest + 1)) - 1);
      ${long} = before + ${bytesOf('lower & 0x0f0f0f0f')} + ${bytesOf('(lower >> 4) & 0x0f0f0f0f')};
      n++;
    }
    workgroupBarrier();
    var more = 0u;
    for (var n = 0u; n < open; n++) {
      let from_byte = ${long} + more;
      let size = 1 + ((${side}_word(lists, from_byte / 4) >> (from_byte % 4 * 8)) & 255);
      if (lane == 0) { ${long} = (more << 8) | size; }
      more += size;
    }
    if (lane == 0) { room[${at} + open / 4][open % 4] = more << 8; }
    workgroupBarrier();
    n = ahead >> 16;
    before += ${long} >> 8;
    for (var rest = many; rest != 0; rest &= rest - 1) {
      let bit = countOneBits((rest & (~rest + 1)) - 1);
      let size = (${long} & 255) << (bit / 8 * 8);
      sizes |= select(vec2u(size, 0), vec2u(0, size), (bit & 4) != 0);
      n++;
    }
    workgroupBarrier();
  }
  return ${side}_Sizes(before, sizes);
}
/** By kinds of a token's outliers, what they differ by from middle values of codes below the first: factor and constant. */
fn ${side}_kinds(ends: vec3u) {
  let middle = unpack2x16float(ends.y);
  let step = (middle.y - middle.x) / ${STEPS}.0;
  let low = middle.x + ${float(innerLow)};
  let outer = unpack2x16float(ends.x);
  let inner = unpack2x16float(ends.z);
  ${kind(0, 'inner.y', '-low')}
  ${kind(1, 'outer.y', `${float(outerHigh)} - low`)}
  ${kind(2, 'inner.x', '-low')}
  ${kind(3, 'outer.x', `${float(outerLow)} - low`)}
}`;
}

/** What a lane knows of the lists of its tokens. */
interface Own {
  /** Statements before the first is walked; others follow, with a barrier. */
  put: string;
  /** The tokens' numbers as they are taken: the lowest two bits of `ordered`. */
  order: string;
  /** Of token t, the lane's number j: where its lists `start`, and their `sizes`. */
  lists: string;
}

/**
 * Four neighbours, whose sizes a lane has itself. The longest go first, in the order of a network of five comparisons, by
 * numbers that have the sizes above.
 */
const ofNeighbours = (side: Side): Own => ({
  put: '',
  order: `
    let bytes = ${side}_sizes.sizes.x + ${side}_sizes.sizes.y;
    var ordered = vec4u(bytes & 255, (bytes >> 8) & 255, (bytes >> 16) & 255, bytes >> 24) * 4 + vec4u(0, 1, 2, 3);
    ordered = vec4u(max(ordered.xy, ordered.zw), min(ordered.xy, ordered.zw));
    ordered = vec4u(max(ordered.xz, ordered.yw), min(ordered.xz, ordered.yw)).xzyw;
    { let middle = ordered.yz; ordered.y = max(middle.x, middle.y); ordered.z = min(middle.x, middle.y); }`,
  lists: `
      let below = ${side}_sizes.sizes & vec2u((1u << (8 * j)) - 1);
      let start = ${side}_sizes.before + ${bytesOf('below.x')} + ${bytesOf('below.y')};
      let sizes = (${side}_sizes.sizes >> vec2u(8 * j)) & vec2u(255);`,
});

/** Every 32nd token, whose sizes other lanes write down in `lists_at`. */
const ofOthers = (side: Side): Own => ({
  put: `{ var start = ${side}_sizes.before;
    ${each(4, j => `{ let sizes = (${side}_sizes.sizes >> vec2u(${8 * j})) & vec2u(255); lists_at[4 * lane + ${j}] = start | (sizes.x << 16) | (sizes.y << 24); start += sizes.x + sizes.y; }`)} }`,
  order: 'var ordered = vec4u(0, 1, 2, 3);',
  lists: `
      let info = lists_at[t];
      let start = info & 0xffff;
      let sizes = vec2u((info >> 16) & 255, info >> 24);`,
});

/** Walks the lists of a lane's four tokens: `text` is for its token j. */
const eachToken = ({ order }: Own, text: string) => `
    ${order}
    for (var round = 0u; round < 4; round++) {
      let j = ordered.x % 4;
      ordered = ordered.yzwx;
      ${text}
    }`;

interface Outliers {
  f16: boolean;
  /** Where `room` has the kinds. */
  at: number;
  /** Between both shifts of middle values. */
  apart: number;
  /** The code of `entry`, in the `second` block or the first. */
  code: string;
}

/**
 * Does `text` for every outlier of a token: its `entry`, `second`, and twice what it `differs` by from its middle value. The token
 * has `ends`, its `first` code, and lists that `start` at a byte and have `sizes`; with these in them where they are long, and so
 * a long second list is walked on its own. Behind the last of a list some others may follow, and differ by 0.
 */
function walkLists(side: Side, { f16, at, apart, code }: Outliers, text: string): string {
  const { type, of: pairOf, all } = pairs(f16);
  const entry = (k: number) => `{
          let entry = taken >> ${8 * k};
          let second = next + ${k} >= second_from;
          let here = next + ${k} < until;
          let code = (${code}) & 15;
          let kind = ${pairOf(`room[${at} + ((entry >> 3) & 24) + lane / 4][lane % 4]`)};
          // 1024 and a code are a half whose lowest bits the code is.
          var differs = fma((${pairOf('code * 0x10001 + 0x64006400')} - ${all(1024)}), kind.xx, kind.yy) - ${pairOf(`select(0u, pack2x16float(vec2f(${float(apart)})), code >= first)`)};
          differs = select(${type}(), differs, here);
          ${text}
          }`;
  return `${side}_kinds(ends);
      {
      let long = sizes > vec2u(${MANY});
      let second_from = start + sizes.x;
      let end = second_from + sizes.y;
      var next = start + u32(long.x);
      var until = select(end, second_from, long.y);
      loop {
        let bits = next % 4 * 8;
        var lower = ${side}_word(lists, next / 4);
        while (next < until) {
          let upper = ${side}_word(lists, next / 4 + 1);
          let taken = (lower >> bits) | ((upper << 1) << (31 - bits));
          lower = upper;
          ${each(4, entry)}
          next += 4;
        }
        if (until == end) { break; }
        next = second_from + 1;
        until = end;
      } }`;
}

/** The dim of an entry. */
const DIM = `((entry & ${BLOCK - 1}) + select(0u, ${BLOCK}u, second))`;

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
  const { type, of: pairOf } = pairs(f16);
  const own = ofNeighbours('key');
  const code = `pool[(${at}) / 4 + (entry & 32) * 16 + select(0u, 1024u, second) + j * 128 + 4 * lane + ((entry >> 2) & 3)] >> (((entry << 3) & 24) | ((entry >> 2) & 4))`;
  const queryDim = (Q: number, i: string, v: number) => `query_dims[${i} * ${vectors(Q)} + ${v}]`;
  return {
    name: `oaken ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    loaded: D / 4 + D / 2 + ROOM,
    enable: f16 ? ['f16'] : [],
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
    loaded: weighed.loaded + D / 2 + 5 * LANES + ROOM,
    enable: f16 ? ['f16'] : [],
    // Weights are there while lists are followed and walked.
    room: Q => weighed.room(Q) + ROOM,
    strided: true,
    text: Q => `${common('value', page, weighed.room(Q))}
${weighed.declare(Q)}
var<workgroup> firsts: array<u32, ${P / 4}>;
var<workgroup> lists_at: array<u32, ${P}>;
var<workgroup> apart: array<atomic<i32>, ${sharedSums(Q, D).size}>;
fn most4(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
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
    let largest_of = largest(vec4f(most4(steps), most4(reach), 0.0, 0.0));
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
