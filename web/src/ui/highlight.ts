/** Colors of source code, by highlight.js. Loaded when a code block in one of its languages is complete. */
import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import python from 'highlight.js/lib/languages/python';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';
import { type ComponentChild, h } from 'preact';

const languages = {
  bash,
  c,
  cpp,
  csharp,
  css,
  diff,
  go,
  java,
  javascript,
  json,
  python,
  rust,
  sql,
  typescript,
  xml,
  yaml,
};
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);

/** A piece of code: text, or a part with a scope, such as `string` or `title.function`. */
type Piece = string | { scope?: string; children: Piece[] };

/** The code as elements, from the library's tree: nothing passes through HTML. */
export function highlight(code: string, language: string): ComponentChild {
  const { _emitter } = hljs.highlight(code, { language, ignoreIllegals: true });
  const { root } = _emitter as unknown as { root: Piece };
  return toElement(root);
}

function toElement(piece: Piece): ComponentChild {
  if (typeof piece === 'string') return piece;
  const [scope] = piece.scope?.split('.') ?? [];
  return h('span', scope ? { class: `code-${scope}` } : null, piece.children.map(toElement));
}
