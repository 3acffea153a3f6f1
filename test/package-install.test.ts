/** A user's first minutes: the tarball in an empty project, its types, and every snippet of the README as printed. */
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { transformSync } from 'esbuild';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { noChromium, openInChromium } from './browser/chromium.ts';
import { createProject, npm, readmeBlocks, root, runLine } from './package-project.ts';

/** What an install may cost, in MB: 9.3 of it is the demo's model and its profile. */
const BUDGET = { packed: 10, unpacked: 12, installed: 14 };

/** What the README promises. Typed arrays have had a type parameter since then, and our declarations give it. */
const OLDEST_TYPESCRIPT = '5.7.2';

/** Commands of the README that are not run here, by how they begin, and why. Every other line is run. */
const LEFT_OUT = {
  'npm start': 'for a clone: test/demo.test.ts',
  'npm test': 'for a clone: this is it',
  'npm install ../kvasir': 'the tarball is installed instead',
  'npm install webgpu': '130 MB',
  'npx kvasir pull ': 'the hub: src/cli/pull.test.ts',
};

/** The only change to what is run: a model of the hub becomes the one that the package has. */
const HUB_MODEL = /QuantFactory\/\S+/;

/** Commands of the README that take minutes: `npm run test:long` runs them. */
const SLOW = ['npx kvasir eval ', 'npx kvasir calibrate '];

const long = Boolean(process.env.KVASIR_LONG);
vi.setConfig({ testTimeout: long ? 1_200_000 : 60_000 });

const project = createProject();
const { folder } = project;
const inPackage = (path: string) => join(folder, 'node_modules/kvasir', path);
afterAll(() => rmSync(folder, { recursive: true }));

