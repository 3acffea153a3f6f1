/** The web app's files as `kvasir serve` serves them: headers, caching, no way out of the folder, public with keys. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { readWebFiles } from '../../src/server/web-files.ts';
import { greedy, openServer, openService, readEvents, user } from '../programs/server/tiny-server.ts';

const service = await openService();
const { ask, json } = await openServer({ web: readWebFiles() }, service);

describe('the files of the app', async () => {
  const page = await (await ask('/')).text();
  const [script = ''] = page.match(/\/assets\/[\w-]+\.js/) ?? [];

  it('run no inline scripts, and are isolated, so that WebAssembly may use threads', async () => {
    const { headers } = await ask('/');
    const policy = headers.get('content-security-policy');
    expect(policy).toMatch(/script-src 'self' 'wasm-unsafe-eval';/);
    expect(policy).not.toMatch(/unsafe-inline|'unsafe-eval'/);
    expect(page).not.toMatch(/<script(?![^>]*src=)/);
    expect(Object.fromEntries(headers)).toMatchObject({
      'cross-origin-opener-policy': 'same-origin',
      'cross-origin-embedder-policy': 'require-corp',
      'x-content-type-options': 'nosniff',
      'content-type': 'text/html; charset=utf-8',
    });
  });

  it('are kept for a year if their name has a hash, and checked otherwise', async () => {
    expect((await ask(script)).headers.get('cache-control')).toBe('public, max-age=31536000, immutable');
    for (const path of ['/', '/sw.js', '/models/mimir.gguf']) {
      const { headers } = await ask(path);
      expect(headers.get('cache-control'), path).toBe('no-cache');
      const again = await ask(path, undefined, { 'if-none-match': headers.get('etag') ?? '' });
      expect(again.status, path).toBe(304);
    }
  });

  it('are compressed for those who understand it', async () => {
    const plain = await ask(script);
    const compressed = await ask(script, undefined, { 'accept-encoding': 'gzip, br' });
    expect(compressed.headers.get('content-encoding')).toBe('gzip');
    expect(Number(compressed.headers.get('content-length'))).toBeLessThan(
      Number(plain.headers.get('content-length')) / 2,
    );
  });

  it('take at most 250 kB to open, with the engine for the CPU; what is needed later is apart', async () => {
    const folder = fileURLToPath(new URL('../../dist/web/', import.meta.url));
    const assets = readdirSync(`${folder}assets`).map(name => `assets/${name}`);
    const gzipped = (names: readonly string[]) =>
      names.reduce((sum, name) => sum + gzipSync(readFileSync(`${folder}${name}`)).length, 0) / 1000;
    const later = assets.filter(name =>
      /\/(compare|model-list|highlight|typeset|Temml|pdf|docx|transfer|self-test|session|kv-graph|tiers|disk-store|opfs-file-system|redis-store)/.test(
        name,
      ),
    );
    // One device of three: the largest is for the GPU, then comes wasm, then js.
    const devices = assets.filter(name => name.includes('/device-')).sort((a, b) => gzipped([b]) - gzipped([a]));
    const first = assets.filter(name => !later.includes(name) && (!devices.includes(name) || name === devices[1]));
    expect(later.length).toBeGreaterThanOrEqual(10);
    for (const name of later) expect(page).not.toContain(name);
    expect(gzipped(['index.html', ...first])).toBeLessThan(250);
    // Without a network, too, a document can be read.
    for (const name of assets) expect(readFileSync(`${folder}sw.js`, 'utf8')).toContain(name);
  });

  it('are those of the app, and no others', async () => {
    for (const path of ['/index.html', '/../package.json', '/%2e%2e/package.json', '/assets/..%2f..%2fcli/main.js'])
      expect((await ask(path)).status, path).toBe(404);
    for (const path of ['/models/MIMIR.md', '/models/', '/models/../package.json', '/assets/', '/assets'])
      expect((await ask(path)).status, path).toBe(404);
    expect((await ask('/', {})).status).toBe(404);
  });

  it('need no key, as the routes do', async () => {
    const locked = await openServer({ web: readWebFiles(), tenants: [{ name: 'a', keys: ['a-long-key'] }] }, service);
    expect((await locked.ask('/')).status).toBe(200);
    expect((await locked.ask(script)).status).toBe(200);
    expect((await locked.ask('/status')).status).toBe(401);
  });
});

it('there is no app before it is built', () => {
  expect(readWebFiles('/nonexistent/')).toBeUndefined();
});

it('/status has the model and the bytes of its cache', async () => {
  expect(await json('/status')).toMatchObject({
    status: 'ready',
    model: 'tiny',
    info: { kv: 'tq4', pageTokens: 128, pageBytes: expect.any(Number), f16TokenBytes: expect.any(Number) },
    stats: { used: expect.any(Number), capacity: expect.any(Number), running: 0 },
  });
});

describe('return_progress', () => {
  const request = { messages: user('mead '.repeat(120)), stream: true, ...greedy(3) };

  it('streams how much of the prompt has been read', async () => {
    const events = await readEvents(await ask('/v1/chat/completions', { ...request, return_progress: true }));
    const progress = events.map(event => event.prompt_progress).filter(Boolean);
    expect(progress.length).toBeGreaterThan(0);
    const { processed, total } = progress.at(-1);
    expect(processed).toBe(total);
    const text = (list: typeof events) => list.map(event => event.choices?.[0]?.delta.content ?? '').join('');
    expect(text(events)).toBe(text(await readEvents(await ask('/v1/chat/completions', request))));
  });

  it('is off by default', async () => {
    const events = await readEvents(await ask('/v1/chat/completions', request));
    expect(events.filter(event => event.prompt_progress)).toEqual([]);
  });
});
