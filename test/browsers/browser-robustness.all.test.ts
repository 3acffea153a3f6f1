/** What goes wrong in a browser, in headless Chromium: each is a typed error, and nothing is corrupt afterwards. */
import { createHash } from 'node:crypto';
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { writeGguf } from '../support/gguf-writer.ts';
import { ALL_CASES, matrix } from '../support/matrix.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { openTestPage, type TestPage } from './cases.ts';
import { loseGpu, noChromium } from './chromium.ts';
import type { AskCase } from './page.ts';

const model = writeGguf(tinyModel({ context: 512, layers: 1, headDim: 32 }));
const sha256 = createHash('sha256').update(model).digest('hex');
const url = '/tiny.gguf';
const load = { path: url, store: true, device: 'wasm', pageTokens: 16, questions: [], maxTokens: 8 } as const;

/** In a Worker: the n-th write of a stream to a file, or closing it, stops half way and reports that it has begun. */
const stallAt = (point: number | 'close') => `{
  const { write, close } = FileSystemWritableFileStream.prototype;
  const stall = () => { fetch('/stalled'); return new Promise(() => {}); };
  let writes = 0;
  FileSystemWritableFileStream.prototype.write = function (chunk) {
    return writes++ === ${point} ? write.call(this, chunk.subarray(0, chunk.length / 2)).then(stall) : write.call(this, chunk);
  };
  FileSystemWritableFileStream.prototype.close = function () {
    if ('${point}' !== 'close') return close.call(this);
    // The tab is closed while the browser replaces the file.
    close.call(this);
    return stall();
  };
}`;

