/**
 * Strips of narrow codes (codec/pack.ts): of every line, a row of dims or a column of tokens, the same 16 bytes. Words hold
 * four neighbouring codes each, a byte each after a shift. Of 3 bits, planes of two bits and of one, a strip has 48 bytes.
 */

import { fours } from './text.ts';

/** Four neighbouring codes of a line. */
export interface Word {
  /** A byte each; or at the top of their bytes, which are otherwise zero. */
  codes: string;
  top: string;
  /** All bits but the highest, with others above them; and the highest by itself. */
  low: string;
  high: string;
}

export interface Strips {
  /** Strips of a grid, and words of a strip. */
  count: number;
  words: number;
  /** The vectors (vec4u) of the line at `place` in strip `strip` of the grid that begins at byte `at`. */
  load(at: string, place: string, strip: string): string[];
  /** What a line's vectors are turned by to make of two's complement codes that count from the least, and the reverse. */
  flips: readonly (string | undefined)[];
  /** Word n of vectors ID0, ID1 and so on: codes 4 n to 4 n + 3, from the strip's first on. */
  word(id: string, n: number): Word;
  /** Of strips that are taken in steps of four words: moves the codes of the next step to where those of the first are. */
  step?(id: string): string;
}

const mask = (bits: number, shift = 0) => fours((2 ** bits - 1) << shift);
const shifted = (word: string, by: number) =>
  by === 0 ? word : by > 0 ? `(${word} >> ${by}u)` : `(${word} << ${-by}u)`;
const vector = (at: string, strip: string, lines: number, place: string) =>
  `pool4[(${at}) / 16 + (${strip}) * ${lines} + ${place}]`;

/**
 * A grid of `lines` lines of `length` codes, if its lines are whole blocks. It must begin at a multiple of 16 bytes. Strips that
 * are taken in steps have one vector a plane.
 */
export function stripsOf(bits: number, length: number, lines: number, steps = false): Strips | undefined {
  if (bits === 3) return threeBits(length, lines, steps);
  const count = (length * bits) / 128;
  if (![1, 2, 4].includes(bits) || count % 1 !== 0) return undefined;
  return {
    count,
    words: 32 / bits,
    load: (at, place, strip) => [vector(at, strip, lines, place)],
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

/** Two bits in one plane, the third in another, whose block serves two of the first's. */
function threeBits(length: number, lines: number, steps: boolean): Strips | undefined {
  if (length % 128 !== 0) return undefined;
  // Vectors of the first plane in a strip.
  const twos = steps ? 1 : 2;
  const second = (at: string, place: string, strip: string) =>
    vector(`(${at}) + ${(lines * length) / 4}`, strip, lines, place);
  return {
    count: length / 64 / twos,
    words: 16 * twos,
    load: (at, place, strip) =>
      steps
        ? [vector(at, strip, lines, place), `(${second(at, place, `(${strip}) / 2`)} >> vec4u((${strip}) % 2 * 4))`]
        : [
            vector(at, `2 * (${strip})`, lines, place),
            vector(at, `2 * (${strip}) + 1`, lines, place),
            second(at, place, strip),
          ],
    flips: [...Array(twos), '0xffffffffu'],
    word: (id, n) => {
      const [m, w] = [n >> 2, n & 3];
      const [two, one] = [`${id}${m >> 2}[${w}]`, `${id}${twos}[${w}]`];
      const low = shifted(two, 2 * (m & 3));
      const both = `((${low} & ${mask(2)}) | (${shifted(one, m - 2)} & ${mask(1, 2)}))`;
      return { codes: both, top: `(${both} << 5u)`, low, high: `(${shifted(one, m)} & ${mask(1)})` };
    },
    step: steps ? id => `${id}0 >>= vec4u(2); ${id}1 >>= vec4u(1);` : undefined,
  };
}

/** Where token t of a strip of rows lies (codec/pack.ts deals them by fours). */
export const placeOf = (t: string, tokens: number): string =>
  tokens % 4 === 0 ? `((${t}) % 4 * ${tokens / 4} + (${t}) / 4)` : t;
