/** Every type in a public signature can be imported, and internals are not exported. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
/** With the declarations of all sources. */
const out = join(root, 'dist');
const entries = Object.values<{ types: string }>(exports)
  .filter(({ types }) => !types.startsWith('./dist/renamed/'))
  .map(({ types }) => join(out, types.replace('./dist/', '')));

interface DeclarationFile {
  /** Where a name comes from: its file and its name there. */
  names: Map<string, { file: string; name: string }>;
  /** The text of each declaration, without comments. */
  declarations: Map<string, string>;
  exported: Set<string>;
}

const files = new Map<string, DeclarationFile>();

/** Reads a .d.ts file as tsc formats it: each declaration starts in the first column. */
function readDeclarations(file: string): DeclarationFile {
  const known = files.get(file);
  if (known) return known;
  const text = readFileSync(file, 'utf8').replace(/\/\*[\s\S]*?\*\//g, '');
  const read: DeclarationFile = { names: new Map(), declarations: new Map(), exported: new Set() };
  files.set(file, read);
  for (const part of text.split(/\n(?=\S)/)) {
    const listed = part.match(/^(import|export)(?: type)? \{([^}]*)\}(?: from ['"](\.[^'"]+)['"])?/);
    if (listed) {
      const [, keyword, list, from] = listed;
      for (const entry of list.split(',')) {
        const [name, alias = name] = entry
          .replace(/\btype\b/, '')
          .trim()
          .split(' as ');
        if (from) read.names.set(alias, { file: join(dirname(file), from.replace(/\.[jt]s$/, '.d.ts')), name });
        if (keyword === 'export') read.exported.add(alias);
      }
      continue;
    }
    const [, isExported, name] =
      part.match(/^(export )?(?:declare )?(?:abstract )?(?:interface|type|class|function|const|let|enum) (\w+)/) ?? [];
    if (!name) continue;
    read.names.set(name, { file, name });
    read.declarations.set(name, `${read.declarations.get(name) ?? ''}${part}\n`);
    if (isExported) read.exported.add(name);
  }
  return read;
}

/** Follows re-exports to the file that declares a name. */
function origin(file: string, name: string): { file: string; name: string } {
  const target = readDeclarations(file).names.get(name) ?? { file, name };
  return target.file === file ? target : origin(target.file, target.name);
}

const exportedNames = (entry: string) => [...readDeclarations(entry).exported];
const idOf = ({ file, name }: { file: string; name: string }) => `${file.slice(out.length + 1)}#${name}`;

it('every type that a public declaration mentions is exported', () => {
  const isPublic = new Set(entries.flatMap(entry => exportedNames(entry).map(name => idOf(origin(entry, name)))));
  expect(isPublic.size).toBeGreaterThan(60);
  const missing = new Set<string>();
  for (const entry of entries) {
    for (const exportedName of exportedNames(entry)) {
      const { file, name } = origin(entry, exportedName);
      const { declarations, names } = readDeclarations(file);
      const text = declarations.get(name) ?? '';
      const mentioned = [...text.matchAll(/\b[A-Z]\w*/g)].flatMap(([word]) => names.get(word) ?? []);
      for (const [, from, word] of text.matchAll(/import\("(\.[^"]+)"\)\.(\w+)/g))
        mentioned.push({ file: join(dirname(file), from.replace(/\.[jt]s$/, '.d.ts')), name: word });
      for (const mention of mentioned) {
        const id = idOf(origin(mention.file, mention.name));
        if (!isPublic.has(id)) missing.add(`${id} (in ${name})`);
      }
    }
  }
  expect([...missing]).toEqual([]);
});

it('entry points list their exports, and internals are not among them', () => {
  for (const entry of entries) {
    expect(readFileSync(entry, 'utf8')).not.toMatch(/export \*/);
    expect(exportedNames(entry)).not.toContain('assert');
  }
});
