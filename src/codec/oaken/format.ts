/** Oaken's page: a dense array of nibbles, ranges a token and group, and side lists of the outliers. */
import type { Shape } from '../codec.ts';
import { type Field, layOut } from '../layout.ts';
import { createGrid, type Order } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { f16 } from '../scalars.ts';

export interface Thresholds {
  outerLow: number;
  innerLow: number;
  innerHigh: number;
  outerHigh: number;
}

/** Values that an entry of a list may point to, by six bits. */
const BLOCK = 64;
const INDEX = BLOCK - 1;
const OUTER_BIT = 64;
const SIGN_BIT = 128;
/** A count that is in the list itself. */
const MANY = 15;
/**
 * Bytes of lists per value that a page has room for; a tenth is used on average. Of 27,000 pages of WikiText-2 (SmolLM2-135M,
 * thresholds of its first rows) the largest took .128, of source code .133.
 */
const ROOM_PER_VALUE = 9 / 64;
const STEPS = 15;

type Group = 'outer' | 'middle' | 'inner';
const GROUPS: readonly Group[] = ['outer', 'middle', 'inner'];

/**
 * A page:
 *   ranges   for each token: f16 min and max of the shifted outer values, of the middle, of the inner ones; over all heads
 *   starts   for each head: u32, where its lists start, in bytes from the first list
 *   dropped  for each head: u32, how many of its outliers have no entry in the lists. Readers do not need it; reports do.
 * One head's block:
 *   codes    headDim x pageTokens nibbles in rows (keys) or columns (values). Middle: min + code (max - min) / 15.
 *            Outliers: code max / 15, or code min / 15 where the sign bit is set.
 *   counts   a nibble for each token and block of 64 dims, the even one lower: how many outliers; 15: the first byte of
 *            the list says
 * After the blocks:
 *   lists    head by head, token by token, block by block: a byte an outlier, dims ascending. Bits 0 to 5 the dim in its
 *            block, bit 6 outer (else inner), bit 7 negative. Their length varies; what is left of the room is zero.
 *
 * Where lists outgrow their room, no inner value of the page gets an entry (it is coded as the middle value nearest to
 * it); where outer values alone do, blocks that do not fit keep none (theirs are cut to the range of the middle).
 */
