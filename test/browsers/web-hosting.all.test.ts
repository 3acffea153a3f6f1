/** Other hosts of the web app than `kvasir serve`: static ones, and the development server. */
import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { itAll } from '../support/matrix.ts';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp } from './open-app.ts';

vi.setConfig({ testTimeout: 240_000 });

const root = fileURLToPath(new URL('../../', import.meta.url));

const TYPES: Record<string, string> = {
  ...{ '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' },
};

/** A host without COOP and COEP that serves `dist/web/` and Mimir in a folder, and nothing else. */
async function openStaticHost(folder: string) {
  const server = createServer((request, reply) => {
    const [path] = (request.url ?? '').split('?');
    const name = path.startsWith(folder) ? path.slice(folder.length) || 'index.html' : '';
    const file = name.startsWith('models/') ? `${root}${name}` : `${root}dist/web/${name}`;
    if (!name || name.includes('..') || !existsSync(file)) return void reply.writeHead(404).end('not found');
    reply
      .writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' })
      .end(readFileSync(file));
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}${folder}`, close };
}

/** `npm run web`, forwarding to a server. */
async function startVite(server: string) {
  const vite = spawn(process.execPath, ['node_modules/vite/bin/vite.js', 'web', '--host', '127.0.0.1', '--port', '0'], {
    cwd: root,
    env: { ...process.env, KVASIR_SERVER: server, NO_COLOR: '1' },
  });
  for await (const line of createInterface(vite.stdout)) {
    const [url] = line.match(/http:\/\/127\.0\.0\.1:\d+\//) ?? [];
    if (url) return { url, close: () => vite.kill() };
  }
  throw new Error('Vite ended without an address.');
}

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp();
  }, 120_000);
  afterAll(() => app?.close());

  it('on a static host without headers: one thread at first, several from the second visit on', async () => {
    const host = await openStaticHost('/some/folder/');
    try {
      const { page, context, answer } = await app.visit(DESKTOP, 'light', host.url);
      await page.locator('.facts', { hasText: '1 thread' }).waitFor({ state: 'attached' });
      expect(await page.evaluate(() => crossOriginIsolated)).toBe(false);
      await page.evaluate(() => navigator.serviceWorker.ready);
      await page.reload();
      await page.locator('.facts', { hasText: /[2-9] threads/ }).waitFor({ state: 'attached' });
      expect(await page.evaluate(() => crossOriginIsolated)).toBe(true);
      await page.locator('#composer').fill('Tell me a story about a lost teapot.');
      await page.keyboard.press('Enter');
      expect(await answer(1)).toMatch(/teapot/);
      await context.close();
    } finally {
      host.close();
    }
  });

  itAll('with `npm run web`: the sources, and the models and routes of a server', async () => {
    const vite = await startVite(app.url);
    try {
      const { page, context, answer } = await app.visit(DESKTOP, 'light', vite.url);
      await page.locator('.badge-name', { hasText: 'Mimir' }).waitFor({ timeout: 60_000 });
      await page.locator('#composer').fill('Tell me a story about a lost teapot.');
      await page.keyboard.press('Enter');
      expect((await answer(1)).length).toBeGreaterThan(20);
      await page.getByRole('combobox', { name: 'Runs on' }).selectOption({ label: 'This browser, on the CPU' });
      await page.locator('.facts', { hasText: 'as requested' }).waitFor({ state: 'attached', timeout: 60_000 });
      await context.close();
    } finally {
      vite.close();
    }
  });
});
