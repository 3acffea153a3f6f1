/** The webgpu device in a real browser: headless Chromium, with a GPU or on the CPU. */
import { existsSync, readFileSync } from 'node:fs';
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

vi.setConfig({ testTimeout: process.env.KVASIR_LONG ? 1_200_000 : 240_000 });

type Cases = typeof cases;

describe.skipIf(!there)(there ? 'in Chromium' : `in Chromium (skipped: no ${executablePath})`, () => {
  const models: Record<string, Uint8Array<ArrayBuffer>> = {
    '/model.gguf': writeGguf(tinyModel({ tied: false, headDim: 32 })),
    '/mimir.gguf': new Uint8Array(readFileSync(new URL('../models/mimir.gguf', import.meta.url))),
  };
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
    };
    for (const [path, bytes] of Object.entries(models)) served[path] = ['application/octet-stream', bytes];
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
    ['tq4', 2e-2],
    ['tq4u', 2e-2],
    ['kivi2g32', 1e-3],
  ])('%s seals and attends like js', async (spec, tolerance) => {
    const shape = { headDim: 32, heads: 4, kvHeads: 2, pageTokens: 32 };
    const found = await run('attention', { ...shape, spec });
    expect(found.far).toBeLessThan(tolerance);
    expect(found.different).toBeLessThanOrEqual(1);
  });

  const brief = { path: '/model.gguf', prompt: 'The mead of poetry.', kv: 'tq4u', maxTokens: 6, pageTokens: 16 };
  // Minutes where the GPU is the CPU: `npm run test:long`.
  const long = { ...brief, path: '/mimir.gguf', prompt: 'Tell me a story about a lost teapot.', maxTokens: 200 };
  it.each(process.env.KVASIR_LONG ? [brief, { ...long, pageTokens: 64 }] : [brief])(
    '$path reads the same here and in Node',
    async asked => {
      const here = await run('generate', asked);
      expect(here.ids).toHaveLength(asked.maxTokens);
      const { kv, pageTokens, prompt, maxTokens } = asked;
      await using model = await loadModel(new Blob([models[asked.path]]), { device: 'webgpu', kv, pageTokens });
      const { ids, text } = await model.complete(prompt, { temperature: 0, maxTokens, ignoreEnd: true });
      expect(here).toEqual({ ids, text });
    },
  );
});
