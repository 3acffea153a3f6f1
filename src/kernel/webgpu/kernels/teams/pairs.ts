/**
 * Sixteen levels by a table in workgroup memory: a byte of a page, which is two codes, looks up the bytes of both. Every bank
 * has a copy, where there is room for as many, so that lanes do not meet in one.
 *
 * A word of a block (codec/pack.ts: codes w to w + 3 in its lower nibbles, 16 further on in its upper ones) becomes two words
 * of two codes from either place. What they meet is mixed likewise: word n holds the first, or (where n has a 4) the last two
 * of words n and n + 4.
 */

import type { PageFragment } from '../../../fragment.ts';
import { bestUnit } from '../ints.ts';
import type { Strips } from './strips.ts';
import { stripsOf } from './strips.ts';
import { LANES } from './talk.ts';

type Levels = PageFragment & { kind: 'levels' };

/** A table that all lanes fill together. */
export interface Table {
  text: string;
  setup: string;
  /** Words of workgroup memory. */
  words: number;
}

const ENTRIES = 256;

export const isPairs = ({ uniform, codes: { bits, order } }: Levels): boolean => process.env.KV_LUT !== '0' &&
  !uniform && bits === 4 && order !== 'pairs';

/** `copies`: a power of two up to the number of banks. */
export function pairTable({ levels }: Levels, teams: number, copies: number): Table & { unit: number } {
  const unit = bestUnit(levels);
  const bytes = Array.from(levels, level => Math.round(level / unit) & 255);
  const shift = Math.log2(copies);
  const entry = (j: number) => {
    const by = 8 * j - shift;
    const index = by > 0 ? `(x >> ${by}u)` : `(x << ${-by}u)`;
    return `level_pairs[(${index} & ${(ENTRIES - 1) * copies}u) | (lane % ${copies})]`;
  };
  return {
    unit,
    words: ENTRIES * copies,
    text: `var<workgroup> level_pairs: array<u32, ${ENTRIES * copies}>;
fn first_pairs(x: u32) -> u32 { return ${entry(0)} | (${entry(1)} << 16u); }
fn last_pairs(x: u32) -> u32 { return ${entry(2)} | (${entry(3)} << 16u); }
${mixing}`,
    setup: `{
    var levels = array<u32, ${bytes.length}>(${bytes.map(byte => `${byte}u`).join()});
    for (var at = own; at < ${ENTRIES * copies}; at += ${teams * LANES}) {
      let codes = at / ${copies};
      level_pairs[at] = levels[codes & 15] | (levels[codes >> 4] << 8u);
    }
  }`,
  };
}

/** The first, or the last, two bytes of a and of b, in turn. */
const mixing = `fn first_mixed(a: u32, b: u32) -> u32 {
  return ((a & 0xffu) | ((b & 0xffu) << 8u)) | (((a & 0xff00u) << 8u) | ((b & 0xff00u) << 16u));
}
fn last_mixed(a: u32, b: u32) -> u32 {
  return (((a >> 16u) & 0xffu) | ((b >> 8u) & 0xff00u)) | (((a >> 8u) & 0xff0000u) | (b & 0xff000000u));
}`;

/** Word n of what these meet, from it and word n ^ 4. */
export const mixed = (n: string, word: string, other: string): string =>
  `select(first_mixed(${word}, ${other}), last_mixed(${other}, ${word}), ((${n}) & 4) != 0)`;

/** Strips of nibbles whose words are levels. */
export function pairStrips(length: number, lines: number): Strips | undefined {
  const strips = stripsOf(4, length, lines);
  return (
    strips && {
      ...strips,
      of: id =>
        Array.from({ length: strips.words }, (_, n) => {
          const codes = `${n & 4 ? 'last' : 'first'}_pairs(${id}${n >> 3}[${n & 3}])`;
          return { n, codes, top: codes };
        }),
    }
  );
}
