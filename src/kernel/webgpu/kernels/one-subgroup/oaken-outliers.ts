/**
 * Oaken's outlier lists. The cost is latency, so lanes wait for few loads and little for one another:
 *
 *   - A list is read one word (four entries) at a time, and the next word is prefetched. Codes are read in place.
 *   - The start of a list depends on the sizes of all before it. Most sizes are nibbles, which lanes add up by a scan; the few
 *     long lists, which contain their size, are followed one after the other.
 *   - A lane takes its longest list first, so that lists of similar length run together.
 *   - The correction of an outlier is linear in its code: factor and constant per token and kind are in workgroup memory.
 */

import { BLOCK, COUNT_IN_LIST, MAX_CODE, type Oaken } from '../oaken.ts';
import { each, float, sumOfBytes } from '../snippets.ts';
import { pairs } from './f16-pairs.ts';
import { SCRATCH } from './names.ts';
import { LANES } from './subgroup.ts';

type Side = 'key' | 'value';

/** vec4u of SCRATCH: one word per list of a page, if all are long, and one more; later the kinds of outliers. */
export const OUTLIER_VECTORS = 2 * LANES + 4;

/** WGSL of both sides; `at` is their first vector of SCRATCH. */
export function outlierFunctions(
  side: Side,
  { thresholds, rangesOffset, listStartsOffset, listsOffset, listCountsOffset }: Oaken,
  at: number,
): string {
  const [outerLow, innerLow, , outerHigh] = thresholds;
  const long = `${SCRATCH}[${at} + n / 4][n % 4]`;
  const kind = (n: number, end: string, base: string) =>
    `${SCRATCH}[${at + 8 * n} + lane / 4][lane % 4] = pack2x16float(vec2f(fma(${end}, ${float(1 / MAX_CODE)}, -step), ${base}));`;
  return /* wgsl */ `
var<workgroup> ${side}_open: u32;
/** Words of token t: the ranges of outer, middle and inner values. */
fn ${side}_ends(page: u32, t: u32) -> vec3u {
  let at = (page + ${rangesOffset}) / 4 + 3 * t;
  return vec3u(pool[at], pool[at + 1], pool[at + 2]);
}
/** Step and minimum of middle values, and the first code that is not negative. */
fn ${side}_middle(word: u32) -> vec3f {
  let ends = unpack2x16float(word);
  let step = (ends.y - ends.x) / ${MAX_CODE}.0;
  var first = clamp(ceil(-ends.x / max(step, 1e-30)), 0.0, 16.0);
  if (first > 0 && fma(first - 1, step, ends.x) >= 0) { first -= 1; }
  if (first < 16 && fma(first, step, ends.x) < 0) { first += 1; }
  return vec3f(step, ends.x, first);
}
/** Offset of a head's lists; and word n, counted from the vector that they begin in. */
fn ${side}_lists(page: u32, head: u32) -> u32 { return page + ${listsOffset} + pool[(page + ${listStartsOffset}) / 4 + head]; }
fn ${side}_word(lists: u32, n: u32) -> u32 { return pool[lists / 16 * 4 + n]; }
/** Prefetches the lists into the cache. Compilers keep a load that something depends on. */
fn ${side}_prefetch(lists: u32) {
  if (${side}_word(lists, ${LANES} * lane) == 0xffffffff) { ${SCRATCH}[${at} + lane / 4][lane % 4] = 0; }
}
/**
 * Offset of the lists of a lane's four tokens; and the sizes of the lists of the first and second blocks, one byte
 * each.
 */
struct ${side}_Sizes { before: u32, sizes: vec2u }
/**
 * A list of ${COUNT_IN_LIST} or more contains its size, whose offset depends on all before it. Lanes store where such
 * lists would be without the sizes of others, and the first lane follows these.
 */
fn ${side}_outliers(lists: u32, block: u32) -> ${side}_Sizes {
  let word = pool[(block + ${listCountsOffset}) / 4 + lane];
  let long_lists = word & (word >> 1) & (word >> 2) & (word >> 3) & 0x11111111;
  let known = word & ~(long_lists * 15);
  var sizes = vec2u(known & 0x0f0f0f0f, (known >> 4) & 0x0f0f0f0f);
  let sum = ${sumOfBytes('sizes.x')} + ${sumOfBytes('sizes.y')};
  let ahead = exclusive_scan(sum | (countOneBits(long_lists) << 16));
  var before = lists % 16 + (ahead & 0xffff);
  var n = ahead >> 16;
  if (lane == ${LANES - 1}) { ${side}_open = n + countOneBits(long_lists); }
  let open = workgroupUniformLoad(&${side}_open);
  if (open > 0) {
    for (var rest = long_lists; rest != 0; rest &= rest - 1) {
      let lower = known & ((rest & (~rest + 1)) - 1);
      ${long} = before + ${sumOfBytes('lower & 0x0f0f0f0f')} + ${sumOfBytes('(lower >> 4) & 0x0f0f0f0f')};
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
      ${SCRATCH}[${at} + open / 4][open % 4] = more << 8;
    }
    workgroupBarrier();
    n = ahead >> 16;
    before += ${long} >> 8;
    for (var rest = long_lists; rest != 0; rest &= rest - 1) {
      let bit = countOneBits((rest & (~rest + 1)) - 1);
      let size = (${long} & 255) << (bit / 8 * 8);
      sizes |= select(vec2u(size, 0), vec2u(0, size), (bit & 4) != 0);
      n++;
    }
    workgroupBarrier();
  }
  return ${side}_Sizes(before, sizes);
}
/**
 * Per kind of outlier of a token, the factor and constant of the difference to a middle value with a code below the
 * first.
 */
fn ${side}_kinds(ends: vec3u) {
  let middle = unpack2x16float(ends.y);
  let step = (middle.y - middle.x) / ${MAX_CODE}.0;
  let low = middle.x + ${float(innerLow)};
  let outer = unpack2x16float(ends.x);
  let inner = unpack2x16float(ends.z);
  ${kind(0, 'inner.y', '-low')}
  ${kind(1, 'outer.y', `${float(outerHigh)} - low`)}
  ${kind(2, 'inner.x', '-low')}
  ${kind(3, 'outer.x', `${float(outerLow)} - low`)}
}`;
}

