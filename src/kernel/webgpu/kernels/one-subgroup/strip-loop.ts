/**
 * Loops over the strips of a lane's lines; the next strip is prefetched while one is multiplied. The loop must stay a
 * loop: unrolled, compilers load all strips at once and run out of registers, so its bound depends on a uniform
 * (`opaque`). Where a word takes much code (code books), the steps of a strip are a loop too, to keep the shader short.
 */

import type { Strips, Word } from '../strips.ts';
import { opaque } from './names.ts';

export interface Lines {
  strips: Strips;
  /** Prefix of variable names. */
  id: string;
  /** Offset of the grid, and the index of each of the lane's lines in a strip. */
  at: string;
  lineIndices: readonly string[];
}

/** Loads of a strip. */
const loads = ({ strips, id, at, lineIndices }: Lines, strip: string) =>
  lineIndices.flatMap((line, l) =>
    strips.load(at, line, strip).map((text, vector) => ({ name: `${id}${l}_${vector}`, vector, text })),
  );

/** Loads the first strip: as early as possible. */
export const prefetchStrip = (lines: Lines): string =>
  loads(lines, '0u')
    .map(({ name, text }) => `var next_${name} = ${text};`)
    .join('\n');

export interface StripLoopOptions {
  /** Whether `prefetchStrip` was emitted before. */
  prefetched?: boolean;
  /** Whether to convert two's complement codes to offset binary, or back. */
  flipSigns?: boolean;
}

/** `text` is emitted for each word of four codes per line, with the index of the word in the line. */
export function stripLoop(
  lines: Lines,
  text: (number: string, words: Word[]) => string,
  { prefetched = false, flipSigns = false }: StripLoopOptions = {},
): string {
  const { strips, id, lineIndices } = lines;
  const { count, flips, step } = strips;
  const flip = (vector: number) => (flipSigns && flips[vector] ? ` ^ vec4u(${flips[vector]})` : '');
  // With the modulo compilers know that words are within their array and contiguous.
  const strip = Number.isInteger(Math.log2(count)) ? `(strip % ${count})` : 'strip';
  const nextLoads = loads(lines, `min(strip + 1, ${count - 1}u)`);
  const next = count > 1 ? nextLoads.map(({ name, text }) => `next_${name} = ${text};`).join('\n') : '';
  const wordsFrom = (first: string, wordCount: number) =>
    Array.from({ length: wordCount }, (_, n) => {
      const words = lineIndices.map((_, l) => strips.word(`${id}${l}_`, n));
      return `{ ${text(`${first} + ${n}`, words)} }`;
    }).join('\n');
  const first = `${strip} * ${strips.words}`;
  const steps = strips.words / 4;
  const all = step
    ? `for (var step = 0u; step < ${opaque(steps)}; step++) {
        ${wordsFrom(`${first} + step % ${steps} * 4`, 4)}
        ${lineIndices.map((_, l) => step(`${id}${l}_`)).join(' ')}
      }`
    : wordsFrom(first, strips.words);
  return `${prefetched ? '' : prefetchStrip(lines)}
    for (var strip = 0u; strip < ${opaque(count)}; strip++) {
      ${nextLoads.map(({ name, vector }) => `${step ? 'var' : 'let'} ${name} = next_${name}${flip(vector)};`).join(' ')}
      ${next}
      ${all}
    }`;
}
