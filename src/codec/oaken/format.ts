/** The page format of Oaken: a dense array of nibbles, ranges per token and group, and lists of outliers. */
import type { Shape } from '../codec.ts';
import { createGrid, type GridOrder } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { type Field, layoutFields } from '../page-fields.ts';
import { f16 } from '../scalars.ts';

export interface Thresholds {
  outerLow: number;
  innerLow: number;
  innerHigh: number;
  outerHigh: number;
}

/** Dims per outlier list: an entry has six index bits. */
const BLOCK = 64;
const INDEX_MASK = BLOCK - 1;
const OUTER_BIT = 64;
const SIGN_BIT = 128;
/** This count means that the first byte of the list is the count. */
const COUNT_IN_LIST = 15;
/**
 * Capacity of the lists in bytes per value. The average need is 0.1. The maximum over 27,000 pages (SmolLM2-135M) was .128
 * on WikiText-2, whose first rows gave the thresholds, and .133 on source code.
 */
const LIST_BYTES_PER_VALUE = 9 / 64;
const MAX_CODE = 15;

type Group = 'outer' | 'middle' | 'inner';
const GROUPS: readonly Group[] = ['outer', 'middle', 'inner'];

/**
 * A page:
 *   ranges   for each token: f16 min and max of the shifted outer, middle and inner values, over all heads
 *   starts   for each head: u32, the offset of its lists from the first list
 *   dropped  for each head: u32, the number of outliers without an entry in the lists (for reports only)
 * One head's block:
 *   codes    headDim x pageTokens nibbles in rows (keys) or columns (values). Middle: min + code (max - min) / 15.
 *            Outliers: code max / 15, or code min / 15 where the sign bit is set.
 *   counts   a nibble per token and block of 64 dims, even ones in the low bits: the number of outliers; 15: it is in the
 *            first byte of the list
 * After the blocks:
 *   lists    by head, token and block: one byte per outlier, dims ascending. Bits 0 to 5 are the dim in its block, bit 6
 *            is outer (else inner), bit 7 is negative. The unused capacity is zero.
 *
 * If the lists exceed their capacity, inner values get no entry (they are coded as the nearest middle value). If the outer
 * values alone exceed it, blocks that do not fit have no entries (their outer values are clamped to the middle range).
 */
