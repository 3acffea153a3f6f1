/**
 * Finds special tokens written out in a text. As in llama.cpp, longer tokens win over shorter ones wherever they
 * overlap, then the earlier place wins.
 */
export interface SpecialToken {
  id: number;
  text: string;
  /** The white space after it belongs to the token. */
  eatsSpaceAfter?: boolean;
}

export type Fragment = string | number;

interface Node {
  next: Map<number, Node>;
  token?: SpecialToken;
}

/** Returns a function that cuts a text into plain strings and the ids of the special tokens between them. */
export function specialSplitter(tokens: Iterable<SpecialToken>): (text: string) => Fragment[] {
  const root: Node = { next: new Map() };
  for (const token of tokens) {
    let node = root;
    for (let i = 0; i < token.text.length; i++) {
      const code = token.text.charCodeAt(i);
      let child = node.next.get(code);
      if (!child) {
        child = { next: new Map() };
        node.next.set(code, child);
      }
      node = child;
    }
    if (node !== root) node.token = token;
  }

  return text => {
    const found: { at: number; token: SpecialToken }[] = [];
    for (let at = 0; at < text.length; at++) {
      let node = root.next.get(text.charCodeAt(at));
      for (let i = at + 1; node; node = node.next.get(text.charCodeAt(i++))) {
        if (node.token) found.push({ at, token: node.token });
      }
    }
    if (found.length === 0) return text === '' ? [] : [text];

    found.sort((a, b) => b.token.text.length - a.token.text.length || a.at - b.at);
    // What is taken already is at least as long as the candidate, so looking at the candidate's two ends is enough.
    const taken = new Uint8Array(text.length);
    const kept = found.filter(({ at, token: { text: word } }) => {
      if (taken[at] || taken[at + word.length - 1]) return false;
      taken.fill(1, at, at + word.length);
      return true;
    });
    kept.sort((a, b) => a.at - b.at);

    const fragments: Fragment[] = [];
    let from = 0;
    for (const { at, token } of kept) {
      if (at > from) fragments.push(text.slice(from, at));
      fragments.push(token.id);
      from = at + token.text.length;
      if (token.eatsSpaceAfter) while (/[ \t-\r]/.test(text.charAt(from))) from++;
    }
    if (from < text.length) fragments.push(text.slice(from));
    return fragments;
  };
}
