/** The package in an app, as a user would build it: with Vite, with esbuild, and without a bundler. Needs dist/. */
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build as esbuild } from 'esbuild';
import { build as vite } from 'vite';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { loadModel } from '../../src/index.ts';
import { ISOLATED, noChromium, openBrowser, openSite } from '../browsers/chromium.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { matrix } from '../support/matrix.ts';
import { tinyModel } from '../support/tiny-model.ts';

vi.setConfig({ testTimeout: 120_000 });

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'kvasir-app-'));
afterAll(() => rmSync(folder, { recursive: true }));

const model = writeGguf(tinyModel());

/** The engine in a Worker and on the page. */
const program = (kvasir: string, worker: string) => `
import { loadModel } from '${kvasir}';
import { startWorker } from '${worker}';
const options = { device: 'wasm', threads: 2, kv: 'tq4' };
const run = { temperature: 0, maxTokens: 4, ignoreEos: true };
const service = await startWorker('model.gguf', options);
const model = await loadModel('model.gguf', options);
globalThis.done = {
  device: service.info.device.name,
  inWorker: (await service.generate('x', run).result()).ids,
  onPage: (await model.complete('x', run)).ids,
};
`;

beforeAll(() => {
  const modules = join(folder, 'node_modules');
  mkdirSync(join(modules, '@huggingface'), { recursive: true });
  cpSync(join(root, 'dist'), join(modules, 'kvasir/dist'), { recursive: true });
  cpSync(join(root, 'package.json'), join(modules, 'kvasir/package.json'));
  symlinkSync(join(root, 'node_modules/@huggingface/jinja'), join(modules, '@huggingface/jinja'));
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
  writeFileSync(join(folder, 'app.js'), program('kvasir', 'kvasir/worker'));
  writeFileSync(join(folder, 'worker.js'), "import { runWorker } from 'kvasir/worker';\nrunWorker();\n");
  writeFileSync(join(folder, 'index.html'), '<!doctype html><script type="module" src="/app.js"></script>');
});

/** The texts of a built app, by path. */
function readApp(out: string): Record<string, string> {
  const files = readdirSync(out, { recursive: true, encoding: 'utf8', withFileTypes: true }).filter(f => f.isFile());
  const paths = files.map(({ parentPath, name }) => join(parentPath, name));
  return Object.fromEntries(paths.map(path => [path.slice(out.length), readFileSync(path, 'utf8')]));
}

const builds: Record<string, () => Promise<Record<string, string>>> = {
  async Vite() {
    const warnings: string[] = [];
    const onwarn = ({ message }: { message: string }) => void warnings.push(message);
    const outDir = join(folder, 'vite');
    await vite({ root: folder, logLevel: 'silent', build: { outDir, rollupOptions: { onwarn } } });
    expect(warnings.filter(warning => /node:|external/.test(warning))).toEqual([]);
    return readApp(outDir);
  },
  async esbuild() {
    const outdir = join(folder, 'esbuild');
    const { warnings } = await esbuild({
      entryPoints: { app: join(folder, 'app.js'), 'engine-worker': join(folder, 'worker.js') },
      absWorkingDir: folder,
      bundle: true,
      format: 'esm',
      outdir,
      logLevel: 'silent',
    });
    expect(warnings).toEqual([]);
    return { ...readApp(outdir), '/index.html': readFileSync(join(folder, 'index.html'), 'utf8') };
  },
  async 'a script from dist/browser/'() {
    return {
      ...readApp(join(root, 'dist/browser')),
      '/app.js': program('./kvasir.js', './worker.js'),
      '/index.html': readFileSync(join(folder, 'index.html'), 'utf8'),
    };
  },
};

