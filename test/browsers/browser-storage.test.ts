/** Models and sessions in a site's storage (OPFS), in headless Chromium. */
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { writeGguf } from '../support/gguf-writer.ts';
import { itAll } from '../support/matrix.ts';
import { describeWithFile, smolModel } from '../support/shared.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { openTestPage, type TestPage } from './cases.ts';
import { noChromium } from './chromium.ts';
import type { AskCase } from './page.ts';

const model = writeGguf(tinyModel({ context: 512, layers: 1 }));
const sha256 = createHash('sha256').update(model).digest('hex');
const url = '/tiny.gguf';
const load = { path: url, store: true, device: 'wasm', pageTokens: 16, questions: [], maxTokens: 8 } as const;

describe.skipIf(noChromium)(noChromium ? `in Chromium (skipped: ${noChromium})` : 'in Chromium', () => {
  let browser: TestPage;
  const ask = (options: Partial<AskCase> = {}) => browser.run('ask', { ...load, ...options });
  const paths = async () => (await browser.run('stored')).files.map(({ path }) => path.replace(/[0-9a-f]{16}/, 'ID'));
  const pathOf = async (name: string) =>
    (await browser.run('stored')).files.map(({ path }) => path).find(path => path.endsWith(name))!;

  beforeAll(async () => {
    browser = await openTestPage({ [url]: model });
    await browser.open();
  }, 120_000);
  afterAll(() => browser?.close());
  beforeEach(async () => {
    await browser.run('deleteStored');
    browser.site.files[url] = model;
    browser.site.requests.length = 0;
    browser.site.cutAfter = undefined;
  });

  it('a model is downloaded once, and loaded without a network from then on', async () => {
    expect(await ask({ sha256 })).toMatchObject({ fetched: model.length });
    browser.site.cutAfter = 0;
    await browser.open();
    expect(await ask()).toMatchObject({ fetched: 0, device: { name: 'wasm' } });
    expect(browser.site.requests).toEqual([url]);
    expect(await paths()).toEqual(['models/ID/tiny.gguf', 'models/ID/info.json']);
  });

  it('an interrupted download continues where it stopped, after a reload too', async () => {
    browser.site.cutAfter = 100_000;
    expect(await ask()).toMatchObject({
      error: { name: 'NetworkError', message: expect.stringMatching(/Load it again: it continues there/) },
    });
    browser.site.cutAfter = undefined;
    await browser.open();
    expect(await ask({ sha256 })).toMatchObject({ fetched: model.length });
    expect(browser.site.requests).toEqual([url, `${url} bytes=100000-`]);
  });

  it('a file that has changed since is downloaded from the start', async () => {
    browser.site.cutAfter = 100_000;
    await ask();
    browser.site.cutAfter = undefined;
    const changed = writeGguf(tinyModel({ context: 256, layers: 1 }));
    browser.site.files[url] = changed;
    expect(await ask({ sha256: createHash('sha256').update(changed).digest('hex') })).toMatchObject({
      fetched: changed.length,
    });
    expect(browser.site.requests).toEqual([url, `${url} bytes=100000-`, url]);
  });

  it('a file with another sha256 is refused, and not kept', async () => {
    expect(await ask({ sha256: '0'.repeat(64) })).toMatchObject({
      error: { name: 'FormatError', message: expect.stringContaining(`its sha256 is ${sha256}`) },
    });
    await ask();
    expect(browser.site.requests).toEqual([url, url]);
  });

  it('two Workers that load the same model download it once', async () => {
    const [a, b] = await browser.run('twice', load);
    expect([a.fetched, b.fetched].sort()).toEqual([0, model.length]);
    expect(browser.site.requests).toEqual([url]);
  });

  it('a session goes on after a reload', async () => {
    const questions = ['Who was Kvasir, and what was the mead of poetry made of?'];
    const first = await ask({ questions, save: 'sessions/kvasir' });
    await browser.open();
    const second = await ask({ questions, restore: 'sessions/kvasir' });
    expect(second.answers?.[0].ids).toEqual(first.answers?.[0].ids);
    expect(first.answers?.[0].reused).toBe(0);
    expect(second.answers?.[0].reused).toBeGreaterThan(questions[0].length);
    expect(await paths()).toContain('sessions/kvasir');
    expect(await ask({ restore: 'sessions/other' })).toMatchObject({
      error: { name: 'InputError', message: 'sessions/other is not stored here.' },
    });
  });

  it('what is stored can be deleted, one by one or all together', async () => {
    await ask({ save: 'sessions/a', questions: ['x'] });
    await browser.run('deleteStored', 'sessions/a');
    expect(await paths()).toEqual(['models/ID/tiny.gguf', 'models/ID/info.json']);
    await browser.run('deleteStored');
    expect(await browser.run('stored')).toMatchObject({ files: [], usage: expect.any(Number) });
  });

  it('a full storage is a CapacityError that says what to delete', async () => {
    await ask();
    const stored = await pathOf('tiny.gguf');
    const { usage } = await browser.run('stored');
    const session = await browser.page.context().newCDPSession(browser.page);
    const origin = new URL(browser.site.address).origin;
    await session.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: usage + 50_000 });
    try {
      browser.site.files['/second.gguf'] = model;
      const { error } = await ask({ path: '/second.gguf' });
      expect(error).toMatchObject({ name: 'CapacityError' });
      expect(error?.message).toMatch(/second\.gguf cannot be stored: the browser's storage is full\. .* are in use\./);
      expect(error?.message).toContain(`Delete what is not needed, such as ${stored}`);
    } finally {
      await session.send('Storage.overrideQuotaForOrigin', { origin });
    }
    // What had arrived is kept.
    expect(await ask({ path: '/second.gguf', sha256 })).toMatchObject({ fetched: model.length });
  });

  it('a model that is larger than the free storage is refused before it is downloaded', async () => {
    browser.site.files['/huge.gguf'] = { length: 2 ** 44, subarray: () => model } as unknown as Uint8Array;
    const { error } = await ask({ path: '/huge.gguf' });
    expect(error).toMatchObject({ name: 'CapacityError' });
    expect(error?.message).toMatch(/huge\.gguf needs 17.6 TB more of the browser's storage, and .* are free\./);
  });

  it('a model that does not run is refused as soon as its header has arrived, and not kept', async () => {
    const unsupported = writeGguf(tinyModel({ metadata: { 'general.architecture': 'mamba' } }));
    browser.site.files['/mamba.gguf'] = new Uint8Array(2e6);
    browser.site.files['/mamba.gguf'].set(unsupported.subarray(0, 1e6));
    browser.site.holdAfter = 3e5;
    const { error } = await ask({ path: '/mamba.gguf' });
    browser.site.holdAfter = undefined;
    expect(error).toMatchObject({ name: 'UnsupportedError', message: expect.stringContaining('"mamba"') });
    expect(await paths()).toEqual([]);
  });

  it('a file that was dropped on the page is kept', async () => {
    expect(await ask({ asFile: true })).toMatchObject({ device: { name: 'wasm' } });
    expect(await paths()).toEqual(['models/ID/dropped.gguf', 'models/ID/info.json']);
    expect(await ask({ asFile: true })).toMatchObject({ fetched: 0 });
  });

  it('loading is aborted by its signal', async () => {
    expect(await browser.run('abort', load)).toBe('AbortError');
  });

  it('a Worker whose program is missing or refused is an error that says so', async () => {
    const advice = {
      404: 'Serve engine-worker.js next to the script',
      403: "add the package's folder to `server.fs.allow`",
    };
    for (const [status, message] of Object.entries(advice)) {
      await browser.page.route('**/engine-worker.js', route => route.fulfill({ status: Number(status) }));
      expect(await ask()).toMatchObject({
        error: { name: 'DeviceError', message: expect.stringContaining(message) },
      });
      await browser.page.unroute('**/engine-worker.js');
    }
  });

  it('a host that compresses tells the size of a range', async () => {
    await browser.page.route(`**${url}`, route =>
      route.request().headers().range
        ? route.continue()
        : route.fulfill({ body: Buffer.from(model), headers: { 'content-encoding': 'identity' } }),
    );
    expect(await ask({ sha256 })).toMatchObject({ fetched: model.length });
    expect(browser.site.requests).toEqual([`${url} bytes=0-`]);
    await browser.page.unroute(`**${url}`);
  });

  it('errors of the Worker are those of loadModel', async () => {
    expect(await ask({ store: false, kv: 'tq99' })).toMatchObject({ error: { name: 'SpecError' } });
    expect(await ask({ path: '/missing.gguf' })).toMatchObject({
      error: { name: 'NetworkError', message: expect.stringContaining('the server answered 404') },
    });
    expect(await paths()).toEqual([]);
  });
});