/** How a lane finds the lists of its tokens. */
export interface TokenLists {
  /** Statements before the first list; a barrier follows. */
  put: string;
  /** The order of the tokens: the lowest two bits of `ordered`. */
  order: string;
  /** For token t, number j of the lane: where its lists `start`, and their `sizes`. */
  lists: string;
}

/**
 * Four neighbours, whose sizes a lane has itself. Longest first: a sorting network of five comparisons, with the sizes
 * in the upper bits.
 */
export const listsOfNeighbours = (side: Side): TokenLists => ({
  put: '',
  order: `
    let bytes = ${side}_sizes.sizes.x + ${side}_sizes.sizes.y;
    var ordered = vec4u(bytes & 255, (bytes >> 8) & 255, (bytes >> 16) & 255, bytes >> 24) * 4 + vec4u(0, 1, 2, 3);
    ordered = vec4u(max(ordered.xy, ordered.zw), min(ordered.xy, ordered.zw));
    ordered = vec4u(max(ordered.xz, ordered.yw), min(ordered.xz, ordered.yw)).xzyw;
    { let middle = ordered.yz; ordered.y = max(middle.x, middle.y); ordered.z = min(middle.x, middle.y); }`,
  lists: `
      let below = ${side}_sizes.sizes & vec2u((1u << (8 * j)) - 1);
      let start = ${side}_sizes.before + ${sumOfBytes('below.x')} + ${sumOfBytes('below.y')};
      let sizes = (${side}_sizes.sizes >> vec2u(8 * j)) & vec2u(255);`,
});

/** Every 32nd token, whose sizes other lanes store in `lists_at`. */
export const listsFromMemory = (side: Side): TokenLists => ({
  put: `{ var start = ${side}_sizes.before;
    ${each(4, j => `{ let sizes = (${side}_sizes.sizes >> vec2u(${8 * j})) & vec2u(255); lists_at[4 * lane + ${j}] = start | (sizes.x << 16) | (sizes.y << 24); start += sizes.x + sizes.y; }`)} }`,
  order: 'var ordered = vec4u(0, 1, 2, 3);',
  lists: `
      let info = lists_at[t];
      let start = info & 0xffff;
      let sizes = vec2u((info >> 16) & 255, info >> 24);`,
});

/** Loops over a lane's four tokens: `text` handles token j. */
export const tokenLoop = ({ order }: TokenLists, text: string) => `
    ${order}
    for (var round = 0u; round < 4; round++) {
      let j = ordered.x % 4;
      ordered = ordered.yzwx;
      ${text}
    }`;

interface Outliers {
  f16: boolean;
  /** First vector of the kinds in SCRATCH. */
  at: number;
  /** Distance between the two shifts of middle values. */
  apart: number;
  /** The code of `entry`, in the `second` block or the first. */
  code: string;
}

/**
 * Emits `text` for every outlier of a token: its `entry`, `second`, and twice its difference `difference` to the middle
 * value. In scope: `ends`, `first`, the `start` and `sizes` of the lists. Long lists contain their size, so a long
 * second list has its own loop. Entries past the end have a difference of 0.
 */
export function outlierLoop(side: Side, { f16, at, apart, code }: Outliers, text: string): string {
  const { type, of: pairOf, all } = pairs(f16);
  const entry = (k: number) => `{
          let entry = taken >> ${8 * k};
          let second = next + ${k} >= second_from;
          let in_list = next + ${k} < until;
          let code = (${code}) & 15;
          let kind = ${pairOf(`${SCRATCH}[${at} + ((entry >> 3) & 24) + lane / 4][lane % 4]`)};
          // The bits of f16 1024 plus a code below 16 are a valid f16.
          var difference = fma((${pairOf('code * 0x10001 + 0x64006400')} - ${all(1024)}), kind.xx, kind.yy) - ${pairOf(`select(0u, pack2x16float(vec2f(${float(apart)})), code >= first)`)};
          difference = select(${type}(), difference, in_list);
          ${text}
          }`;
  return `${side}_kinds(ends);
      {
      let long = sizes > vec2u(${COUNT_IN_LIST});
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
export const OUTLIER_DIM = `((entry & ${BLOCK - 1}) + select(0u, ${BLOCK}u, second))`;
