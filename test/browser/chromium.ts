/** A script in a real browser: bundled like an app, served with its files, opened in headless Chromium. */
import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type BuildOptions, build } from 'esbuild';
import { chromium, type Page } from 'playwright-core';

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';

/** Why browser tests are skipped; undefined if they run. */
export const noChromium = existsSync(executablePath) ? undefined : `no ${executablePath}`;
if (noChromium && process.env.CI)
  throw new Error(`CI must run the browser tests, but ${executablePath} does not exist. Install chromium.`);

/** Headers with which a page is cross-origin isolated: only then can its threads share memory. */
export const ISOLATED = {
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-embedder-policy': 'require-corp',
};

/** Opens a blank page; `address` is the URL of the script. `script` is the entry point in esbuild's options. */
export async function openInChromium(
  script: Pick<BuildOptions, 'entryPoints' | 'stdin'>,
  files: Record<string, Uint8Array>,
  headers: Record<string, string> = {},
): Promise<{ page: Page; address: string; close(): Promise<void> }> {
  const { outputFiles } = await build({
    ...script,
    bundle: true,
    write: false,
    splitting: true,
    outdir: '/',
    entryNames: 'page',
    format: 'esm',
    platform: 'browser',
  });
  const served: Record<string, [string, string | Uint8Array]> = {
    '/': ['text/html', '<script type="module" src="/page.js"></script>'],
  };
  for (const [path, bytes] of Object.entries(files)) served[path] = ['application/octet-stream', bytes];
  for (const { path, text } of outputFiles) served[path] = ['text/javascript', text];
  const server = createServer(({ url = '' }, reply) => {
    const [type, body] = served[url] ?? ['text/plain', ''];
    reply.writeHead(body ? 200 : 404, { 'content-type': type, ...headers }).end(body);
  }).listen(0, '127.0.0.1');
  const args = ['--no-sandbox', '--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader'];
  const browser = await chromium.launch({ executablePath, args });
  return {
    page: await browser.newPage(),
    address: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    async close() {
      await browser.close();
      server.close();
    },
  };
}
