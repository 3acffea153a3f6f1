/**
 * Bracketed paste: after `\x1b[?2004h` a terminal puts markers around pasted text, so that a newline in it can be told
 * from Enter. `createPasteSplitter` removes the markers; they may be split across chunks.
 *
 * Readline edits a single line, so newlines and tabs of a paste are shown as visible symbols and restored when the line
 * is read.
 */
export const PASTE_ON = '\x1b[?2004h';
export const PASTE_OFF = '\x1b[?2004l';

const ESCAPE = '\x1b';
const BEGIN = `${ESCAPE}[200~`;
const PASTE = new RegExp(`${ESCAPE}\\[200~(.*?)${ESCAPE}\\[201~`, 's');
/** The end of a text that is a paste without its end, or may become the marker of one. */
const UNFINISHED = new RegExp(`${ESCAPE}\\[200~.*$|${ESCAPE}(\\[(2(00?)?)?)?$`, 's');

/** Typed keys, or pasted text. */
export type InputPiece = { keys: string } | { paste: string };

export interface PasteSplitter {
  push(text: string): InputPiece[];
  /** Whether text is held back because it may be the start of a marker. */
  readonly hasPartialMarker: boolean;
  /** Returns the held text as keys: it was not a marker. An unfinished paste stays held. */
  flush(): InputPiece[];
}

export function createPasteSplitter(): PasteSplitter {
  let rest = '';
  const keysOf = (keys: string): InputPiece[] => (keys === '' ? [] : [{ keys }]);
  const hasPartialMarker = () => rest !== '' && !rest.startsWith(BEGIN);
  return {
    get hasPartialMarker() {
      return hasPartialMarker();
    },
    push(text) {
      // Keys and pastes take turns.
      const parts = (rest + text).split(PASTE);
      const last = parts.length - 1;
      rest = parts[last].match(UNFINISHED)?.[0] ?? '';
      parts[last] = parts[last].slice(0, parts[last].length - rest.length);
      return parts.flatMap((part, i) => (i % 2 === 1 ? [{ paste: part }] : keysOf(part)));
    },
    flush() {
      if (!hasPartialMarker()) return [];
      const keys = rest;
      rest = '';
      return keysOf(keys);
    },
  };
}

const SYMBOLS: Record<string, string> = { '\n': '⏎', '\t': '⇥' };
const CHARACTERS = Object.fromEntries(Object.entries(SYMBOLS).map(([character, symbol]) => [symbol, character]));
/** Follows a symbol that was in the pasted text itself: a variation selector, which has no width. */
const LITERAL_SELECTOR = '\ufe0e';

/** Pasted text as one line. Control characters are removed: the terminal would interpret some. */
export function encodePaste(pasted: string): string {
  return pasted
    .replace(/\r\n?/g, '\n')
    .replace(/[⏎⇥]/g, symbol => symbol + LITERAL_SELECTOR)
    .replace(/[\n\t]/g, character => SYMBOLS[character])
    .replace(/\p{Cc}/gu, '');
}

/** The inverse of `encodePaste`. */
export function decodeLine(line: string): string {
  return line.replace(/([⏎⇥])(\ufe0e?)/g, (_, symbol, literal) => (literal ? symbol : CHARACTERS[symbol]));
}