/** The memory of a page once it has stopped to grow: Chromium starts a process for the next page in the meantime. */
async function settledMemory({ memory }: TestPage): Promise<number> {
  let [bytes, unchanged] = [0, 0];
  while (unchanged < 10) {
    const before = bytes;
    bytes = await memory();
    unchanged = Math.abs(bytes - before) < 2 ** 20 ? unchanged + 1 : 0;
    await setTimeout(100);
  }
  return bytes;
}

/**
 * Max memory that a page and its Worker take to load a model, per byte of the model. The header, with its vocabulary, is read
 * while it arrives, and again when the model is loaded: garbage that counts in a small model.
 */
const PEAK = 1.75;

describeWithFile(smolModel, 'SmolLM2 in Chromium', path => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-browser-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  // The peak depends on when garbage is collected.
  itAll(
    'is stored in little memory, loaded without a network, and goes on with a saved session',
    { retry: 2 },
    async () => {
      const bytes = readFileSync(path);
      const url = '/smollm2.gguf';
      const browser = await openTestPage({ [url]: bytes }, folder);
      const load = { path: url, store: true, device: 'wasm', context: 2048, questions: [], maxTokens: 24 } as const;
      try {
        await browser.open();
        const empty = await settledMemory(browser);
        let [peak, isLoaded] = [empty, false];
        const watch = async () => {
          while (!isLoaded) peak = Math.max(peak, await browser.memory());
        };
        const loading = browser.run('ask', load).finally(() => {
          isLoaded = true;
        });
        const [loaded] = await Promise.all([loading, watch()]);
        expect(loaded).toMatchObject({ fetched: bytes.length });
        console.log(`peak memory per byte of the model: ${((peak - empty) / bytes.length).toFixed(2)}`);
        expect((peak - empty) / bytes.length).toBeLessThan(PEAK);

        browser.site.cutAfter = 0;
        const questions = ['Who was Kvasir in Norse mythology? Answer in one sentence.'];
        await browser.open();
        const first = await browser.run('ask', { ...load, questions, save: 'sessions/norse' });
        await browser.open();
        const second = await browser.run('ask', { ...load, questions, restore: 'sessions/norse' });
        expect([first.fetched, second.fetched]).toEqual([0, 0]);
        expect(second.answers?.[0].reused).toBeGreaterThan(20);
        expect(second.answers?.[0].ids).toEqual(first.answers?.[0].ids);
      } finally {
        await browser.close();
      }
    },
  );
});
