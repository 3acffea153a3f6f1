/** Installs the tarball in an empty project, checks its types, and runs every snippet of the README as printed. */
import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { transformSync } from 'esbuild';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { bundle, noChromium, openBrowser, openSite } from '../browsers/chromium.ts';
import { outputOf } from '../support/command.ts';
import { ALL_CASES } from '../support/matrix.ts';
import { createProject, npm, readmeBlocks, root, runLine } from './package-project.ts';

/**
 * Size limits in MB, of which the demo's model and its profile are 9.3, the web app 2.9 (1.7 of them to read PDF), the
 * calibration text is 1.1, and the bundles for pages .7. The dependencies of `kvasir serve` are 12 of those installed.
 */
const BUDGET = { packed: 11.9, unpacked: 18.5, installed: 31.1 };

/** The oldest version in the README: our declarations use the type parameter that typed arrays got in it. */
const OLDEST_TYPESCRIPT = '5.7.2';

/** README commands that are not run here, by prefix, and why. All others are run. */
const SKIPPED = {
  'npm start': 'for a clone: test/demo.test.ts',
  'npm test': 'for a clone: this is it',
  'npm install ../kvasir': 'the tarball is installed instead',
  'npm install webgpu': '130 MB',
  'npx kvasir pull ': 'the hub: src/cli/pull.test.ts',
  'npx kvasir serve ': 'a server, which does not end: test/server',
  'curl ': 'needs the server: test/packages/clients.all.test.ts',
  '  -d ': 'the second line of curl',
};

/** A hub model in a README command is replaced by the model in the package. */
const HUB_MODEL = /QuantFactory\/\S+/;

/** README commands that take minutes: only `npm run test:long` runs them, in this order. */
const SLOW = ['npx kvasir eval ', 'npx kvasir calibrate '];

const long = Boolean(process.env.KVASIR_LONG);
vi.setConfig({ testTimeout: long ? 1_200_000 : 60_000 });

const project = createProject();
const { folder } = project;
const inPackage = (path: string) => join(folder, 'node_modules/kvasir', path);
afterAll(() => rmSync(folder, { recursive: true }));