export function oakenFormat(thresholds: Thresholds, order: Order, shape: Shape): PageFormat {
  const { headDim, kvHeads, pageTokens } = shape;
  const blocks = Math.ceil(headDim / BLOCK);
  const grid = createGrid(pageTokens, headDim, 4, order);
  const room = 4 * Math.ceil((ROOM_PER_VALUE * pageTokens * headDim * kvHeads) / 4);
  const fields: Field[] = [
    {
      name: 'ranges',
      bytes: pageTokens * 6 * f16.bytes,
      per: 'page',
      about: `${pageTokens} x 6 f16: min and max of the outer, middle and inner values of a token, shifted`,
    },
    { name: 'starts', bytes: 4 * kvHeads, per: 'page', about: `${kvHeads} x u32: where each head's lists start` },
    {
      name: 'dropped',
      bytes: 4 * kvHeads,
      per: 'page',
      about: `${kvHeads} x u32: outliers of each head that did not fit into the lists`,
    },
    {
      name: 'codes',
      bytes: grid.bytes,
      per: 'head',
      about: `${headDim} x ${pageTokens} codes of 4 bits in ${order}`,
    },
    {
      name: 'counts',
      bytes: (pageTokens * blocks) / 2,
      per: 'head',
      about: `${pageTokens} x ${blocks} nibbles: outliers of a token in ${BLOCK} dims; 15: the list says`,
    },
    {
      name: 'lists',
      bytes: room,
      per: 'rest',
      about: `a byte an outlier: dim in its block, outer or inner, sign. Room for ${room}; a tenth of the values on average`,
    },
  ];
  const layout = layOut(fields, kvHeads);
  const groupOf = (x: number): Group =>
    x < thresholds.outerLow || x > thresholds.outerHigh
      ? 'outer'
      : x < thresholds.innerLow || x > thresholds.innerHigh
        ? 'middle'
        : 'inner';
  const shiftOf = (group: Group, negative: boolean): number =>
    group === 'inner'
      ? 0
      : group === 'outer'
        ? negative
          ? thresholds.outerLow
          : thresholds.outerHigh
        : negative
          ? thresholds.innerLow
          : thresholds.innerHigh;
  /** Which side a value is on: an outer or middle one by where it lies, an inner one by its sign. */
  const isNegative = (x: number, group: Group) =>
    group === 'inner' ? x < 0 : x < (group === 'outer' ? thresholds.outerLow : thresholds.innerLow);
  const limit = (x: number) => Math.max(0, Math.min(STEPS, Math.round(x)));
  const countAt = (counts: Uint8Array, n: number) => (counts[n >> 1] >> (4 * (n & 1))) & 15;
  /** Visits the lists of a head: how many entries each has, and where they begin. */
  const visitLists = (page: Uint8Array, head: number, visit: (count: number, at: number) => void) => {
    const counts = layout.field(page, 'counts', head);
    const lists = layout.field(page, 'lists', 0);
    let at = wordOf(layout.field(page, 'starts', 0), head);
    for (let n = 0; n < pageTokens * blocks; n++) {
      let count = countAt(counts, n);
      if (count === MANY) count = lists[at++];
      visit(count, at);
      at += count;
    }
  };

  /** What the lists of all outliers would take. */
  const wanted = (heads: Float64Array[], tokens: number): number => {
    let bytes = 0;
    for (const x of heads) {
      for (let at = 0; at < tokens * headDim; ) {
        let count = 0;
        for (const end = blockEnd(at); at < end; at++) if (groupOf(x[at]) !== 'middle') count++;
        bytes += listBytes(count);
      }
    }
    return bytes;
  };
  const blockEnd = (at: number) => Math.min(at + BLOCK, at - (at % headDim) + headDim);

  return {
    fields,
    fragment: {
      kind: 'oaken',
      thresholds: [thresholds.outerLow, thresholds.innerLow, thresholds.innerHigh, thresholds.outerHigh],
      codes: { offset: layout.offset('codes'), bits: 4, order },
      ranges: layout.offset('ranges'),
      starts: layout.offset('starts'),
      dropped: layout.offset('dropped'),
      counts: layout.offset('counts'),
      lists: layout.offset('lists'),
      room,
    },
    write(heads, tokens, page) {
      const ranges = layout.field(page, 'ranges', 0);
      const range = (t: number, group: Group, end: 0 | 1) => f16.read(ranges, 6 * t + 2 * GROUPS.indexOf(group) + end);
      for (let t = 0; t < tokens; t++) {
        for (const group of GROUPS) {
          let [min, max] = [0, 0];
          for (const x of heads) {
            for (let at = t * headDim; at < (t + 1) * headDim; at++) {
              if (groupOf(x[at]) !== group) continue;
              const shifted = x[at] - shiftOf(group, isNegative(x[at], group));
              min = Math.min(min, shifted);
              max = Math.max(max, shifted);
            }
          }
          f16.write(ranges, 6 * t + 2 * GROUPS.indexOf(group), min);
          f16.write(ranges, 6 * t + 2 * GROUPS.indexOf(group) + 1, max);
        }
      }
      const listed: readonly Group[] = wanted(heads, tokens) <= room ? ['outer', 'inner'] : ['outer'];
      const lists = layout.field(page, 'lists', 0);
      const starts = layout.field(page, 'starts', 0);
      let end = 0;
      heads.forEach((x, head) => {
        const codes = layout.field(page, 'codes', head);
        const counts = layout.field(page, 'counts', head);
        setWord(starts, head, end);
        let dropped = 0;
        for (let t = 0; t < tokens; t++) {
          for (let block = 0; block < blocks; block++) {
            const first = t * headDim + block * BLOCK;
            const last = blockEnd(first);
            const entries: number[] = [];
            for (let at = first; at < last; at++) {
              const group = groupOf(x[at]);
              if (!listed.includes(group)) continue;
              const bits = (group === 'outer' ? OUTER_BIT : 0) | (isNegative(x[at], group) ? SIGN_BIT : 0);
              entries.push((at - first) | bits);
            }
            const kept = end + listBytes(entries.length) <= room ? entries : [];
            const n = t * blocks + block;
            counts[n >> 1] |= Math.min(MANY, kept.length) << (4 * (n & 1));
            if (kept.length >= MANY) lists[end++] = kept.length;
            lists.set(kept, end);
            end += kept.length;
            const outliers = new Set(kept.map(entry => entry & INDEX));
            for (let at = first; at < last; at++) {
              const group = outliers.has(at - first) ? groupOf(x[at]) : 'middle';
              if (group !== groupOf(x[at])) dropped++;
              const negative = isNegative(x[at], group);
              const [min, max] = [range(t, group, 0), range(t, group, 1)];
              let shifted = x[at] - shiftOf(group, negative);
              // An inner value without an entry is the middle's nearest.
              if (group === 'middle' && !negative) shifted = Math.max(0, shifted);
              const code = group === 'middle' ? over(shifted - min, max - min) : over(shifted, negative ? min : max);
              grid.write(codes, t, at % headDim, limit(STEPS * code));
            }
          }
        }
        setWord(layout.field(page, 'dropped', 0), head, dropped);
      });
    },
    read(page, head, token, out) {
      const codes = layout.field(page, 'codes', head);
      const counts = layout.field(page, 'counts', head);
      const lists = layout.field(page, 'lists', 0);
      const ranges = layout.field(page, 'ranges', 0);
      const starts = layout.field(page, 'starts', 0);
      const range = (n: number) => f16.read(ranges, 6 * token + n);
      const [min, max] = [range(2), range(3)];
      for (let i = 0; i < headDim; i++) {
        const shifted = min + (grid.read(codes, token, i) * (max - min)) / STEPS;
        out[i] = shifted + shiftOf('middle', shifted < 0);
      }
      let at = wordOf(starts, head);
      for (let n = 0; n < (token + 1) * blocks; n++) {
        let count = countAt(counts, n);
        if (count === MANY) count = lists[at++];
        if (n >= token * blocks) {
          for (const entry of lists.subarray(at, at + count)) {
            const i = (n - token * blocks) * BLOCK + (entry & INDEX);
            const group = entry & OUTER_BIT ? 'outer' : 'inner';
            const negative = (entry & SIGN_BIT) !== 0;
            const end = range((group === 'outer' ? 0 : 4) + (negative ? 0 : 1));
            out[i] = (grid.read(codes, token, i) * end) / STEPS + shiftOf(group, negative);
          }
        }
        at += count;
      }
    },
    used(page) {
      let end = 0;
      visitLists(page, kvHeads - 1, (count, at) => {
        end = at + count;
      });
      return layout.offset('lists') + end;
    },
    outliers(page) {
      let [listed, dropped] = [0, 0];
      for (let head = 0; head < kvHeads; head++) {
        visitLists(page, head, count => {
          listed += count;
        });
        dropped += wordOf(layout.field(page, 'dropped', 0), head);
      }
      return { listed, dropped };
    },
  };
}

/** Of a list of so many outliers, with its count where that does not fit into a nibble. */
const listBytes = (count: number) => count + (count >= MANY ? 1 : 0);

/** An empty range holds one value. */
const over = (x: number, range: number) => (range === 0 ? 0 : x / range);

const wordOf = (words: Uint8Array, n: number) => new DataView(words.buffer, words.byteOffset).getUint32(4 * n, true);
const setWord = (words: Uint8Array, n: number, value: number) =>
  new DataView(words.buffer, words.byteOffset).setUint32(4 * n, value, true);
