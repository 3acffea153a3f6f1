/**
 * Strips of narrow codes (codec/pack.ts). A line is a row of dims or a column of tokens; a strip holds the same 16
 * bytes of every line. A word holds four neighbouring codes, one per byte after a shift. Codes of 3 bits are a plane of
 * two bits and a plane of one: a strip has 48 bytes per line.
 */

import { repeatByte } from './snippets.ts';

/** Four neighbouring codes of a line. */
export interface Word {
  /** One code per byte; or in the top bits of the byte, with zeros below. */
  codes: string;
  top: string;
  /** All bits but the highest, with other bits above them; and the highest bit alone. */
  low: string;
  high: string;
}

export interface Strips {
  /** Strips per grid, and words per strip. */
  count: number;
  words: number;
  /** Loads of line `line` in strip `strip` (vec4u each) of the grid that begins at byte `at`. */
  load(at: string, line: string, strip: string): string[];
  /** XOR masks per vector that convert two's complement codes to offset binary, and back. */
  flips: readonly (string | undefined)[];
  /** Word n of vectors ID0, ID1, ...: codes 4 n to 4 n + 3 of the strip. */
  word(id: string, n: number): Word;
  /** For strips read in steps of four words: shifts the codes of the next step to where the first were. */
  step?(id: string): string;
}

const mask = (bits: number, shift = 0) => repeatByte((2 ** bits - 1) << shift);
const shifted = (word: string, by: number) =>
  by === 0 ? word : by > 0 ? `(${word} >> ${by}u)` : `(${word} << ${-by}u)`;
const vector = (at: string, strip: string, lines: number, line: string) =>
  `pool4[(${at}) / 16 + (${strip}) * ${lines} + ${line}]`;

/**
 * Strips of a grid with `lines` lines of `length` codes; undefined if lines are not whole strips. The grid must begin
 * at a multiple of 16 bytes. `steps`: one vector per plane, read in steps.
 */
export function stripsOf(bits: number, length: number, lines: number, steps = false): Strips | undefined {
  if (bits === 3) return threeBits(length, lines, steps);
  const count = (length * bits) / 128;
  if (![1, 2, 4].includes(bits) || count % 1 !== 0) return undefined;
  return {
    count,
    words: 32 / bits,
    load: (at, line, strip) => [vector(at, strip, lines, line)],
    flips: [{ 1: '0xffffffffu', 2: '0xaaaaaaaau', 4: '0x88888888u' }[bits]],
    word: (id, n) => {
      const word = `${id}0[${n & 3}]`;
      const shift = bits * (n >> 2);
      return {
        codes: `(${shifted(word, shift)} & ${mask(bits)})`,
        top: `(${shifted(word, shift + bits - 8)} & ${mask(bits, 8 - bits)})`,
        low: shifted(word, shift),
        high: `(${shifted(word, shift + bits - 1)} & ${mask(1)})`,
      };
    },
    step: steps ? id => `${id}0 >>= vec4u(${bits});` : undefined,
  };
}

/** Two bits in one plane, the third in another: a strip of the one-bit plane serves two strips of the two-bit plane. */
function threeBits(length: number, lines: number, steps: boolean): Strips | undefined {
  if (length % 128 !== 0) return undefined;
  // Vectors of the two-bit plane per strip.
  const twoBitVectors = steps ? 1 : 2;
  const oneBitVector = (at: string, line: string, strip: string) =>
    vector(`(${at}) + ${(lines * length) / 4}`, strip, lines, line);
  return {
    count: length / 64 / twoBitVectors,
    words: 16 * twoBitVectors,
    load: (at, line, strip) =>
      steps
        ? [vector(at, strip, lines, line), `(${oneBitVector(at, line, `(${strip}) / 2`)} >> vec4u((${strip}) % 2 * 4))`]
        : [
            vector(at, `2 * (${strip})`, lines, line),
            vector(at, `2 * (${strip}) + 1`, lines, line),
            oneBitVector(at, line, strip),
          ],
    flips: [...Array(twoBitVectors), '0xffffffffu'],
    word: (id, n) => {
      const [m, w] = [n >> 2, n & 3];
      const [two, one] = [`${id}${m >> 2}[${w}]`, `${id}${twoBitVectors}[${w}]`];
      const low = shifted(two, 2 * (m & 3));
      const both = `((${low} & ${mask(2)}) | (${shifted(one, m - 2)} & ${mask(1, 2)}))`;
      return { codes: both, top: `(${both} << 5u)`, low, high: `(${shifted(one, m)} & ${mask(1)})` };
    },
    step: steps ? id => `${id}0 >>= vec4u(2); ${id}1 >>= vec4u(1);` : undefined,
  };
}

/** Index of row t in a strip: codec/pack.ts interleaves rows in groups of four. */
export const rowIndexInStrip = (t: string, tokens: number): string =>
  tokens % 4 === 0 ? `((${t}) % 4 * ${tokens / 4} + (${t}) / 4)` : t;
