/**
 * Finds special tokens that are spelled out in a text. As in llama.cpp, longer tokens win over shorter ones that overlap
 * them, then the earlier one wins.
 */
export interface SpecialToken {
  id: number;
  text: string;
  /** The white space after the token belongs to it. */
  rstrip?: boolean;
}

/** Plain text, or the id of a special token. */
export type TextOrId = string | number;

interface TrieNode {
  children: Map<number, TrieNode>;
  token?: SpecialToken;
}

/** Returns a function that splits a text into plain strings and the ids of the special tokens between them. */
export function createSpecialTokenSplitter(tokens: Iterable<SpecialToken>): (text: string) => TextOrId[] {
  const root: TrieNode = { children: new Map() };
  for (const token of tokens) {
    let node = root;
    for (let i = 0; i < token.text.length; i++) {
      const code = token.text.charCodeAt(i);
      let child = node.children.get(code);
      if (!child) {
        child = { children: new Map() };
        node.children.set(code, child);
      }
      node = child;
    }
    if (node !== root) node.token = token;
  }

  return text => {
    const matches: { start: number; token: SpecialToken }[] = [];
    for (let start = 0; start < text.length; start++) {
      let node = root.children.get(text.charCodeAt(start));
      for (let i = start + 1; node; node = node.children.get(text.charCodeAt(i++))) {
        if (node.token) matches.push({ start, token: node.token });
      }
    }
    if (matches.length === 0) return text === '' ? [] : [text];

    matches.sort((a, b) => b.token.text.length - a.token.text.length || a.start - b.start);
    // Tokens that are accepted already are at least as long as this one, so checking its two ends is enough.
    const taken = new Uint8Array(text.length);
    const accepted = matches.filter(({ start, token: { text: word } }) => {
      if (taken[start] || taken[start + word.length - 1]) return false;
      taken.fill(1, start, start + word.length);
      return true;
    });
    accepted.sort((a, b) => a.start - b.start);

    const pieces: TextOrId[] = [];
    let end = 0;
    for (const { start, token } of accepted) {
      if (start > end) pieces.push(text.slice(end, start));
      pieces.push(token.id);
      end = start + token.text.length;
      if (token.rstrip) while (/[ \t-\r]/.test(text.charAt(end))) end++;
    }
    if (end < text.length) pieces.push(text.slice(end));
    return pieces;
  };
}