describe.skipIf(noChromium)(noChromium ? `in Chromium (skipped: ${noChromium})` : 'in Chromium', () => {
  let browser: TestPage;
  const ask = (options: Partial<AskCase> = {}) => browser.run('ask', { ...load, ...options });
  const stored = async () => (await browser.run('stored')).files;
  const sizeOf = async (name: string) => (await stored()).find(({ path }) => path.endsWith(name))?.bytes;

  beforeAll(async () => {
    browser = await openTestPage({ [url]: model });
    await browser.open();
  }, 120_000);
  afterAll(() => browser?.close());
  beforeEach(async () => {
    await browser.run('deleteStored');
    browser.site.requests.length = 0;
    browser.site.holdAfter = undefined;
  });

  describe('a tab that is closed while it saves a session', () => {
    const path = 'sessions/kvasir';
    const first = ['Who was Kvasir?'];
    const both = [...first, 'What was the mead of poetry made of, and who drank it?'];

    const saveAndClose = async (point: number | 'close', options: Partial<AskCase>) => {
      const tab = await browser.openTab(stallAt(point));
      const stalled = tab.page.waitForRequest('**/stalled');
      tab.run('ask', { ...load, save: path, ...options }).catch(() => {});
      await stalled;
      await tab.page.close();
    };

    it.each(matrix([0, 1, 2], { 1: 'between header and tail' }))('leaves the one before: write %i', async point => {
      const before = await ask({ questions: first, save: path });
      const [{ bytes }] = (await stored()).filter(file => file.path === path);
      await saveAndClose(point, { restore: path, questions: both });
      expect(await sizeOf(path)).toBe(bytes);
      const { answers } = await ask({ restore: path, questions: first });
      expect(answers?.[0].ids).toEqual(before.answers?.[0].ids);
      expect(answers?.[0].reused).toBeGreaterThan(first[0].length);
      // No copies are left behind.
      expect((await stored()).map(file => file.path).filter(name => name.startsWith('sessions'))).toEqual([path]);
    });

    it('leaves the one before or the new one: while the file is replaced', async () => {
      await ask({ questions: first, save: path });
      await saveAndClose('close', { restore: path, questions: both });
      const { answers, error } = await ask({ restore: path, questions: both });
      expect(error).toBeUndefined();
      expect(answers?.[0].reused).toBeGreaterThan(first[0].length);
    });

    it('leaves none if there was none, and the next one is saved', async () => {
      await ask();
      await saveAndClose(1, { questions: first });
      expect(await ask({ restore: path })).toMatchObject({
        error: { name: 'InputError', message: `${path} is not stored here.` },
      });
      await ask({ questions: first, save: path });
      expect((await ask({ restore: path, questions: first })).answers?.[0].reused).toBeGreaterThan(0);
    });
  });

  describe('a tab that is closed while it downloads a model', () => {
    it.each(matrix([0, 1, 100_000, model.length - 1], { 100000: 'in the middle' }))(
      'after %i bytes: the next one continues there',
      async bytes => {
        browser.site.holdAfter = bytes;
        const tab = await browser.openTab();
        tab.run('ask', load).catch(() => {});
        await expect.poll(() => sizeOf('info.json')).toBeGreaterThan(0);
        await expect.poll(() => sizeOf('tiny.gguf')).toBe(bytes);
        await tab.page.close();
        browser.site.holdAfter = undefined;
        expect(await ask({ sha256 })).toMatchObject({ fetched: model.length, device: { name: 'wasm' } });
        expect(browser.site.requests).toEqual([url, bytes === 0 ? url : `${url} bytes=${bytes}-`]);
      },
    );

    it('before it is marked as complete: it is downloaded again', async () => {
      // The first write of info.json begins the download, the second one completes it.
      const tab = await browser.openTab(stallAt(1));
      const stalled = tab.page.waitForRequest('**/stalled');
      tab.run('ask', load).catch(() => {});
      await stalled;
      await tab.page.close();
      expect(await ask({ sha256 })).toMatchObject({ device: { name: 'wasm' } });
      browser.site.requests.length = 0;
      expect(await ask()).toMatchObject({ fetched: 0 });
      expect(browser.site.requests).toEqual([]);
    });
  });

  it('a session for which there is no space is a CapacityError, and the one before stays', async () => {
    const questions = ['Who was Kvasir?'];
    const before = await ask({ questions, save: 'sessions/a' });
    const { usage } = await browser.run('stored');
    const devtools = await browser.page.context().newCDPSession(browser.page);
    const origin = new URL(browser.site.address).origin;
    await devtools.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: usage + 1000 });
    try {
      const more = { questions: ['Tell me all about the mead of poetry, from the start.'], restore: 'sessions/a' };
      for (const save of ['sessions/a', 'sessions/b'])
        expect(await ask({ ...more, save })).toMatchObject({
          error: { name: 'CapacityError', message: expect.stringContaining(`${save} cannot be stored: the browser's`) },
        });
    } finally {
      await devtools.send('Storage.overrideQuotaForOrigin', { origin });
    }
    const { answers } = await ask({ restore: 'sessions/a', questions });
    expect(answers?.[0].ids).toEqual(before.answers?.[0].ids);
    expect(await sizeOf('sessions/b')).toBeUndefined();
  });

  describe('a picked file that changes on disk', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-picked-'));
    const path = join(folder, 'picked.gguf');
    afterAll(() => rmSync(folder, { recursive: true }));

    /** As a page that shows its size. */
    const pick = async () => {
      writeFileSync(path, model);
      await browser.page.setInputFiles('input', path);
      await browser.page.evaluate(() => document.querySelector('input')!.files![0].size);
    };

    const CHANGES: [string, boolean, () => void][] = [
      ['is changed', false, () => appendFileSync(path, 'x')],
      ['is changed before it is stored', true, () => appendFileSync(path, 'x')],
      ['is deleted', false, () => rmSync(path)],
      ['is deleted before it is stored', true, () => rmSync(path)],
    ];
    const representatives = {
      'is changed': 'reading fails',
      'is deleted before it is stored': 'the store checks itself',
    };
    it.each(matrix(CHANGES, representatives, ([name]) => name))(
      '%s: must be chosen again',
      async (_, store, change) => {
        await pick();
        change();
        expect(await ask({ asFile: 'picked', store })).toMatchObject({
          error: {
            name: 'InputError',
            message: expect.stringMatching(
              /^picked\.gguf cannot be read \(.*\)\. If the file was changed, choose it again\.$/,
            ),
          },
        });
        await pick();
        expect(await ask({ asFile: 'picked', store })).toMatchObject({ device: { name: 'wasm' } });
      },
    );
  });

  it('a lost GPU is a DeviceError of the answer, of the next one and of the service; a new one works', async () => {
    const tab = await browser.openTab();
    const found = tab.run('loseGpu', { ...load, device: 'webgpu' });
    await tab.page.waitForFunction(() => 'isAnswering' in globalThis);
    await loseGpu(tab.page);
    const lost = { name: 'DeviceError', message: expect.stringMatching(/GPU device was lost .* load it again/) };
    expect(await found).toEqual({ during: lost, after: lost, ended: lost });
    // Compiling the kernels again takes SwiftShader long.
    const device = ALL_CASES ? 'webgpu' : 'wasm';
    expect(await tab.run('ask', { ...load, device, questions: ['x'] })).toMatchObject({
      device: { name: device },
      answers: [{ ids: expect.any(Array) }],
    });
    await tab.page.close();
  });

  describe('two tabs', () => {
    it('that save the same session leave one of the two', async () => {
      await ask();
      const other = await browser.openTab();
      const questions = [['Who was Kvasir?'], ['What was the mead of poetry made of?']];
      const path = 'sessions/shared';
      const [a, b] = await Promise.all([
        ask({ questions: questions[0], save: path }),
        other.run('ask', { ...load, questions: questions[1], save: path }),
      ]);
      expect([a.error, b.error]).toEqual([undefined, undefined]);
      const reused = await Promise.all(
        questions.map(async one => (await ask({ restore: path, questions: one })).answers?.[0].reused ?? 0),
      );
      expect(Math.max(...reused)).toBeGreaterThan(questions[0][0].length);
      await other.page.close();
    });

    it('one deletes everything while the other one downloads: an error says so, until that tab is closed', async () => {
      browser.site.holdAfter = 1000;
      const other = await browser.openTab();
      // It fails when its tab is closed.
      const loading = other.run('ask', { ...load, sha256 }).catch(() => {});
      await expect.poll(() => sizeOf('tiny.gguf')).toBe(1000);
      await expect(browser.run('deleteStored')).rejects.toThrow(/tiny\.gguf is in use, maybe by another tab/);
      await other.page.close();
      await loading;
      // Chromium closes the files of a tab a little later.
      await expect.poll(() => browser.run('deleteStored').then(stored, () => 'in use')).toEqual([]);
    });
  });
});
