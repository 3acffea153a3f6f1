/**
 * Oaken's lists of outliers, as lanes walk them. What lists take is waiting, so lanes shall wait for few loads and for one
 * another little:
 *
 *   - A list is read a word, four entries, at a time, and the next word is on its way. Codes are read where they lie.
 *   - Where a list begins depends on the sizes of all before it. Most are nibbles, which lanes add up; the few long lists,
 *     which have their sizes in them, are followed one after the other.
 *   - A lane takes its longest list first, so that lists of like length are walked together.
 *   - What an outlier differs by is linear in its code: by token and kind, factor and constant lie ready in workgroup memory.
 */

import { BLOCK, MANY, type Oaken, STEPS } from '../oaken.ts';
import { each, float, sumOfFour } from '../text.ts';
import { pairs } from './halves.ts';
import { LANES } from './talk.ts';

type Side = 'key' | 'value';

/** Vectors of `room`: a word for every list of a page, if all are long, and some more; later, words of kinds of outliers. */
export const ROOM = 2 * LANES + 4;

/** What both sides share; `at` is the first vector of `room` that is theirs. */
export function common(side: Side, { thresholds, ranges, starts, lists, counts }: Oaken, at: number): string {
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
 * would be but for the sizes of others, and the first lane follows these.
 */
fn ${side}_outliers(lists: u32, block: u32) -> ${side}_Sizes {
  let word = pool[(block + ${counts}) / 4 + lane];
  let many = word & (word >> 1) & (word >> 2) & (word >> 3) & 0x11111111;
  let known = word & ~(many * 15);
  var sizes = vec2u(known & 0x0f0f0f0f, (known >> 4) & 0x0f0f0f0f);
  let sum = ${sumOfFour('sizes.x')} + ${sumOfFour('sizes.y')};
  let ahead = ahead_of(sum | (countOneBits(many) << 16));
  var before = lists % 16 + (ahead & 0xffff);
  var n = ahead >> 16;
  if (lane == ${LANES - 1}) { ${side}_open = n + countOneBits(many); }
  let open = workgroupUniformLoad(&${side}_open);
  if (open > 0) {
    for (var rest = many; rest != 0; rest &= rest - 1) {
      let lower = known & ((rest & (~rest + 1)) - 1);
      ${long} = before + ${sumOfFour('lower & 0x0f0f0f0f')} + ${sumOfFour('(lower >> 4) & 0x0f0f0f0f')};
      n++;
    }
    workgroupBarrier();
    if (lane == 0) {
      var more = 0u;
      for (var n = 0u; n < open; n++) {
        let from_byte = ${long} + more;
        let size = 1 + ((${side}_word(lists, from_byte / 4) >> (from_byte % 4 * 8)) & 255);
        ${long} = (more << 8) | size;
        more += size;
      }
      room[${at} + open / 4][open % 4] = more << 8;
    }
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
export interface Own {
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
export const ofNeighbours = (side: Side): Own => ({
  put: '',
  order: `
    let bytes = ${side}_sizes.sizes.x + ${side}_sizes.sizes.y;
    var ordered = vec4u(bytes & 255, (bytes >> 8) & 255, (bytes >> 16) & 255, bytes >> 24) * 4 + vec4u(0, 1, 2, 3);
    ordered = vec4u(max(ordered.xy, ordered.zw), min(ordered.xy, ordered.zw));
    ordered = vec4u(max(ordered.xz, ordered.yw), min(ordered.xz, ordered.yw)).xzyw;
    { let middle = ordered.yz; ordered.y = max(middle.x, middle.y); ordered.z = min(middle.x, middle.y); }`,
  lists: `
      let below = ${side}_sizes.sizes & vec2u((1u << (8 * j)) - 1);
      let start = ${side}_sizes.before + ${sumOfFour('below.x')} + ${sumOfFour('below.y')};
      let sizes = (${side}_sizes.sizes >> vec2u(8 * j)) & vec2u(255);`,
});

/** Every 32nd token, whose sizes other lanes write down in `lists_at`. */
export const ofOthers = (side: Side): Own => ({
  put: `{ var start = ${side}_sizes.before;
    ${each(4, j => `{ let sizes = (${side}_sizes.sizes >> vec2u(${8 * j})) & vec2u(255); lists_at[4 * lane + ${j}] = start | (sizes.x << 16) | (sizes.y << 24); start += sizes.x + sizes.y; }`)} }`,
  order: 'var ordered = vec4u(0, 1, 2, 3);',
  lists: `
      let info = lists_at[t];
      let start = info & 0xffff;
      let sizes = vec2u((info >> 16) & 255, info >> 24);`,
});

/** Walks the lists of a lane's four tokens: `text` is for its token j. */
export const eachToken = ({ order }: Own, text: string) => `
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
export function walkLists(side: Side, { f16, at, apart, code }: Outliers, text: string): string {
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
export const DIM = `((entry & ${BLOCK - 1}) + select(0u, ${BLOCK}u, second))`;
