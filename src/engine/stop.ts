/**
 * Finds stop strings in streamed text. Text that may be the start of a stop string is held back until that is decided, so
 * that no part of a stop string is ever emitted, however the text was split.
 */
import { InputError } from '../util/errors.ts';

export interface StopMatcher {
  /** Adds text. Returns the text that is final, and the stop string once one is complete; '' after that. */
  push(text: string): { text: string; stop?: string };
  /** Ends the text and returns what was held back. */
  end(): string;
}

export function createStopMatcher(stops: readonly string[]): StopMatcher {
  if (stops.includes('')) throw new InputError('A stop string is empty. Remove it, or give it some text.');
  // Longest first: if two end at the same character, the one that starts earlier wins.
  const patterns = [...new Set(stops)]
    .sort((a, b) => b.length - a.length)
    .map(text => ({ text, failure: failureFunction(text) }));
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
  failure: Int32Array;
}

/** Knuth-Morris-Pratt: the length of the pattern's prefix that the text now ends with. */
function advance({ text, failure }: Pattern, matched: number, code: number): number {
  let length = matched;
  while (length > 0 && text.charCodeAt(length) !== code) length = failure[length - 1]!;
  return text.charCodeAt(length) === code ? length + 1 : 0;
}

/** For each prefix, the length of its longest proper prefix that is also a suffix. */
function failureFunction(text: string): Int32Array {
  const failure = new Int32Array(text.length);
  for (let i = 1; i < text.length; i++) failure[i] = advance({ text, failure }, failure[i - 1]!, text.charCodeAt(i));
  return failure;
}
