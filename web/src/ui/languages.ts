/** The languages that are highlighted, by the names that models give them. */
const NAMES: Record<string, readonly string[]> = {
  bash: ['bash', 'sh', 'shell', 'zsh', 'console'],
  c: ['c', 'h'],
  cpp: ['cpp', 'c++', 'cc', 'hpp', 'cxx'],
  csharp: ['csharp', 'c#', 'cs'],
  css: ['css'],
  diff: ['diff', 'patch'],
  go: ['go', 'golang'],
  java: ['java'],
  javascript: ['javascript', 'js', 'jsx', 'mjs', 'cjs'],
  json: ['json', 'jsonc', 'json5'],
  python: ['python', 'py', 'python3'],
  rust: ['rust', 'rs'],
  sql: ['sql', 'postgresql', 'sqlite', 'mysql'],
  typescript: ['typescript', 'ts', 'tsx'],
  xml: ['xml', 'html', 'svg', 'xhtml'],
  yaml: ['yaml', 'yml'],
};

const LANGUAGES = new Map(Object.entries(NAMES).flatMap(([language, names]) => names.map(name => [name, language])));

/** The language of a code block, by the first word after its fence; undefined if it is not highlighted. */
export const languageOf = (info: string): string | undefined =>
  LANGUAGES.get((/^[^\s{,]*/.exec(info)?.[0] ?? '').toLowerCase());
