/**
 * Bracketed paste: a terminal that is asked for it (`\x1b[?2004h`) puts marks around what is pasted, so that a new line
 * in it can be told from Enter. `createPasteSplitter` takes the marks out, however the bytes were cut into chunks.
 *
 * Readline edits one line. A pasted text stands in it with a visible sign for each new line and tab, and gets them back
 * when the line is read.
 */
export const PASTE_ON = '\x1b[?2004h';
export const PASTE_OFF = '\x1b[?2004l';

const BEGIN = '\x1b[200~';
const END = '\x1b[201~';

/** What was typed, or what was pasted. */
export type Piece = { keys: string } | { paste: string };

export interface PasteSplitter {
  push(text: string): Piece[];
  /** Whether text is held back that may be the start of a mark. */
  readonly holds: boolean;
  /** No more is coming soon: it was no mark. What is being pasted is still held. */
  flush(): Piece[];
}

export function createPasteSplitter(): PasteSplitter {
  let rest = '';
  let pasted: string | undefined;
  const keysOf = (keys: string): Piece[] => (keys === '' ? [] : [{ keys }]);
  return {
    get holds() {
      return pasted === undefined && rest !== '';
    },
    push(text) {
      const pieces: Piece[] = [];
      rest += text;
      for (;;) {
        const mark = pasted === undefined ? BEGIN : END;
        const at = rest.indexOf(mark);
        const ready = rest.slice(0, at < 0 ? rest.length - partial(rest, mark) : at);
        if (pasted === undefined) pieces.push(...keysOf(ready));
        else pasted += ready;
        rest = rest.slice(ready.length);
        if (at < 0) return pieces;
        rest = rest.slice(mark.length);
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

/** How many characters at the end of a text are the start of a mark. */
function partial(text: string, mark: string): number {
  for (let length = Math.min(text.length, mark.length - 1); length > 0; length--)
    if (text.endsWith(mark.slice(0, length))) return length;
  return 0;
}

const SIGNS: Record<string, string> = { '\n': '⏎', '\t': '⇥' };
const CHARACTERS = Object.fromEntries(Object.entries(SIGNS).map(([character, sign]) => [sign, character]));
/** Behind a sign that was in the text itself: it takes no room, and asks for the sign's plain form, which it has. */
const OWN = '\ufe0e';

/** A pasted text as one line; control characters, of which a terminal would obey some, are left out. */
export function toLine(pasted: string): string {
  return pasted
    .replace(/\r\n?/g, '\n')
    .replace(/[⏎⇥]/g, sign => sign + OWN)
    .replace(/[\n\t]/g, character => SIGNS[character])
    .replace(/\p{Cc}/gu, '');
}

/** The text that a line stands for. */
export function fromLine(line: string): string {
  return line.replace(/([⏎⇥])(\ufe0e?)/g, (_, sign, own) => (own ? sign : CHARACTERS[sign]));
}
