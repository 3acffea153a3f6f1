/**
 * Stop strings in a stream of text. Text that might be the start of a stop string is held back until it is known not
 * to be, so that no part of a stop string ever leaves, however the text was cut into pieces.
 */
import { InputError } from '../errors.ts';

export interface StopMatcher {
  /** Adds text; returns what may be shown, and the stop string if one was completed. After that nothing more comes. */
  push(text: string): { text: string; stop?: string };
  /** Ends the text: what was held back was no stop string after all. */
  end(): string;
}

export function createStopMatcher(stops: readonly string[]): StopMatcher {
  if (stops.includes('')) throw new InputError('A stop string is empty; leave it out, or give it some text.');
  // The longest first: where two end at the same character, the one that starts earlier is the stop.
  const patterns = [...new Set(stops)]
    .sort((a, b) => b.length - a.length)
    .map(text => ({ text, back: fallback(text) }));
  const matched = patterns.map(() => 0);
  let held = '';
  let stopped = false;

  return {
    push(piece) {
      if (stopped) return { text: '' };
      const text = held + piece;
      for (let i = held.length; i < text.length; i++) {
        for (let p = 0; p < patterns.length; p++) {
          const pattern = patterns[p]!;
          matched[p] = advance(pattern, matched[p]!, text.charCodeAt(i));
          if (matched[p] !== pattern.text.length) continue;
          stopped = true;
          held = '';
          return { text: text.slice(0, i + 1 - pattern.text.length), stop: pattern.text };
        }
      }
      const keep = Math.max(0, ...matched);
      held = text.slice(text.length - keep);
      return { text: text.slice(0, text.length - keep) };
    },

    end() {
      const rest = held;
      held = '';
      stopped = true;
      return rest;
    },
  };
}

interface Pattern {
  text: string;
  back: Int32Array;
}

/** Knuth, Morris and Pratt: how many characters of the pattern the text now ends with. */
function advance({ text, back }: Pattern, matched: number, code: number): number {
  let length = matched;
  while (length > 0 && text.charCodeAt(length) !== code) length = back[length - 1]!;
  return text.charCodeAt(length) === code ? length + 1 : 0;
}

/** For each prefix, the length of its longest proper prefix that is also its end. */
function fallback(text: string): Int32Array {
  const back = new Int32Array(text.length);
  for (let i = 1; i < text.length; i++) back[i] = advance({ text, back }, back[i - 1]!, text.charCodeAt(i));
  return back;
}