describe.skipIf(noChromium)(noChromium ? `in Chromium (skipped: ${noChromium})` : 'in Chromium', () => {
  // The page of docs/browser.md runs dist/browser/ too.
  it.each(matrix(Object.keys(builds), { Vite: 'builds the Worker too' }))(
    '%s: a model runs in a Worker and on the page',
    async name => {
      const site = await openSite(await builds[name](), { '/model.gguf': model });
      Object.assign(site.headers, ISOLATED);
      const { page, close } = await openBrowser();
      try {
        const failed = page.waitForEvent('pageerror').then(error => Promise.reject(error));
        await page.goto(`${site.address}index.html`);
        const done = page.waitForFunction(() => (globalThis as { done?: unknown }).done);
        const found = await (await Promise.race([done, failed])).jsonValue();
        await using here = await loadModel(model, { device: 'wasm', kv: 'tq4' });
        const { ids } = await here.complete('x', { temperature: 0, maxTokens: 4, ignoreEos: true });
        expect(found).toEqual({ device: 'wasm', inWorker: ids, onPage: ids });
      } finally {
        await close();
        site.close();
      }
    },
  );
});

it.skipIf(noChromium)('the page of docs/browser.md loads a model, answers and stops', async () => {
  const [, html] = readFileSync(join(root, 'docs/browser.md'), 'utf8').match(/^```html\n([\s\S]*?)^```$/m)!;
  expect(html.trim().split('\n').length).toBeLessThanOrEqual(42);
  const scripts = Object.entries(readApp(join(root, 'dist/browser'))).map(([path, text]) => [`/kvasir${path}`, text]);
  const mimir = readFileSync(join(root, 'models/mimir.gguf'));
  const site = await openSite({ ...Object.fromEntries(scripts), '/page.html': html }, { '/model.gguf': mimir });
  const { page, close } = await openBrowser();
  try {
    await page.goto(`${site.address}page.html`);
    const says = (text: RegExp) => page.locator('pre', { hasText: text }).waitFor();
    await says(/^Mimir with tq4 on wasm .*; one thread: .*; no webgpu: .* tokens fit\./);
    await page.getByRole('button', { name: 'Ask' }).click();
    await says(/> Tell me a story about a lost teapot\.\n.*teapot.*\./);
    await page.getByRole('button', { name: 'Stop' }).click();
    await page.locator('input').fill('Is it over?');
    await page.getByRole('button', { name: 'Ask' }).click();
    await says(/> Is it over\?\n.+/);
  } finally {
    await close();
    site.close();
  }
});

/** Max kB of gzip that a page downloads: the core with one device, and the side of a page whose engine is in a Worker. */
const BUDGET = { webgpu: 266, wasm: 222, worker: 9 };

it('is small', async () => {
  const { metafile, outputFiles } = await esbuild({
    entryPoints: { kvasir: join(root, 'dist/index.js'), worker: join(root, 'dist/worker/index.js') },
    bundle: true,
    splitting: true,
    minify: true,
    format: 'esm',
    outdir: 'out',
    absWorkingDir: root,
    write: false,
    metafile: true,
  });
  const sizes = new Map(outputFiles.map(({ path, contents }) => [path.slice(root.length), gzipSync(contents).length]));
  const reached = (start: string, followed: (source: string) => boolean, seen = new Set<string>()): Set<string> => {
    seen.add(start);
    for (const { path, kind } of metafile.outputs[start].imports)
      if (!seen.has(path) && (kind === 'import-statement' || followed(metafile.outputs[path].entryPoint ?? '')))
        reached(path, followed, seen);
    return seen;
  };
  const kilobytes = (start: string, dynamic: string) =>
    [...reached(start, source => source === dynamic)].reduce((sum, path) => sum + sizes.get(path)!, 0) / 1000;
  const found = {
    webgpu: kilobytes('out/kvasir.js', 'dist/kernel/webgpu/device.js'),
    wasm: kilobytes('out/kvasir.js', 'dist/kernel/wasm/device.js'),
    worker: kilobytes('out/worker.js', ''),
  };
  console.log(
    `gzip, kB: ${Object.entries(found)
      .map(([name, size]) => `${name} ${size.toFixed(1)}`)
      .join(', ')}`,
  );
  for (const [name, size] of Object.entries(found))
    expect(size, name).toBeLessThan(BUDGET[name as keyof typeof BUDGET]);
  expect(found.webgpu).toBeGreaterThan(found.wasm);
});
