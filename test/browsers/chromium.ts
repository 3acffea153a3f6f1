/** A site in a real browser: scripts bundled like an app's, served with files, opened in headless Chromium. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import type { BuildOptions } from 'esbuild';
import type { Page } from 'playwright-core';

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

export interface Site {
  /** By path. They can be changed. */
  readonly files: Record<string, Uint8Array>;
  readonly headers: Record<string, string>;
  /** What was requested of the files: a path, and its range if it has one. */
  readonly requests: string[];
  /** Breaks the connection after this many bytes of a file; 0: there is no answer at all. */
  cutAfter?: number;
  /** Sends this many bytes of a file, and then nothing. */
  holdAfter?: number;
  readonly address: string;
  close(): void;
}

/** Serves scripts and files; `/` is a page that runs `page.js`, `/bare` an empty one. */
export async function openSite(scripts: Record<string, string>, files: Record<string, Uint8Array>): Promise<Site> {
  const page = '<!doctype html><input type="file"><script type="module" src="/page.js"></script>';
  const texts: Record<string, [string, string]> = {
    '/': ['text/html', page],
    '/bare': ['text/html', '<!doctype html>'],
  };
  for (const [path, text] of Object.entries(scripts))
    texts[path] = [path.endsWith('.html') ? 'text/html' : 'text/javascript', text];
  const server = createServer((request, reply) => {
    const path = request.url ?? '';
    for (const [name, value] of Object.entries(site.headers)) reply.setHeader(name, value);
    if (path in site.files) return sendFile(site, path, request, reply);
    const [type, body] = texts[path] ?? ['text/plain', ''];
    reply.writeHead(path in texts ? 200 : 404, { 'content-type': type }).end(body);
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  const site: Site = {
    files,
    headers: {},
    requests: [],
    address: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
  return site;
}

function sendFile(site: Site, path: string, request: IncomingMessage, reply: ServerResponse): void {
  const { range } = request.headers;
  site.requests.push(range ? `${path} ${range}` : path);
  const body = site.files[path];
  const start = Number(range?.match(/^bytes=(\d+)-$/)?.[1] ?? 0);
  if (site.cutAfter === 0) return void reply.destroy();
  if (range && start >= body.length) return void reply.writeHead(416).end();
  if (range) reply.setHeader('content-range', `bytes ${start}-${body.length - 1}/${body.length}`);
  const etag = `"${createHash('sha256').update(body.subarray(0, 4096)).digest('hex').slice(0, 12)}"`;
  reply.writeHead(range ? 206 : 200, { 'content-length': body.length - start, etag });
  const part = body.subarray(start, start + (site.cutAfter ?? body.length));
  if (site.holdAfter !== undefined) reply.write(part.subarray(0, site.holdAfter));
  else if (site.cutAfter === undefined) reply.end(part);
  // A browser drops what it has not read when a connection breaks: on a busy machine reading takes a while to begin.
  else reply.write(part, () => setTimeout(() => reply.destroy(), 1000));
}

/** The texts of a bundle of sources, by path. Nothing is left out: it must run without Node's modules. */
export async function bundle(options: Pick<BuildOptions, 'entryPoints' | 'stdin' | 'minify'>) {
  const { build } = await import('esbuild');
  const { outputFiles } = await build({
    ...options,
    bundle: true,
    write: false,
    splitting: true,
    outdir: '/',
    entryNames: options.stdin ? 'page' : '[name]',
    format: 'esm',
    platform: 'browser',
  });
  return Object.fromEntries(outputFiles.map(({ path, text }) => [path, text]));
}

const source = (path: string) => fileURLToPath(new URL(path, import.meta.url));

/** The page of the test cases, and the programs of its Workers. */
export const testScripts = () =>
  bundle({
    minify: true,
    entryPoints: {
      page: source('./page.ts'),
      'engine-worker': source('../../src/worker/engine-worker.ts'),
      'store-worker': source('./store-worker.ts'),
    },
  });

export interface Browser {
  page: Page;
  /** Resident bytes of the page's process and its Workers, without Chromium's own code (Linux). */
  memory(): Promise<number>;
  close(): Promise<void>;
}

/** `profile`: a folder for what the browser stores; without one it is kept in memory. */
export async function openBrowser(profile?: string): Promise<Browser> {
  const { chromium } = await import('playwright-core');
  const args = [
    '--no-sandbox',
    '--enable-unsafe-webgpu',
    '--use-webgpu-adapter=swiftshader',
    // As in Node: see vitest.config.ts.
    `--enable-dawn-features=${process.env.KVASIR_DAWN_FEATURES ?? ''}`,
  ];
  const context = profile
    ? await chromium.launchPersistentContext(profile, { executablePath, args })
    : await (await chromium.launch({ executablePath, args })).newContext();
  const page = await context.newPage();
  return {
    page,
    async memory() {
      const session = await context.browser()!.newBrowserCDPSession();
      const { processInfo } = await session.send('SystemInfo.getProcessInfo');
      await session.detach();
      return processInfo
        .filter(({ type }) => type === 'renderer')
        .flatMap(({ id }) => [...readFileSync(`/proc/${id}/status`, 'utf8').matchAll(/Rss(?:Anon|Shmem):\s+(\d+)/g)])
        .map(([, kibibytes]) => Number(kibibytes) * 1024)
        .reduce((a, b) => a + b, 0);
    },
    async close() {
      await context.close();
      await context.browser()?.close();
    },
  };
}

/** Takes the GPU away from the engines of a page, as a driver that crashes does. */
export async function loseGpu(page: Page): Promise<void> {
  for (const worker of page.workers())
    await worker.evaluate(() => {
      const { kvasirGpu } = globalThis as unknown as { kvasirGpu?: { retained: Set<GPUDevice | GPUAdapter> } };
      for (const device of kvasirGpu?.retained ?? []) if ('destroy' in device) device.destroy();
    });
}
