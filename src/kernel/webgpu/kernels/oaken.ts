/**
 * Oaken's pages (codec/oaken/format.ts has the bytes). Reading begins with a map of the page's outliers in workgroup
 * memory, since their lists must be walked from the start of a head; then any value can be had on its own.
 */

import type { PageFragment } from '../../fragment.ts';
import { type PageShape, SIZE } from './shape.ts';
import { each, float } from './text.ts';

export type Oaken = PageFragment & { kind: 'oaken' };

export const BLOCK = 64;
export const MANY = 15;
export const STEPS = 15;

/** Words of the map: a nibble a value, bit 0 an outlier, bit 1 outer, bit 2 negative. */
export const markWords = ({ headDim: D, pageTokens: P }: PageShape): number => Math.ceil(D / 8) * P;

/** `NAME_mark` fills the map, `unit` reads with it; a barrier must lie between. */
export function oakenReader(
  name: string,
  { thresholds, ranges, starts, lists, counts }: Oaken,
  shape: PageShape,
  unit: (body: string) => string,
): string {
  const { headDim: D, pageTokens: P } = shape;
  const [outerLow, innerLow, innerHigh, outerHigh] = thresholds.map(float);
  const blocks = Math.ceil(D / BLOCK);
  const line = Math.ceil(D / 8);
  return /* wgsl */ `
var<workgroup> ${name}_marks: array<u32, ${markWords(shape)}>;
/** Sum of the nibbles of a word, none of which is ${MANY}. */
fn ${name}_nibbles(word: u32) -> u32 {
  let bytes = (word & 0x0f0f0f0f) + ((word >> 4) & 0x0f0f0f0f);
  return (bytes * 0x01010101) >> 24;
}
fn ${name}_count(block: u32, n: u32) -> u32 { return (byte(block + ${counts} + n / 2) >> (4 * (n & 1))) & 15; }
/** Where the lists of token t begin. */
fn ${name}_list(page: u32, head: u32, block: u32, t: u32) -> u32 {
  let start = page + ${starts} + 4 * head;
  var at = page + ${lists} + (byte(start) | (byte(start + 1) << 8) | (byte(start + 2) << 16) | (byte(start + 3) << 24));
  var n = 0u;
  while (n < t * ${blocks}) {
    let from_byte = block + ${counts} + n / 2;
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
    at += select(count, 1 + byte(at), count == ${MANY});
    n++;
  }
  return at;
}
fn ${name}_mark(page: u32, head: u32, block: u32, lane: u32) {
  for (var t = lane; t < ${P}; t += ${SIZE}) {
    ${each(line, n => `${name}_marks[t * ${line} + ${n}] = 0;`, ' ')}
    var at = ${name}_list(page, head, block, t);
    for (var b = 0u; b < ${blocks}; b++) {
      var count = ${name}_count(block, t * ${blocks} + b);
      if (count == ${MANY}) { count = byte(at); at++; }
      for (var n = 0u; n < count; n++) {
        let entry = byte(at);
        at++;
        let i = ${BLOCK} * b + (entry & ${BLOCK - 1});
        ${name}_marks[t * ${line} + i / 8] |= (1 | ((entry >> 5) & 6)) << (4 * (i % 8));
      }
    }
  }
}
${unit(`
  let code = f32(${name}_codes(block, t, i));
  let ranges = page + ${ranges} + 12 * t;
  let mark = (${name}_marks[t * ${line} + i / 8] >> (4 * (i % 8))) & 7;
  if (mark == 0) {
    let low = half(ranges + 4);
    let value = fma(code, (half(ranges + 6) - low) / ${STEPS}.0, low);
    return value + select(${innerHigh}, ${innerLow}, value < 0);
  }
  let outer = (mark & 2) != 0;
  let negative = (mark & 4) != 0;
  let end = half(ranges + select(8u, 0u, outer) + select(2u, 0u, negative));
  return fma(code, end / ${STEPS}.0, select(0.0, select(${outerHigh}, ${outerLow}, negative), outer));`)}`;
}
