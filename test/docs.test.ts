/** The documentation and the scripts agree with the code: links, file names, exported names and examples. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { outputOf } from './support/command.ts';

const root = fileURLToPath(new URL('..', import.meta.url));
const read = (path: string) => readFileSync(join(root, path), 'utf8');
const filesBelow = (folder: string): string[] =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .map(name => join(folder, name))
    .filter(path => statSync(join(root, path)).isFile());

const pages = [
  'README.md',
  'CONTRIBUTING.md',
  'examples/README.md',
  'models/MIMIR.md',
  'train/README.md',
  // Bytes of a picture may look like a link.
  ...filesBelow('docs').filter(path => !path.endsWith('.png')),
];
const files = ['src', 'web', 'test', 'bench', 'scripts', 'train', 'models', 'docs'].flatMap(filesBelow);
const sources = files
  .filter(file => /^(src|web).*\.tsx?$/.test(file))
  .map(read)
  .join('\n');
const exported: Record<string, { types: string }> = JSON.parse(read('package.json')).exports;

/** Sources of the package's entry points: `kvasir/codec` is src/codec/index.ts. */
const entries = Object.entries(exported).map(([path, { types }]) => ({
  module: join('kvasir', path),
  source: types.replace('./dist/', 'src/').replace('.d.ts', '.ts'),
}));

const withoutCode = (markdown: string) => markdown.replace(/^```[\s\S]*?^```$/gm, '');

describe.each(pages)('%s', page => {
  it('has only links that resolve', () => {
    const broken = [...withoutCode(read(page)).matchAll(/\]\(([^)\s]+)\)/g)]
      .map(([, target]) => target!)
      .filter(target => !/^https?:/.test(target))
      .filter(target => {
        const [path, anchor] = target.split('#');
        const file = path ? join(dirname(page), path) : page;
        return !existsSync(join(root, file)) || (anchor !== undefined && !anchorsOf(read(file)).includes(anchor));
      });
    expect(broken).toEqual([]);
  });

  it('names only files that exist', () => {
    const named = [...read(page).matchAll(/`((?:[\w.-]+\/)*[\w.-]+\.(?:ts|mjs|py))`/g)].map(([, name]) => name!);
    const paths = [...read(page).matchAll(/`((?:src|test|bench|scripts|train)\/[\w./-]+)`/g)].map(([, path]) => path!);
    expect(named.filter(name => !files.some(file => `/${file}`.endsWith(`/${name}`)))).toEqual([]);
    expect(paths.filter(path => !existsSync(join(root, path)))).toEqual([]);
  });

  // Lab notes name what was tried and removed.
  if (page.startsWith('docs/lab/')) return;
  it('names only identifiers that exist', () => {
    const named = [...read(page).matchAll(/`([a-z]\w*[a-z][A-Z][a-z]\w*|[A-Z]\w*[a-z][A-Z]\w*)`/g)].map(
      ([, name]) => name!,
    );
    expect(named.filter(name => !new RegExp(`\\b${name}\\b`).test(sources))).toEqual([]);
  });
});

const anchorsOf = (markdown: string): string[] =>
  [...withoutCode(markdown).matchAll(/^#+ (.*)$/gm)].map(([, title]) =>
    title!
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );

it.each(['api-page', 'models-page', 'quality-picture'])('scripts/%s.mjs would write what is there', name => {
  const check = () =>
    execFileSync(process.execPath, [join(root, `scripts/${name}.mjs`), '--check'], { encoding: 'utf8' });
  expect(outputOf(check)).toBe('');
});

/** Names in `export { a, type B } from '…'`, and those of the modules in `export * from '…'`. */
function exportsOf(path: string): string[] {
  const source = read(path);
  const lists = [...source.matchAll(/^export (?:type )?\{([^}]*)\}/gm)].flatMap(([, list]) => list!.split(','));
  const own = [...source.matchAll(/^export (?:async )?(?:function|class|const|interface|type) (\w+)/gm)];
  const stars = [...source.matchAll(/^export \* from '(.*)'/gm)];
  return [
    ...lists.map(name => name.trim().replace(/^type |^.* as /, '')).filter(name => name !== ''),
    ...own.map(([, name]) => name!),
    ...stars.flatMap(([, from]) => exportsOf(join(dirname(path), from!))),
  ];
}

it("CONTRIBUTING's tour has ten steps, each of which starts with a file", () => {
  const [, tour] = read('CONTRIBUTING.md').match(/^## A stranger's tour\n([\s\S]*?)^## /m)!;
  const steps = [...tour.matchAll(/^\d+\. `(src\/\S+\.ts)` /gm)].map(([, file]) => file!);
  expect(steps).toHaveLength(10);
  expect(steps.filter(file => !files.includes(file))).toEqual([]);
});

it('docs/troubleshooting.md explains every line of `kvasir doctor`', () => {
  const labels = [...read('src/cli/doctor.ts').matchAll(/line\('(\w+)'|\? '(\w+)' : ''/g)].map(([, a, b]) => a ?? b!);
  expect(labels).toContain('devices');
  expect(labels.filter(label => !read('docs/troubleshooting.md').includes(`\n| \`${label}\` `))).toEqual([]);
});

it('scripts import only names that the build exports', () => {
  const scripts = files.filter(file => file.endsWith('.mjs'));
  const missing = scripts.flatMap(script =>
    [...read(script).matchAll(/^import \{ (.*) \} from '(\.\.\/dist\/.*)\.js'/gm)].flatMap(([, names, module]) => {
      const known = exportsOf(join(dirname(script), module!.replace('dist', 'src')).concat('.ts'));
      return names!.split(', ').filter(name => !known.includes(name));
    }),
  );
  expect(missing).toEqual([]);
});

it('has examples that compile', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-docs-'));
  try {
    for (const page of pages)
      [...read(page).matchAll(/^```ts\n([\s\S]*?)^```$/gm)].forEach(([, code], i) => {
        // A module even without imports, so that examples do not share names.
        writeFileSync(join(folder, `${page.replaceAll('/', '-')}-${i}.ts`), `${code}\nexport {};\n`);
      });
    const paths = Object.fromEntries(entries.map(({ module, source }) => [module, [join(root, source)]]));
    const compilerOptions = {
      typeRoots: [join(root, 'node_modules/@types')],
      types: ['node'],
      noEmit: true,
      noUnusedLocals: false,
      paths,
    };
    const config = { extends: join(root, 'tsconfig.json'), compilerOptions, include: ['*.ts'] };
    writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config));
    const tsc = join(root, 'node_modules/typescript/bin/tsc');
    const compile = () => execFileSync(process.execPath, [tsc, '-p', folder], { encoding: 'utf8' });
    expect(outputOf(compile)).toBe('');
  } finally {
    rmSync(folder, { recursive: true });
  }
});
