/**
 * Lines of narrow codes (codec/pack.ts), a row of dims or a column of tokens, cut into strips: what a lane reads of a line
 * at once, 32 bytes where a line has as many. Words hold four neighbouring codes each, a byte each after a shift.
 */

/** Word n has codes 4 n to 4 n + 3, from the strip's first on. */
export interface Word {
  /** A byte each; or at the top of their bytes, which are otherwise zero. */
  codes: string;
  top: string;
}

export interface Strips {
  /** Strips of a line, and words of a strip. */
  count: number;
  words: number;
  /** The vectors (vec4u) of strip `strip` of line `line` of the grid that begins at byte `at`. */
  load(at: string, line: string, strip: string): string[];
  /** Of vectors ID0, ID1 and so on. */
  of(id: string): Word[];
}

const mask = (bits: number, shift = 0) => `0x${((2 ** bits - 1) << shift).toString(16).padStart(2, '0').repeat(4)}u`;
const shifted = (word: string, by: number) =>
  by === 0 ? word : by > 0 ? `(${word} >> ${by}u)` : `(${word} << ${-by}u)`;

/** A grid of `lines` lines of `length` codes, if its lines can be cut so. It must begin at a multiple of 16 bytes. */
export function stripsOf(bits: number, length: number, lines: number): Strips | undefined {
  if (bits === 3) return threeBits(length, lines);
  const blocks = (length * bits) / 128;
  if (![1, 2, 4].includes(bits) || blocks % 1 !== 0) return undefined;
  const taken = blocks % 2 === 0 ? 2 : 1;
  const codes = 8 / bits;
  return {
    count: blocks / taken,
    words: 4 * codes * taken,
    load: (at, line, strip) =>
      Array.from(
        { length: taken },
        (_, c) => `pool4[(${at}) / 16 + (${line}) * ${blocks} + (${strip}) * ${taken} + ${c}]`,
      ),
    of: id =>
      Array.from({ length: 4 * codes * taken }, (_, n) => {
        const [c, k, w] = [Math.floor(n / (4 * codes)), Math.floor(n / 4) % codes, n % 4];
        const word = `${id}${c}[${w}]`;
        return {
          codes: `(${shifted(word, bits * k)} & ${mask(bits)})`,
          top: `(${shifted(word, bits * (k + 1) - 8)} & ${mask(bits, 8 - bits)})`,
        };
      }),
  };
}

/** Two bits in one plane, the third in another. */
function threeBits(length: number, lines: number): Strips | undefined {
  if (length % 128 !== 0) return undefined;
  const second = (lines * length) / 4;
  return {
    count: length / 128,
    words: 32,
    load: (at, line, strip) => [
      `pool4[(${at}) / 16 + (${line}) * ${length / 64} + (${strip}) * 2]`,
      `pool4[(${at}) / 16 + (${line}) * ${length / 64} + (${strip}) * 2 + 1]`,
      `pool4[((${at}) + ${second}) / 16 + (${line}) * ${length / 128} + ${strip}]`,
    ],
    of: id =>
      Array.from({ length: 32 }, (_, n) => {
        const [m, w] = [n >> 2, n & 3];
        const low = `(${shifted(`${id}${m >> 2}[${w}]`, 2 * (m & 3))} & ${mask(2)})`;
        const both = `(${low} | (${shifted(`${id}2[${w}]`, m - 2)} & ${mask(1, 2)}))`;
        return { codes: both, top: `(${both} << 5u)` };
      }),
  };
}
