/** What a kernel declares at module scope: kernels are composed of fragments of text, so the whole text is where to look. */

export interface Declaration {
  kind: string;
  name: string;
  /** Of a variable. */
  type?: string;
  /** Of a struct. */
  members?: string;
}

const PATTERN = /\b(fn|struct|const|var<\w+>)\s+(\w+)(?:\s*:\s*([^;]+);|\s*\{([^}]*)\})?/g;

export const declarationsOf = (text: string): Declaration[] =>
  [...text.matchAll(PATTERN)].map(([, kind, name, type, members]) => ({ kind, name, type, members }));
