/**
 * Reads Oaken pages as floats (codec/oaken/format.ts documents the bytes). First builds a map of the page's outliers in
 * workgroup memory, since their lists can only be read from the start of a head; then values can be read in any order.
 */

import type { PageEncoding } from '../../page-layout.ts';
import { type PageShape, WORKGROUP_SIZE } from './shape.ts';
import { float } from './snippets.ts';

export type Oaken = PageEncoding & { kind: 'oaken' };

export const BLOCK = 64;
export const COUNT_IN_LIST = 15;
export const MAX_CODE = 15;

/**
 * The map, for keys and then for values, since two would not fit into 16 KiB. One nibble per value: bit 0 outlier, bit 1
 * outer, bit 2 negative.
 */
export const outlierMap = ({ headDim: D, pageTokens: P }: PageShape): string =>
  `var<workgroup> outliers: array<u32, ${Math.ceil(D / 8) * P}>;`;

/** `NAME_mark` fills the map, `single` reads it; a barrier must separate them. */
export function oakenReader(
  name: string,
  { thresholds, rangesOffset, listStartsOffset, listsOffset, listCountsOffset }: Oaken,
  shape: PageShape,
  single: (body: string) => string,
): string {
  const { headDim: D, pageTokens: P } = shape;
  const [outerLow, innerLow, innerHigh, outerHigh] = thresholds.map(float);
  const blocks = Math.ceil(D / BLOCK);
  const line = Math.ceil(D / 8);
  return /* wgsl */ `
/** Sum of the nibbles of a word, none of which is ${COUNT_IN_LIST}. */
fn ${name}_nibbles(word: u32) -> u32 {
  let bytes = (word & 0x0f0f0f0f) + ((word >> 4) & 0x0f0f0f0f);
  return (bytes * 0x01010101) >> 24;
}
fn ${name}_count(block: u32, n: u32) -> u32 { return (read_byte(block + ${listCountsOffset} + n / 2) >> (4 * (n & 1))) & 15; }
/** The offset of the lists of token t. */
fn ${name}_list(page: u32, head: u32, block: u32, t: u32) -> u32 {
  let start = page + ${listStartsOffset} + 4 * head;
  var at = page + ${listsOffset} + (read_byte(start) | (read_byte(start + 1) << 8) | (read_byte(start + 2) << 16) | (read_byte(start + 3) << 24));
  var n = 0u;
  while (n < t * ${blocks}) {
    let from_byte = block + ${listCountsOffset} + n / 2;
    if (n % 8 == 0 && from_byte % 4 == 0 && n + 8 <= t * ${blocks}) {
      let word = pool[from_byte / 4];
      let full = word & (word >> 1) & (word >> 2) & (word >> 3) & 0x11111111;
      if (full == 0) {
        at += ${name}_nibbles(word);
        n += 8;
        continue;
      }
    }
    let count = ${name}_count(block, n);
    at += select(count, 1 + read_byte(at), count == ${COUNT_IN_LIST});
    n++;
  }
  return at;
}
fn ${name}_mark(page: u32, head: u32, block: u32, lane: u32) {
  for (var t = lane; t < ${P}; t += ${WORKGROUP_SIZE}) {
    @unroll(n, ${line}) outliers[t * ${line} + $n] = 0;
    var at = ${name}_list(page, head, block, t);
    for (var b = 0u; b < ${blocks}; b++) {
      var count = ${name}_count(block, t * ${blocks} + b);
      if (count == ${COUNT_IN_LIST}) { count = read_byte(at); at++; }
      for (var n = 0u; n < count; n++) {
        let entry = read_byte(at);
        at++;
        let i = ${BLOCK} * b + (entry & ${BLOCK - 1});
        outliers[t * ${line} + i / 8] |= (1 | ((entry >> 5) & 6)) << (4 * (i % 8));
      }
    }
  }
}
${single(`
  let code = f32(${name}_codes(block, t, i));
  let ranges = page + ${rangesOffset} + 12 * t;
  let mark = (outliers[t * ${line} + i / 8] >> (4 * (i % 8))) & 7;
  if (mark == 0) {
    let low = read_f16(ranges + 4);
    let value = fma(code, (read_f16(ranges + 6) - low) / ${MAX_CODE}.0, low);
    return value + select(${innerHigh}, ${innerLow}, value < 0);
  }
  let outer = (mark & 2) != 0;
  let negative = (mark & 4) != 0;
  let end = read_f16(ranges + select(8u, 0u, outer) + select(2u, 0u, negative));
  return fma(code, end / ${MAX_CODE}.0, select(0.0, select(${outerHigh}, ${outerLow}, negative), outer));`)}`;
}