export function oakenFormat(thresholds: Thresholds, order: GridOrder, shape: Shape): PageFormat {
  const { headDim, kvHeads, pageTokens } = shape;
  const blocks = Math.ceil(headDim / BLOCK);
  const grid = createGrid(pageTokens, headDim, 4, order);
  const listsCapacity = 4 * Math.ceil((LIST_BYTES_PER_VALUE * pageTokens * headDim * kvHeads) / 4);
  const fields: Field[] = [
    {
      name: 'ranges',
      bytes: pageTokens * 6 * f16.bytes,
      per: 'page',
      about: `${pageTokens} x 6 f16: min and max of the outer, middle and inner values of a token, shifted`,
    },
    { name: 'starts', bytes: 4 * kvHeads, per: 'page', about: `${kvHeads} x u32: the offset of each head's lists` },
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
      about: `${pageTokens} x ${blocks} nibbles: number of outliers of a token in ${BLOCK} dims; 15: in the list`,
    },
    {
      name: 'lists',
      bytes: listsCapacity,
      per: 'rest',
      about: `one byte per outlier: dim in its block, outer or inner, sign. Capacity ${listsCapacity}; a tenth of the values on average`,
    },
  ];
  const layout = layoutFields(fields, kvHeads);
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
  /** Whether an outer or middle value is below its lower threshold; for an inner value, its sign. */
  const isNegative = (x: number, group: Group) =>
    group === 'inner' ? x < 0 : x < (group === 'outer' ? thresholds.outerLow : thresholds.innerLow);
  const clampCode = (x: number) => Math.max(0, Math.min(MAX_CODE, Math.round(x)));
  const countAt = (counts: Uint8Array, n: number) => (counts[n >> 1] >> (4 * (n & 1))) & 15;
  /** Visits the lists of a head: the number of entries of each, their offset, and the number of the list. */
  const visitLists = (page: Uint8Array, head: number, visit: (count: number, offset: number, n: number) => void) => {
    const counts = layout.field(page, 'counts', head);
    const lists = layout.field(page, 'lists', 0);
    let offset = readU32(layout.field(page, 'starts', 0), head);
    for (let n = 0; n < pageTokens * blocks; n++) {
      let count = countAt(counts, n);
      if (count === COUNT_IN_LIST) count = lists[offset++];
      visit(count, offset, n);
      offset += count;
    }
  };

  /** Size of lists with all outliers. */
  const neededListBytes = (heads: Float64Array[], tokens: number): number => {
    let bytes = 0;
    for (const x of heads) {
      for (let i = 0; i < tokens * headDim; ) {
        let count = 0;
        for (const end = blockEnd(i); i < end; i++) if (groupOf(x[i]) !== 'middle') count++;
        bytes += listBytes(count);
      }
    }
    return bytes;
  };
  const blockEnd = (start: number) => Math.min(start + BLOCK, start - (start % headDim) + headDim);

  return {
    fields,
    encoding: {
      kind: 'oaken',
      thresholds: [thresholds.outerLow, thresholds.innerLow, thresholds.innerHigh, thresholds.outerHigh],
      codes: { offset: layout.offset('codes'), bits: 4, order },
      rangesOffset: layout.offset('ranges'),
      listStartsOffset: layout.offset('starts'),
      droppedOffset: layout.offset('dropped'),
      listCountsOffset: layout.offset('counts'),
      listsOffset: layout.offset('lists'),
      listsCapacity,
    },
    write(heads, tokens, page) {
      const ranges = layout.field(page, 'ranges', 0);
      const range = (t: number, group: Group, bound: 0 | 1) =>
        f16.read(ranges, 6 * t + 2 * GROUPS.indexOf(group) + bound);
      for (let t = 0; t < tokens; t++) {
        for (const group of GROUPS) {
          let [min, max] = [0, 0];
          for (const x of heads) {
            for (let i = t * headDim; i < (t + 1) * headDim; i++) {
              if (groupOf(x[i]) !== group) continue;
              const shifted = x[i] - shiftOf(group, isNegative(x[i], group));
              min = Math.min(min, shifted);
              max = Math.max(max, shifted);
            }
          }
          f16.write(ranges, 6 * t + 2 * GROUPS.indexOf(group), min);
          f16.write(ranges, 6 * t + 2 * GROUPS.indexOf(group) + 1, max);
        }
      }
      const listed: readonly Group[] = neededListBytes(heads, tokens) <= listsCapacity ? ['outer', 'inner'] : ['outer'];
      const lists = layout.field(page, 'lists', 0);
      const starts = layout.field(page, 'starts', 0);
      let listsEnd = 0;
      heads.forEach((x, head) => {
        const codes = layout.field(page, 'codes', head);
        const counts = layout.field(page, 'counts', head);
        writeU32(starts, head, listsEnd);
        let dropped = 0;
        for (let t = 0; t < tokens; t++) {
          for (let block = 0; block < blocks; block++) {
            const start = t * headDim + block * BLOCK;
            const end = blockEnd(start);
            const entries: number[] = [];
            for (let i = start; i < end; i++) {
              const group = groupOf(x[i]);
              if (!listed.includes(group)) continue;
              const bits = (group === 'outer' ? OUTER_BIT : 0) | (isNegative(x[i], group) ? SIGN_BIT : 0);
              entries.push((i - start) | bits);
            }
            const kept = listsEnd + listBytes(entries.length) <= listsCapacity ? entries : [];
            const n = t * blocks + block;
            counts[n >> 1] |= Math.min(COUNT_IN_LIST, kept.length) << (4 * (n & 1));
            if (kept.length >= COUNT_IN_LIST) lists[listsEnd++] = kept.length;
            lists.set(kept, listsEnd);
            listsEnd += kept.length;
            const outliers = new Set(kept.map(entry => entry & INDEX_MASK));
            for (let i = start; i < end; i++) {
              const group = outliers.has(i - start) ? groupOf(x[i]) : 'middle';
              if (group !== groupOf(x[i])) dropped++;
              const negative = isNegative(x[i], group);
              const [min, max] = [range(t, group, 0), range(t, group, 1)];
              let shifted = x[i] - shiftOf(group, negative);
              // An inner value without an entry becomes the nearest middle value.
              if (group === 'middle' && !negative) shifted = Math.max(0, shifted);
              const code =
                group === 'middle'
                  ? divideOrZero(shifted - min, max - min)
                  : divideOrZero(shifted, negative ? min : max);
              grid.write(codes, t, i % headDim, clampCode(MAX_CODE * code));
            }
          }
        }
        writeU32(layout.field(page, 'dropped', 0), head, dropped);
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
        const shifted = min + (grid.read(codes, token, i) * (max - min)) / MAX_CODE;
        out[i] = shifted + shiftOf('middle', shifted < 0);
      }
      let offset = readU32(starts, head);
      for (let n = 0; n < (token + 1) * blocks; n++) {
        let count = countAt(counts, n);
        if (count === COUNT_IN_LIST) count = lists[offset++];
        if (n >= token * blocks) {
          for (const entry of lists.subarray(offset, offset + count)) {
            const i = (n - token * blocks) * BLOCK + (entry & INDEX_MASK);
            const group = entry & OUTER_BIT ? 'outer' : 'inner';
            const negative = (entry & SIGN_BIT) !== 0;
            const bound = range((group === 'outer' ? 0 : 4) + (negative ? 0 : 1));
            out[i] = (grid.read(codes, token, i) * bound) / MAX_CODE + shiftOf(group, negative);
          }
        }
        offset += count;
      }
    },
    usedBytes(page) {
      let end = 0;
      visitLists(page, kvHeads - 1, (count, offset) => {
        end = offset + count;
      });
      return layout.offset('lists') + end;
    },
    outliers(page) {
      let [listed, dropped] = [0, 0];
      for (let head = 0; head < kvHeads; head++) {
        visitLists(page, head, count => {
          listed += count;
        });
        dropped += readU32(layout.field(page, 'dropped', 0), head);
      }
      return { listed, dropped };
    },
    isValid(page) {
      const lists = layout.field(page, 'lists', 0);
      let isValid = true;
      for (let head = 0; head < kvHeads; head++) {
        visitLists(page, head, (count, offset, n) => {
          const dims = Math.min(BLOCK, headDim - (n % blocks) * BLOCK);
          // A count that was read behind the lists is undefined, and nothing is at most undefined.
          isValid &&= offset + count <= listsCapacity;
          isValid &&= lists.subarray(offset, offset + count).every(entry => (entry & INDEX_MASK) < dims);
        });
      }
      return isValid;
    },
  };
}

/** Size of a list, including its count if that does not fit into a nibble. */
const listBytes = (count: number) => count + (count >= COUNT_IN_LIST ? 1 : 0);

/** An empty range has code 0 only. */
const divideOrZero = (x: number, range: number) => (range === 0 ? 0 : x / range);

const readU32 = (words: Uint8Array, n: number) => new DataView(words.buffer, words.byteOffset).getUint32(4 * n, true);
const writeU32 = (words: Uint8Array, n: number, value: number) =>
  new DataView(words.buffer, words.byteOffset).setUint32(4 * n, value, true);
