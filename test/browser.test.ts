/** The webgpu device in a real browser: headless Chromium, with a GPU or on the CPU. */
import { existsSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { loadModel } from '../src/index.ts';
import type { cases } from './browser/page.ts';
import { writeGguf } from './gguf-writer.ts';
import { tinyModel } from './tiny-model.ts';

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const there = existsSync(executablePath);
if (!there && process.env.CI)
  throw new Error(`CI must run the tests in a browser, and ${executablePath} is not there.`);

vi.setConfig({ testTimeout: 240_000 });

type Cases = typeof cases;

describe.skipIf(!there)(there ? 'in Chromium' : `in Chromium (skipped: no ${executablePath})`, () => {
  const bytes = writeGguf(tinyModel({ tied: false, headDim: 32 }));
  let server: Server;
  let browser: Browser;
  let page: Page;
  const run = <Name extends keyof Cases>(name: Name, argument?: Parameters<Cases[Name]>[0]) =>
    page.evaluate(
      ([name, argument]) =>
        (globalThis as unknown as { cases: Record<string, (x: unknown) => unknown> }).cases[name](argument),
      [name, argument] as const,
    ) as Promise<Awaited<ReturnType<Cases[Name]>>>;

  beforeAll(async () => {
    const { outputFiles } = await build({
      entryPoints: [fileURLToPath(new URL('./browser/page.ts', import.meta.url))],
      bundle: true,
      write: false,
      // What is imported late, for Node alone, stays in files of its own.
      splitting: true,
      outdir: '/',
      format: 'esm',
      platform: 'browser',
      external: ['node:*'],
    });
    const served: Record<string, [string, string | Uint8Array]> = {
      '/': ['text/html', '<script type="module" src="/page.js"></script>'],
      '/model.gguf': ['application/octet-stream', bytes],
    };
    for (const { path, text } of outputFiles) served[path] = ['text/javascript', text];
    server = createServer(({ url = '' }, reply) => {
      const [type, body] = served[url] ?? ['text/plain', ''];
      reply.writeHead(body ? 200 : 404, { 'content-type': type }).end(body);
    }).listen(0, '127.0.0.1');
    const args = ['--no-sandbox', '--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader'];
    browser = await chromium.launch({ executablePath, args });
    page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    await page.waitForFunction(() => 'cases' in globalThis);
  }, 120_000);

  afterAll(async () => {
    await browser?.close();
    server?.close();
  });

  it('has an adapter', async () => {
    expect(await run('adapter')).toMatchObject({ name: expect.any(String), software: true });
  });

  it.each([
    ['f16', 1e-3],
    ['tq4', 1e-3],
    ['tq4u', 2e-2],
    ['kivi2g32', 1e-3],
  ])('%s seals and attends like js', async (spec, tolerance) => {
    const shape = { headDim: 32, heads: 4, kvHeads: 2, pageTokens: 32 };
    const found = await run('attention', { ...shape, spec });
    expect(found.far).toBeLessThan(tolerance);
    expect(found.different).toBeLessThanOrEqual(1);
  });

  it('a model says the same here and there', async () => {
    const asked = { prompt: 'The mead of poetry was brewed from honey.', kv: 'tq4u', maxTokens: 6 };
    const here = await run('generate', asked);
    expect(here).toHaveLength(6);
    await using model = await loadModel(new Blob([bytes]), { device: 'webgpu', kv: asked.kv, pageTokens: 16 });
    const { ids } = await model.complete(asked.prompt, { temperature: 0, maxTokens: 6, ignoreEnd: true });
    expect(here).toEqual(ids);
  });
});