describe('the tarball', () => {
  it('is small, packed and installed', () => {
    const megabytes = (bytes: number) => bytes / 1e6;
    const { packed, unpacked, installed, files, seconds } = project;
    console.log(
      `packed ${megabytes(packed).toFixed(1)} MB, unpacked ${megabytes(unpacked).toFixed(1)} MB in ${files.length} ` +
        `files, node_modules ${megabytes(installed).toFixed(1)} MB, installed in ${seconds.toFixed(1)} s`,
    );
    expect(megabytes(packed)).toBeLessThan(BUDGET.packed);
    expect(megabytes(unpacked)).toBeLessThan(BUDGET.unpacked);
    expect(megabytes(installed)).toBeLessThan(BUDGET.installed);
  });

  it('has the model that the demo loads, and nothing of the build but its outputs', () => {
    expect(project.files).toEqual(expect.arrayContaining(['models/mimir.gguf', 'models/mimir.grammar.json']));
    expect(project.files.filter(path => /(^|\/)\.|\.test\.|\.tsbuildinfo$/.test(path))).toEqual([]);
  });

  it('has no link to a source map that it does not have', () => {
    const lost = project.files.flatMap(path =>
      /\.(js|ts|map)$/.test(path)
        ? [...readFileSync(inPackage(path), 'utf8').matchAll(/[#@] sourceMappingURL=(\S+)/g)]
            .map(([, target]) => join(dirname(path), target))
            .filter(target => !project.files.includes(target))
        : [],
    );
    expect(lost).toEqual([]);
    expect(project.files.filter(path => path.endsWith('.map'))).toEqual([]);
  });

  // It installs all that builds Kvasir.
  it.skipIf(!long)('is packed by a bare clone as well', () => {
    const clone = join(folder, 'clone');
    execFileSync('git', ['clone', '--quiet', root, clone]);
    const [{ files }] = JSON.parse(npm(clone, 'pack', '--json'));
    expect(files.map(({ path }: { path: string }) => path)).toEqual(project.files);
  });
});

const snippets = readmeBlocks('ts').map((code, i) => ({ name: `readme-${i}.ts`, code }));
const pages = readmeBlocks('js').map((code, i) => ({ name: `page-${i}.ts`, code }));
const everything = { name: 'everything.ts', code: `export * from 'kvasir';\nexport * from 'kvasir/codec';\n` };
const using = {
  name: 'using.ts',
  code: `import type { Conversation, Model, Stream } from 'kvasir';
export const end = async (given: Model, talk: Conversation, stream: Stream<string>) => {
  await using model = given;
  await using conversation = talk;
  await using answer = stream;
  return [model, conversation, answer];
};
`,
};

/** The oldest TypeScript is no dependency: its `tsc` would take the place of the one that builds. */
function installTypes(): string | undefined {
  const { version } = JSON.parse(readFileSync(join(root, 'node_modules/@types/node/package.json'), 'utf8'));
  const packages = [`typescript@${OLDEST_TYPESCRIPT}`, `@types/node@${version}`];
  try {
    npm(folder, 'install', '--prefer-offline', '--no-audit', '--no-fund', ...packages);
  } catch (error) {
    if (process.env.CI) throw error;
    return `TypeScript ${OLDEST_TYPESCRIPT} is not in npm's cache, and there is no registry`;
  }
  return undefined;
}

const missing = installTypes();
describe.skipIf(missing)(missing ? `types (skipped: ${missing})` : 'types', () => {
  it('are promised for the version that is tested', () => {
    const [major, minor] = OLDEST_TYPESCRIPT.split('.');
    expect(readFileSync(join(root, 'README.md'), 'utf8')).toContain(`TypeScript ${major}.${minor} or newer`);
  });

  const settings = [
    { module: 'nodenext', lib: ['es2022'], types: ['node'], files: [everything, ...snippets, using] },
    { module: 'esnext', moduleResolution: 'bundler', lib: ['es2022', 'dom'], types: [], files: [everything, ...pages] },
    { module: 'esnext', moduleResolution: 'bundler', lib: ['esnext', 'dom'], types: [], files: [everything, using] },
  ];
  for (const [which, place] of Object.entries({
    [`TypeScript ${OLDEST_TYPESCRIPT}`]: folder,
    'our own TypeScript': root,
  }))
    it.each(settings)(`compile with ${which}: module $module, lib $lib, types $types`, ({ files, ...options }) => {
      for (const { name, code } of files) writeFileSync(join(folder, name), code);
      const compilerOptions = {
        ...options,
        target: 'es2022',
        outDir: 'out',
        strict: true,
        exactOptionalPropertyTypes: true,
        noUncheckedIndexedAccess: true,
        skipLibCheck: false,
      };
      const config = { compilerOptions, files: files.map(({ name }) => name) };
      writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config));
      const run = () =>
        execFileSync(process.execPath, [join(place, 'node_modules/typescript/bin/tsc')], {
          cwd: folder,
          encoding: 'utf8',
        });
      expect(tried(run)).toBe('');
    });
});

/** What tsc printed, with its errors. */
function tried(run: () => string): string {
  try {
    return run();
  } catch (error) {
    return (error as { stdout: string }).stdout;
  }
}

describe('the README', () => {
  it.each(snippets)('$name runs as printed', async ({ name, code }) => {
    const file = name.replace('.ts', '.js');
    writeFileSync(join(folder, file), transformSync(code, { loader: 'ts' }).code);
    const { status, printed } = await runLine(project, `node ${file}`);
    expect({ status, printed }).toMatchObject({ status: 0 });
    // What its comments promise to print.
    for (const [, promised] of code.matchAll(/console\.log\(.*\/\/ \[?\{ (\w+)/g)) expect(printed).toContain(promised);
  });

  it.skipIf(noChromium).each(pages)('$name runs as printed, in Chromium', async ({ code }) => {
    const model = readFileSync(join(folder, 'model.gguf'));
    const script = { stdin: { contents: code, resolveDir: folder } };
    const { page, address, close } = await openInChromium(script, { '/model.gguf': model });
    try {
      const failed = page.waitForEvent('pageerror').then(error => Promise.reject(error));
      const logged = page.waitForEvent('console', message => message.type() === 'log');
      await page.goto(address);
      const [printed] = (await Promise.race([logged, failed])).args();
      expect(await printed.jsonValue()).toMatchObject({ name: 'webgpu', why: expect.any(String) });
    } finally {
      await close();
    }
  });

  const lines = readmeBlocks('sh').flatMap(block => block.trim().split('\n'));
  const begins = (line: string, starts: readonly string[]) => starts.some(start => line.startsWith(start));

  it.each([...Object.keys(LEFT_OUT), ...SLOW])('has a line "%s...", or it needs no exception', start => {
    expect(lines.filter(line => line.startsWith(start))).not.toEqual([]);
  });

  const commands = lines.filter(line => !begins(line, Object.keys(LEFT_OUT)));
  const works = async (line: string) => {
    const { status, printed } = await runLine(project, line.replace(HUB_MODEL, 'model.gguf'), 'Who was Kvasir?\n');
    expect({ status, printed }).toMatchObject({ status: 0, printed: expect.stringMatching(/\S/) });
  };
  const onWasm = commands.filter(line => !line.includes('--device webgpu'));
  it.each(onWasm.filter(line => !begins(line, SLOW)))('%s', works);
  it.skipIf(!long).each(onWasm.filter(line => begins(line, SLOW)))('%s', works);

  it('tells those who have no package webgpu how to get it', async () => {
    const line = commands.find(line => line.includes('--device webgpu'))!;
    const { status, printed } = await runLine(project, line);
    expect(status).toBe(1);
    expect(printed).toMatch(/webgpu .*130 MB.* is not installed: npm install webgpu.* npx -p kvasir -p webgpu kvasir/);
    expect((await runLine(project, 'npx kvasir doctor')).printed).toMatch(/^gpu +none: .*npm install webgpu/m);
  });
});
