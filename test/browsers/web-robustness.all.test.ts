/** The web app when something goes wrong, in Chromium: it says so, and the conversation is not lost. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { writeGguf } from '../support/gguf-writer.ts';
import { itAll } from '../support/matrix.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { loseGpu, noChromium } from './chromium.ts';
import { DESKTOP, LAN_HOST, type OpenApp, openApp, type Visit } from './open-app.ts';

vi.setConfig({ testTimeout: 240_000 });

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-app-'));
  const tiny = join(folder, 'tiny.gguf');
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp({ hosts: [LAN_HOST] });
  }, 120_000);
  beforeEach(() =>
    writeFileSync(tiny, writeGguf(tinyModel({ endless: true, tied: false, headDim: 32, context: 1024 }))),
  );
  afterAll(async () => {
    await app?.close();
    rmSync(folder, { recursive: true });
  });

  const ask = async ({ page }: Visit, question: string) => {
    await page.locator('#composer').fill(question);
    await page.keyboard.press('Enter');
  };

  /** The app with a small model from a file on this browser's CPU. */
  const openTiny = async (): Promise<Visit> => {
    const visit = await app.visit(DESKTOP);
    const { page } = visit;
    await page.evaluate(() => localStorage.setItem('kvasir.settings', '{"place":"browser","device":"wasm"}'));
    await page.reload();
    await page.locator('.badge-name', { hasText: 'Mimir' }).waitFor();
    await page.setInputFiles('input[accept=".gguf"]', tiny);
    await page.locator('.field', { hasText: 'Model: tiny.gguf' }).waitFor();
    await page.locator('.badge-name').waitFor();
    return visit;
  };

  itAll('runs on the GPU; when it is lost, the conversation goes on on the CPU', async () => {
    const visit = await openTiny();
    const { page, answer } = visit;
    await page.getByRole('combobox', { name: 'Runs on' }).selectOption({ label: 'This browser, on the GPU' });
    await page.locator('.facts', { hasText: 'GPU (WebGPU)' }).waitFor({ state: 'attached', timeout: 120_000 });
    await ask(visit, 'Tell me all.');
    await page.locator('.answer .markdown').waitFor({ state: 'attached', timeout: 120_000 });
    await loseGpu(page);
    await page.locator('.answer .problem', { hasText: 'The GPU device was lost' }).waitFor();
    await page.locator('.badge', { hasText: 'No model' }).waitFor();
    expect(await visit.violations()).toEqual([]);
    await page.getByRole('button', { name: 'Use the CPU' }).click();
    await page.locator('.facts', { hasText: 'CPU (wasm)' }).waitFor({ state: 'attached' });
    await page.getByRole('button', { name: 'Answer again' }).click();
    await answer(1);
    expect(await page.locator('.answer .problem').count()).toBe(0);
    expect(await page.locator('.bubble').allTextContents()).toEqual(['Tell me all.']);
    await visit.context.close();
  });

  itAll('a model file that was deleted must be chosen again; Mimir is one click away', async () => {
    const visit = await openTiny();
    const { page } = visit;
    rmSync(tiny);
    await page.getByRole('radio', { name: 'tq3' }).click();
    await page.getByText(/tiny\.gguf cannot be read .*choose it again/).waitFor();
    await page.getByRole('button', { name: 'Use Mimir' }).click();
    await page.locator('.badge-name', { hasText: 'Mimir' }).waitFor();
    await visit.context.close();
  });

  it('a full storage is told, and the conversation goes on', async () => {
    const visit = await openTiny();
    const { page, answer } = visit;
    const devtools = await visit.context.newCDPSession(page);
    const { usage } = await page.evaluate(() => navigator.storage.estimate());
    const { origin } = new URL(app.url);
    await devtools.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: usage! + 5000 });
    await ask(visit, 'Who was Kvasir?');
    await answer(1);
    await page.getByText(/The cache could not be saved: .* the browser's storage is full/).waitFor();
    expect(await visit.violations()).toEqual([]);
    await page.getByRole('alert').getByRole('button', { name: 'Close' }).click();
    await ask(visit, 'And what was the mead of poetry made of?');
    await answer(2);
    // Of conversations too: a document that does not fit.
    const text = 'The mead of poetry. '.repeat(5000);
    await devtools.send('Storage.overrideQuotaForOrigin', { origin, quotaSize: 1000 });
    await ask(visit, text);
    await page.getByText(/The conversation could not be saved: the storage of this browser is full/).waitFor();
    await page.getByRole('alert').getByRole('button', { name: 'Close' }).click();
    await page.getByText('Not saved: it is only in this tab').waitFor();
    expect(await visit.violations()).toEqual([]);
    await devtools.send('Storage.overrideQuotaForOrigin', { origin });
    await page.getByRole('button', { name: 'Save again' }).click();
    await page.getByText('Not saved: it is only in this tab').waitFor({ state: 'detached' });
    await visit.context.close();
  });

  it('two tabs show the same conversations, and do not answer in one at the same time', async () => {
    const first = await app.visit(DESKTOP);
    await first.page.locator('.badge-name').waitFor();
    const second = await app.openTab(first);
    await second.page.locator('.badge-name').waitFor();
    await ask(first, 'Tell me a story about a lost teapot.');
    await second.page.getByRole('button', { name: 'Tell me a story about a lost teapot.', exact: true }).click();
    await ask(second, 'And another one.');
    await second.page.getByText(/Another tab answers in this conversation/).waitFor();
    const story = await first.answer(1);
    expect(story.length).toBeGreaterThan(20);
    expect(await second.answer(1)).toBe(story);
    await ask(second, 'And another one.');
    await second.answer(2);
    await first.answer(2);
    expect(await first.page.locator('.bubble').count()).toBe(2);
    await second.page.getByRole('button', { name: 'Delete all that is stored' }).click();
    await second.page.getByRole('dialog').getByRole('button', { name: 'Delete', exact: true }).click();
    for (const { page } of [first, second]) await page.locator('.conversation').waitFor({ state: 'detached' });
    await first.context.close();
  });

  it('a part of the page that is gone after an update is told, and can be loaded again', async () => {
    const visit = await app.visit(DESKTOP);
    const { page } = visit;
    await page.locator('.badge-name').waitFor();
    await page.evaluate(async () => {
      for (const worker of await navigator.serviceWorker.getRegistrations()) await worker.unregister();
      for (const name of await caches.keys()) await caches.delete(name);
    });
    const asset = /compare-.*\.js/;
    await visit.context.route(asset, route => route.fulfill({ status: 404 }));
    await page.getByRole('button', { name: 'Compare codecs' }).click();
    await page.getByText('the page was updated, or there is no network').waitFor();
    expect(await visit.violations()).toEqual([]);
    await visit.context.unroute(asset);
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.getByRole('heading', { name: 'The same questions, two caches' }).waitFor();
    await visit.context.close();
  });

  itAll('works without https, as on the page of a server in the same network', async () => {
    const visit = await app.visit(DESKTOP, 'light', app.url.replace('127.0.0.1', LAN_HOST));
    const { page, answer } = visit;
    expect(await page.evaluate(() => isSecureContext)).toBe(false);
    await page.locator('.badge-name').waitFor();
    await ask(visit, 'Tell me a story about a lost teapot.');
    expect((await answer(1)).length).toBeGreaterThan(20);
    await page.reload();
    expect((await answer(1)).length).toBeGreaterThan(20);
    await page.getByRole('combobox', { name: 'Runs on' }).selectOption({ label: 'This browser, on the CPU' });
    await page.locator('.codecs').waitFor();
    await page.locator('.facts', { hasText: 'as requested' }).waitFor({ state: 'attached' });
    await ask(visit, 'And another one.');
    expect(await answer(2)).not.toBe('');
    // A model from an address is loaded, but not kept.
    await page.getByText('Models from the hub').click();
    await page.getByLabel('Name of a model on the hub').fill('./models/mimir.gguf');
    await page.keyboard.press('Enter');
    await page.locator('.field', { hasText: 'Model: mimir.gguf' }).waitFor();
    await page.locator('.badge-name').waitFor();
    expect(await page.locator('.problem, .notice-row').count()).toBe(0);
    await visit.context.close();
  });
});
