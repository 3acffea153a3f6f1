/**
 * A lane's lines, strip by strip: while one strip is multiplied the next is on its way. The loop shall stay a loop, since
 * unrolled a compiler reads all strips at once and has no registers left; so how often it runs depends on a parameter. Where
 * much is done with a word (tables), the steps of a strip are a loop too, so that the text stays short.
 */

import type { Strips, Word } from '../strips.ts';
import { each } from '../text.ts';

export interface Lines {
  strips: Strips;
  /** What names begin with. */
  id: string;
  /** Where the grid begins, and where each of the lane's lines lies in a strip. */
  at: string;
  places: readonly string[];
}

/** What is read of a strip. */
const loads = ({ strips, id, at, places }: Lines, strip: string) =>
  places.flatMap((place, l) =>
    strips.load(at, place, strip).map((text, vector) => ({ name: `${id}${l}_${vector}`, vector, text })),
  );

/** Asks for the first strip: as early as can be. */
export const askFor = (lines: Lines): string =>
  loads(lines, '0u')
    .map(({ name, text }) => `var next_${name} = ${text};`)
    .join('\n');

export interface Walk {
  /** Whether the first strip was asked for before. */
  asked?: boolean;
  /** Whether two's complement is turned into codes that count from the least, or the reverse. */
  flipped?: boolean;
}

/** Text for four codes of every line, and for the number of that word in a line. */
export function walk(
  lines: Lines,
  text: (number: string, words: Word[]) => string,
  { asked = false, flipped = false }: Walk = {},
): string {
  const { strips, id, places } = lines;
  const { count, flips, step } = strips;
  const turn = (vector: number) => (flipped && flips[vector] ? ` ^ vec4u(${flips[vector]})` : '');
  // Said this way a compiler knows that words are within their array, and that the others lie right behind the first.
  const strip = Number.isInteger(Math.log2(count)) ? `(strip % ${count})` : 'strip';
  const own = loads(lines, `min(strip + 1, ${count - 1}u)`);
  const next = count > 1 ? own.map(({ name, text }) => `next_${name} = ${text};`).join('\n') : '';
  const wordsFrom = (first: string, some: number) =>
    each(some, n => {
      const words = places.map((_, l) => strips.word(`${id}${l}_`, n));
      return `{ ${text(`${first} + ${n}`, words)} }`;
    });
  const first = `${strip} * ${strips.words}`;
  const steps = strips.words / 4;
  const all = step
    ? `for (var step = 0u; step < ${steps} * p.four / 4; step++) {
        ${wordsFrom(`${first} + step % ${steps} * 4`, 4)}
        ${places.map((_, l) => step(`${id}${l}_`)).join(' ')}
      }`
    : wordsFrom(first, strips.words);
  return `${asked ? '' : askFor(lines)}
    for (var strip = 0u; strip < ${count} * p.four / 4; strip++) {
      ${own.map(({ name, vector }) => `${step ? 'var' : 'let'} ${name} = next_${name}${turn(vector)};`).join(' ')}
      ${next}
      ${all}
    }`;
}
