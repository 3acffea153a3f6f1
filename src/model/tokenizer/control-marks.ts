/**
 * Tells control tokens that a chat template wrote from user text that only looks like them. Every control token in the
 * template's own string literals is put between two marker characters, and in the rendered text only what stands
 * between markers is parsed as a control token. All other text stays plain text.
 *
 * Some templates build a token around the role: `'<|' + message.role + '|>'`. Literals that end or begin like such a
 * token get a role mark; a role name between two role marks makes the token.
 */
import { createSpecialTokenSplitter, type SpecialToken, type TextOrId } from './special-tokens.ts';

/** Three characters that do not occur in the input. */
export interface ControlMarks {
  open: string;
  close: string;
  role: string;
}

const ROLES = ['system', 'developer', 'user', 'assistant', 'tool', 'function', 'observation', 'environment', 'ipython'];

export interface ControlMarker {
  /** Marks the control tokens in one of the template's string literals. */
  mark(literal: string, marks: ControlMarks): string;
  /** Splits a rendered text at its marked control tokens, and at user-defined tokens, which are parsed anywhere. */
  split(text: string, marks: ControlMarks): TextOrId[];
}

export function createControlMarker(
  controls: readonly SpecialToken[],
  userDefined: readonly SpecialToken[],
): ControlMarker {
  const splitAll = createSpecialTokenSplitter([...userDefined, ...controls]);
  const splitUserDefined = createSpecialTokenSplitter(userDefined);
  const textById = new Map([...userDefined, ...controls].map(token => [token.id, token.text]));
  const controlByText = new Map(controls.map(token => [token.text, token]));
  const roleTokens = controls.flatMap(({ text }) => splitAtRoles(text));

  return {
    mark(literal, { open, close, role }) {
      const pieces = splitAll(literal).map(piece => {
        if (typeof piece === 'string') return piece;
        const text = textById.get(piece) ?? '';
        return controlByText.has(text) ? open + text + close : text;
      });
      const marked = pieces.join('');
      const before = roleTokens.some(({ suffix }) => marked.startsWith(suffix)) ? role : '';
      const after = roleTokens.some(({ prefix }) => marked.endsWith(prefix)) ? role : '';
      return before + marked + after;
    },

    split(text, { open, close, role }) {
      let marked = text;
      for (const { prefix, name, suffix } of roleTokens)
        marked = marked.replaceAll(prefix + role + name + role + suffix, open + prefix + name + suffix + close);
      const pieces: TextOrId[] = [];
      let plain = '';
      for (const part of marked.replaceAll(role, '').split(open)) {
        const end = part.indexOf(close);
        const token = controlByText.get(part.slice(0, Math.max(0, end)));
        if (token) {
          for (const piece of splitUserDefined(plain)) pieces.push(piece);
          pieces.push(token.id);
          plain = part.slice(end + 1);
          if (token.rstrip) plain = plain.replace(/^[ \t-\r]+/, '');
        } else plain += part;
        plain = plain.replaceAll(close, '');
      }
      for (const piece of splitUserDefined(plain)) pieces.push(piece);
      return pieces;
    },
  };
}

/** The ways to read a token as a prefix, a role name, and a suffix of punctuation. */
function splitAtRoles(token: string): { prefix: string; name: string; suffix: string }[] {
  const splits = ROLES.map(name => {
    const [prefix, ...rest] = token.split(name);
    return { prefix, name, suffix: rest.join(name) };
  });
  return splits.filter(({ prefix, suffix }) => prefix !== '' && /^[^\p{L}\p{N}]+$/u.test(suffix));
}
