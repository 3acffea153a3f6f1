/**
 * Control tokens that a chat template wrote, told apart from text that only looks like them. The template's own strings
 * carry a mark on each side of every control token, and in the rendered text only what stands between marks is one. So
 * text from anywhere else stays text, whatever it says, and whatever the template puts beside it.
 *
 * Some templates spell a token around the role: `'<|' + message.role + '|>'`. Such an end and such a beginning of the
 * template's strings carry the role mark, and make a token if a role stands between them.
 */
import { type Fragment, type SpecialToken, specialSplitter } from './special.ts';

/** Three characters that no input has. */
export interface Marks {
  open: string;
  close: string;
  role: string;
}

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool', 'function', 'observation', 'environment', 'ipython'];

export interface Marker {
  /** One of the template's own strings, with its control tokens marked. */
  mark(text: string, marks: Marks): string;
  /** A rendered text, cut at its marked control tokens (and at words of the vocabulary that are read anywhere). */
  split(text: string, marks: Marks): Fragment[];
}

export function createMarker(controls: readonly SpecialToken[], words: readonly SpecialToken[]): Marker {
  const splitAll = specialSplitter([...words, ...controls]);
  const splitWords = specialSplitter(words);
  const byId = new Map([...words, ...controls].map(token => [token.id, token]));
  const controlOf = new Map(controls.map(token => [token.text, token]));
  const frames = controls.flatMap(({ text }) => roleFrames(text));

  return {
    mark(text, { open, close, role }) {
      const parts = splitAll(text).map(part => {
        if (typeof part === 'string') return part;
        const name = byId.get(part)!.text;
        return controlOf.has(name) ? open + name + close : name;
      });
      const marked = parts.join('');
      const before = frames.some(frame => marked.startsWith(frame.after)) ? role : '';
      const after = frames.some(frame => marked.endsWith(frame.before)) ? role : '';
      return before + marked + after;
    },

    split(text, { open, close, role }) {
      let whole = text;
      for (const { before, name, after } of frames)
        whole = whole.replaceAll(before + role + name + role + after, open + before + name + after + close);
      const fragments: Fragment[] = [];
      let plain = '';
      for (const piece of whole.replaceAll(role, '').split(open)) {
        const end = piece.indexOf(close);
        const token = controlOf.get(piece.slice(0, Math.max(0, end)));
        if (token) {
          fragments.push(...splitWords(plain), token.id);
          plain = piece.slice(end + 1);
          if (token.eatsSpaceAfter) plain = plain.replace(/^[ \t-\r]+/, '');
        } else plain += piece;
        plain = plain.replaceAll(close, '');
      }
      fragments.push(...splitWords(plain));
      return fragments;
    },
  };
}

/** The ways in which a token has a role inside and punctuation behind it. */
function roleFrames(token: string): { before: string; name: string; after: string }[] {
  const frames = ROLES.map(name => {
    const [before, ...after] = token.split(name);
    return { before, name, after: after.join(name) };
  });
  return frames.filter(({ before, after }) => before !== '' && /^[^\p{L}\p{N}]+$/u.test(after));
}
