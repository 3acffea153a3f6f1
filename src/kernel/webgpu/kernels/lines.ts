/**
 * Lines of narrow codes (codec/pack.ts) as words of four bytes each. A line, a row of dims or a column of tokens, is cut
 * into four parts of whole words, one a lane; word m of a part holds four neighbouring codes, and `place` says which part
 * and word has codes 4 n to 4 n + 3, so that what they meet (queries, weights) can be laid out alike.
 */
import { each } from './text.ts';

export const PARTS = 4;

export interface Line {
  /** Bytes of a line's first plane, and words of four codes a part. */
  bytes: number;
  words: number;
  /** Loads part `part` of line `line` of the grid that begins at byte `at`, as constants that begin with `id`. */
  load(id: string, at: string, line: string, part: string): string;
  /** Codes of word m, a byte each; or at the top of their bytes, which are otherwise zero. */
  codes(id: string, m: number): string;
  top(id: string, m: number): string;
  /** part x words + m of codes 4 n to 4 n + 3. */
  place(n: string): string;
}

const mask = (bits: number, shift = 0) => `0x${((2 ** bits - 1) << shift).toString(16).padStart(2, '0').repeat(4)}u`;

/** A grid of `lines` lines of `length` codes, if its lines can be cut so. It must begin at a multiple of 16 bytes. */
export function lineOf(bits: number, length: number, lines: number): Line | undefined {
  if (bits === 3) return threeBits(length, lines);
  const bytes = (length * bits) / 8;
  if (![1, 2, 4].includes(bits) || bytes % 16 !== 0) return undefined;
  const taken = bytes / 16;
  const codes = 8 / bits;
  const word = (id: string, m: number) => {
    const w = Math.floor(m / codes);
    if (taken % 4 === 0) return `${id}${w >> 2}[${w & 3}]`;
    return taken === 2 ? `${id}0[${w}]` : `${id}${w}`;
  };
  return {
    bytes,
    words: length / 16,
    load(id, at, line, part) {
      const from = (unit: number) => `((${at}) + (${line}) * ${bytes} + (${part}) * ${4 * taken}) / ${unit}`;
      if (taken % 4 === 0) return each(taken / 4, v => `let ${id}${v} = pool4[${from(16)} + ${v}];`, ' ');
      if (taken === 2) return `let ${id}0 = pool2[${from(8)}];`;
      return each(taken, w => `let ${id}${w} = pool[${from(4)} + ${w}];`, ' ');
    },
    codes(id, m) {
      const shift = bits * (m % codes);
      return shift === 0 ? `(${word(id, m)} & ${mask(bits)})` : `((${word(id, m)} >> ${shift}u) & ${mask(bits)})`;
    },
    top(id, m) {
      const shift = 8 - bits * ((m % codes) + 1);
      const kept = mask(bits, 8 - bits);
      return shift === 0 ? `(${word(id, m)} & ${kept})` : `((${word(id, m)} << ${shift}u) & ${kept})`;
    },
    place(n) {
      // Codes 4 n on: block of 16 bytes, which of a byte's codes, word of the block.
      const [block, k, w] = [`(${n}) / ${32 / bits}`, `((${n}) % ${32 / bits}) / 4`, `(${n}) % 4`];
      const x = `(4 * (${block}) + ${w})`;
      return `((${x} / ${taken}) * ${length / 16} + (${x} % ${taken}) * ${codes} + ${k})`;
    },
  };
}

/** Two bits in one plane, the third in another: a part has the same word of every block of both. */
function threeBits(length: number, lines: number): Line | undefined {
  if (length % 128 !== 0) return undefined;
  const low = length / 64;
  const high = length / 128;
  const second = (lines * length) / 4;
  const bits = (id: string, m: number) => `((${id}${m >> 2} >> ${2 * (m & 3)}u) & 0x03030303u)`;
  const third = (id: string, m: number) => {
    const shift = (m & 7) - 2;
    const word = `${id}h${m >> 3}`;
    return `(${shift < 0 ? `(${word} << ${-shift}u)` : `(${word} >> ${shift}u)`} & 0x04040404u)`;
  };
  return {
    bytes: length / 4,
    words: length / 16,
    load: (id, at, line, part) => `
      ${each(low, b => `let ${id}${b} = pool[((${at}) + (${line}) * ${length / 4}) / 4 + ${4 * b} + ${part}];`, ' ')}
      ${each(high, b => `let ${id}h${b} = pool[((${at}) + ${second} + (${line}) * ${length / 8}) / 4 + ${4 * b} + ${part}];`, ' ')}`,
    codes: (id, m) => `(${bits(id, m)} | ${third(id, m)})`,
    top: (id, m) => `((${bits(id, m)} | ${third(id, m)}) << 5u)`,
    place: n => `(((${n}) % 4) * ${length / 16} + (${n}) / 4)`,
  };
}

/** Words in workgroup memory that lanes read `per` at a time: as vectors where that comes out even. */
export interface Words {
  declare: string;
  put(at: string, word: string): string;
  /** Constants that begin with `id`, from word `at` on. */
  load(id: string, at: string): string;
  word(id: string, m: number): string;
}

export function sharedWords(name: string, count: number, per: number): Words {
  if (per % 4 !== 0)
    return {
      declare: `var<workgroup> ${name}: array<u32, ${count}>;`,
      put: (at, word) => `${name}[${at}] = ${word};`,
      load: (id, at) => each(per, m => `let ${id}${m} = ${name}[${at} + ${m}];`, ' '),
      word: (id, m) => `${id}${m}`,
    };
  return {
    declare: `var<workgroup> ${name}: array<vec4u, ${count / 4}>;`,
    put: (at, word) => `{ let to = ${at}; ${name}[to / 4][to % 4] = ${word}; }`,
    load: (id, at) => each(per / 4, v => `let ${id}${v} = ${name}[(${at}) / 4 + ${v}];`, ' '),
    word: (id, m) => `${id}${m >> 2}[${m & 3}]`,
  };
}
