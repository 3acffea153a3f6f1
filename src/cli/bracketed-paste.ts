/**
 * Bracketed paste: after `\x1b[?2004h` a terminal puts markers around pasted text, so that a newline in it can be told
 * from Enter. `createPasteSplitter` removes the markers; they may be split across chunks.
 *
 * Readline edits a single line, so newlines and tabs of a paste are shown as visible symbols and restored when the line
 * is read.
 */
export const PASTE_ON = '\x1b[?2004h';
export const PASTE_OFF = '\x1b[?2004l';

const BEGIN = '\x1b[200~';
const END = '\x1b[201~';

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
  let pasted: string | undefined;
  const keysOf = (keys: string): InputPiece[] => (keys === '' ? [] : [{ keys }]);
  return {
    get hasPartialMarker() {
      return pasted === undefined && rest !== '';
    },
    push(text) {
      const pieces: InputPiece[] = [];
      rest += text;
      for (;;) {
        const marker = pasted === undefined ? BEGIN : END;
        const index = rest.indexOf(marker);
        const ready = rest.slice(0, index < 0 ? rest.length - partialMarkerLength(rest, marker) : index);
        if (pasted === undefined) pieces.push(...keysOf(ready));
        else pasted += ready;
        rest = rest.slice(ready.length);
        if (index < 0) return pieces;
        rest = rest.slice(marker.length);
        if (pasted === undefined) pasted = '';
        else {
          pieces.push({ paste: pasted });
          pasted = undefined;
        }
      }
    },
    flush() {
      if (pasted !== undefined) return [];
      const keys = rest;
      rest = '';
      return keysOf(keys);
    },
  };
}

/** The length of the longest suffix of `text` that is a proper prefix of `marker`. */
function partialMarkerLength(text: string, marker: string): number {
  for (let length = Math.min(text.length, marker.length - 1); length > 0; length--)
    if (text.endsWith(marker.slice(0, length))) return length;
  return 0;
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
