/** The tier of browsers: the disk store on a site's storage (OPFS), in headless Chromium. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeGguf } from '../support/gguf-writer.ts';
import { countIntact, storeSuite, testRecord, testRecords } from '../support/store-suite.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { openTestPage, type TestPage } from './cases.ts';
import { noChromium } from './chromium.ts';
import { openRemoteStore } from './remote-store.ts';

const file = writeGguf(tinyModel({ context: 512, layers: 1 }));

describe.skipIf(noChromium)(noChromium ? `in Chromium (skipped: ${noChromium})` : 'in Chromium', () => {
  let browser: TestPage;
  let models = 0;
  /** Each has a folder of its own. */
  const newModel = () => (++models).toString(16).padStart(64, '0').split('').reverse().join('');
  const open = (model = newModel(), capacity = 4e6) => openRemoteStore(browser.page, model, capacity);

  beforeAll(async () => {
    browser = await openTestPage({ '/tiny.gguf': file });
    await browser.open();
  }, 120_000);
  afterAll(() => browser?.close());

  describe('the store', () => {
    storeSuite(() => open());
  });

  it('a store is found again after a reload', async () => {
    const [model, records] = [newModel(), testRecords(40, 5000)];
    const store = await open(model);
    await store.put(records);
    await store.close();
    await browser.open();
    const again = await open(model);
    expect(await countIntact(again, records)).toBe(40);
    expect(again.stats).toMatchObject({ records: 40, errors: 0 });
    await again.close();
  });

  it('so is one whose Worker is killed', async () => {
    const [model, records] = [newModel(), testRecords(40, 5000)];
    const store = await open(model);
    await store.put(records);
    await browser.page.evaluate(() =>
      (globalThis as unknown as { cases: { terminateStore(): void } }).cases.terminateStore(),
    );
    const again = await open(model);
    expect(await countIntact(again, records)).toBe(40);
    expect(again.stats.errors).toBe(0);
    await again.close();
  });

  it('a store that is full evicts what is oldest, and removes its files', async () => {
    const model = newModel();
    const store = await open(model, 2.5e6);
    for (let i = 0; i < 5; i++) await store.put(testRecords(4, 200_000, 4 * i));
    const { evictions, errors, bytes } = store.stats;
    expect(evictions).toBeGreaterThan(4);
    expect(errors).toBe(0);
    expect(bytes).toBeLessThanOrEqual(2.5e6);
    expect(await countIntact(store, testRecords(4, 200_000, 16))).toBe(4);
    const { files } = await browser.run('stored');
    const stored = files.filter(({ path }) => path.startsWith(`leaves/${model.slice(0, 16)}/`));
    expect(stored.reduce((sum, { bytes }) => sum + bytes, 0)).toBeLessThan(2.6e6);
    await store.close();
  });

  it('a second tab gets an error that says so', async () => {
    const model = newModel();
    const store = await open(model);
    const tab = await browser.page.context().newPage();
    await tab.goto(browser.site.address);
    await tab.waitForFunction(() => 'cases' in globalThis);
    const second = () => openRemoteStore(tab, model, 4e6);
    await expect(second()).rejects.toMatchObject({
      name: 'InputError',
      message: `leaves/${model.slice(0, 16)} is in use by another tab. Close that tab and try again.`,
    });
    await store.put(testRecords(3));
    await store.close();
    const taken = await second();
    expect(await countIntact(taken, testRecords(3))).toBe(3);
    await tab.close();
  });

  it('a full storage is counted, and what was stored before is found', async () => {
    const store = await open();
    await store.put(testRecords(5, 10_000));
    const session = await browser.page.context().newCDPSession(browser.page);
    const origin = new URL(browser.site.address).origin;
    const { usage } = await browser.run('stored');
    await session.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: usage + 50_000 });
    try {
      await store.put([testRecord(100, 200_000)]);
      expect(store.stats.lastError).toMatch(/cannot be written: the browser's storage is full/);
    } finally {
      await session.send('Storage.overrideQuotaForOrigin', { origin });
    }
    expect(await countIntact(store, testRecords(5, 10_000))).toBe(5);
    await store.put([testRecord(100, 200_000)]);
    expect(await countIntact(store, [testRecord(100, 200_000)])).toBe(1);
    await store.close();
  });

  it('pages of a prompt are found again after a reload, and the answer is the same', async () => {
    const ask = () =>
      browser.run('ask', {
        ...{ path: '/tiny.gguf', device: 'wasm', pageTokens: 16, maxTokens: 8, tiers: 'opfs=64MB' },
        questions: ['Who was Kvasir, and what was the mead of poetry made of?'],
      });
    const first = await ask();
    await browser.open();
    const second = await ask();
    expect(second.answers?.[0].ids).toEqual(first.answers?.[0].ids);
    expect(first.answers?.[0].reused).toBe(0);
    expect(second.answers?.[0].reused).toBeGreaterThan(50);
  });

  it('a page without a Worker is told to use one', async () => {
    const generate = browser.run('generate', {
      ...{ path: '/tiny.gguf', device: 'wasm', prompt: 'x', maxTokens: 1, tiers: 'opfs=64MB' },
    });
    await expect(generate).rejects.toThrow(/stored by a Worker. Load the model with startWorker/);
  });
});