describe('the tarball', () => {
  it('stays within its size limits, packed and installed', () => {
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

  it('contains the model for the demo, and no tests or build state', () => {
    expect(project.files).toEqual(expect.arrayContaining(['models/mimir.gguf', 'models/mimir.grammar.json']));
    expect(project.files.filter(path => /(^|\/)\.|\.test\.|\.tsbuildinfo$/.test(path))).toEqual([]);
  });

  it('runs the hub client in Node', async () => {
    writeFileSync(join(folder, 'hub.js'), `import { listModels } from 'kvasir';\nconsole.log(await listModels());\n`);
    expect(await runLine(project, 'node hub.js')).toEqual({ status: 0, printed: '[]\n' });
  });

  it('refers to no missing source map', () => {
    const missingMaps = project.files.flatMap(path =>
      /\.(js|ts|map)$/.test(path)
        ? [...readFileSync(inPackage(path), 'utf8').matchAll(/[#@] sourceMappingURL=(\S+)/g)]
            .map(([, target]) => join(dirname(path), target))
            .filter(target => !project.files.includes(target))
        : [],
    );
    expect(missingMaps).toEqual([]);
    expect(project.files.filter(path => path.endsWith('.map'))).toEqual([]);
  });

  // Installs all development dependencies.
  it.skipIf(!long)('is the same when packed from a bare clone', () => {
    const clone = join(folder, 'clone');
    execFileSync('git', ['clone', '--quiet', root, clone]);
    const [{ files }] = JSON.parse(npm(clone, 'pack', '--json'));
    expect(files.map(({ path }: { path: string }) => path)).toEqual(project.files);
  });
});

const snippets = readmeBlocks('ts').map((code, i) => ({ name: `readme-${i}.ts`, code }));
const pages = readmeBlocks('js').map((code, i) => ({ name: `page-${i}.ts`, code }));
const everything = {
  name: 'everything.ts',
  code: ['kvasir', 'kvasir/codec', 'kvasir/eval'].map(entry => `export * from '${entry}';\n`).join(''),
};
const using = {
  name: 'using.ts',
  code: `import type { Conversation, Model, Stream } from 'kvasir';
export const end = async (loaded: Model, opened: Conversation, stream: Stream<string>) => {
  await using model = loaded;
  await using conversation = opened;
  await using answer = stream;
  return [model, conversation, answer];
};
`,
};

/** The oldest TypeScript is not a dependency: its `tsc` would replace the one that builds. */
function installTypes(): string | undefined {
  const { version } = JSON.parse(readFileSync(join(root, 'node_modules/@types/node/package.json'), 'utf8'));
  const packages = [`typescript@${OLDEST_TYPESCRIPT}`, `@types/node@${version}`];
  try {
    npm(folder, 'install', '--prefer-offline', '--no-audit', '--no-fund', ...packages);
  } catch (error) {
    if (process.env.CI) throw error;
    return `TypeScript ${OLDEST_TYPESCRIPT} is not in npm's cache, and no registry is available`;
  }
  return undefined;
}

const missing = installTypes();
describe.skipIf(missing)(missing ? `types (skipped: ${missing})` : 'types', () => {
  it('are tested with the version that the README states', () => {
    const [major, minor] = OLDEST_TYPESCRIPT.split('.');
    expect(readFileSync(join(root, 'README.md'), 'utf8')).toContain(`TypeScript ${major}.${minor} or newer`);
  });

  const settings = [
    { module: 'nodenext', lib: ['es2022'], types: ['node'], files: [everything, ...snippets, using] },
    { module: 'esnext', moduleResolution: 'bundler', lib: ['es2022', 'dom'], types: [], files: [everything, ...pages] },
    { module: 'esnext', moduleResolution: 'bundler', lib: ['esnext', 'dom'], types: [], files: [everything, using] },
  ];
  for (const [compiler, installedIn] of Object.entries({
    [`TypeScript ${OLDEST_TYPESCRIPT}`]: folder,
    'the TypeScript of this repository': root,
  }))
    it.each(ALL_CASES || installedIn === root ? settings : [])(
      `compile with ${compiler}: module $module, lib $lib, types $types`,
      ({ files, ...options }) => {
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
          execFileSync(process.execPath, [join(installedIn, 'node_modules/typescript/bin/tsc')], {
            cwd: folder,
            encoding: 'utf8',
          });
        expect(outputOf(run)).toBe('');
      },
    );
});

describe('the README', () => {
  it.each(snippets)('$name runs as printed', async ({ name, code }) => {
    const file = name.replace('.ts', '.js');
    writeFileSync(join(folder, file), transformSync(code, { loader: 'ts' }).code);
    const { status, printed } = await runLine(project, `node ${file}`);
    expect({ status, printed }).toMatchObject({ status: 0 });
    // Its comments show the output.
    for (const [, promised] of code.matchAll(/console\.log\(.*\/\/ \[?\{ (\w+)/g)) expect(printed).toContain(promised);
  });

  it.skipIf(noChromium).each(pages)('$name runs as printed, in Chromium', async ({ code }) => {
    const model = readFileSync(join(folder, 'model.gguf'));
    const script = { stdin: { contents: code, resolveDir: folder } };
    const site = await openSite(await bundle(script), { '/model.gguf': model });
    const { page, close } = await openBrowser();
    try {
      const failed = page.waitForEvent('pageerror').then(error => Promise.reject(error));
      const logged = page.waitForEvent('console', message => message.type() === 'log');
      await page.goto(site.address);
      const [printed] = (await Promise.race([logged, failed])).args();
      expect(await printed.jsonValue()).toMatchObject({ name: 'webgpu', why: expect.any(String) });
    } finally {
      await close();
      site.close();
    }
  });

  const lines = readmeBlocks('sh').flatMap(block => block.trim().split('\n'));
  const startsWithAny = (line: string, starts: readonly string[]) => starts.some(start => line.startsWith(start));

  it.each([...Object.keys(SKIPPED), ...SLOW])('has a line that starts with "%s"', start => {
    expect(lines.filter(line => line.startsWith(start))).not.toEqual([]);
  });

  const commands = lines.filter(line => !startsWithAny(line, Object.keys(SKIPPED)));
  const runsSuccessfully = async (line: string) => {
    const { status, printed } = await runLine(project, line.replace(HUB_MODEL, 'model.gguf'), 'Who was Kvasir?\n');
    expect({ status, printed }).toMatchObject({ status: 0, printed: expect.stringMatching(/\S/) });
  };
  const onWasm = commands.filter(line => !line.includes('--device webgpu'));
  const quick = onWasm.filter(line => !startsWithAny(line, SLOW));
  it.each(ALL_CASES ? quick : quick.filter(line => /kvasir (run|doctor|inspect) /.test(line)))('%s', runsSuccessfully);
  it.skipIf(!long).each(onWasm.filter(line => startsWithAny(line, SLOW)))('%s', runsSuccessfully);

  it('prints how to install webgpu if it is missing', async () => {
    const line = commands.find(line => line.includes('--device webgpu'))!;
    const { status, printed } = await runLine(project, line);
    expect(status).toBe(1);
    expect(printed).toMatch(/webgpu .*130 MB.* is not installed: npm install webgpu.* npx -p kvasir -p webgpu kvasir/);
    expect((await runLine(project, 'npx kvasir doctor')).printed).toMatch(/^gpu +none: .*npm install webgpu/m);
  });
});
