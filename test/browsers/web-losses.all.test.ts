/** The web app in Chromium, when it is left, crashes or loses its server: what was written and answered is still there. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { arrayOf, writeGguf } from '../support/gguf-writer.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp, type Visit } from './open-app.ts';

vi.setConfig({ testTimeout: 240_000 });

const STORY = 'Tell me a story about a lost teapot.';

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-app-'));
  /** Has no end token, and writes letters and spaces only: its answers last, and no Markdown changes what is shown. */
  const tiny = join(folder, 'tiny.gguf');
  /** Tied to its embeddings, it repeats the last token. */
  const loop = join(folder, 'loop.gguf');
  let app: OpenApp;
  beforeAll(async () => {
    const letters = [...'abcdefghijklmnopqrstuvwxyz', '\u0120'];
    const metadata = {
      'tokenizer.ggml.tokens': letters,
      'tokenizer.ggml.token_type': arrayOf(
        'i32',
        letters.map(() => 1),
      ),
    };
    const endless = tinyModel({
      tied: false,
      headDim: 32,
      context: 8192,
      endless: true,
      vocab: letters.length,
      metadata,
    });
    writeFileSync(tiny, writeGguf(endless));
    writeFileSync(loop, writeGguf(tinyModel({ headDim: 32, context: 1024 })));
    app = await openApp();
  }, 120_000);
  afterEach(() => {
    app.pauseMs = 0;
  });
  afterAll(async () => {
    await app?.close();
    rmSync(folder, { recursive: true });
  });

  /** A visit with these settings. */
  const visitWith = async (settings: object): Promise<Visit> => {
    const visit = await app.visit(DESKTOP);
    await visit.page.evaluate(text => localStorage.setItem('kvasir.settings', text), JSON.stringify(settings));
    await visit.page.reload();
    await visit.page.locator('.badge-name').waitFor();
    return visit;
  };

  const ask = async ({ page }: Visit, question: string) => {
    await page.locator('#composer').fill(question);
    await page.keyboard.press('Enter');
  };

  /** Waits until the answer has this many characters, and returns it. */
  const partOfAnswer = async ({ page }: Visit, length = 40): Promise<string> => {
    const found = await page.waitForFunction(length => {
      const text = document.querySelector('.answer .markdown')?.textContent ?? '';
      return text.length > length ? text : undefined;
    }, length);
    return (await found.jsonValue())!;
  };

  const goOn = async ({ page }: Visit, label = 'Go on') => {
    await page.getByRole('button', { name: label, exact: true }).click();
    await page.getByRole('button', { name: label, exact: true }).waitFor({ state: 'detached' });
  };

  describe('an answer of a page that is left', () => {
    it('is saved every second: a crash loses no more', async () => {
      const visit = await visitWith({ temperature: 0 });
      app.pauseMs = 100;
      await ask(visit, STORY);
      const seen = await partOfAnswer(visit, 20);
      await visit.page.waitForTimeout(1500);
      const devtools = await visit.context.newCDPSession(visit.page);
      const crashed = visit.page.waitForEvent('crash');
      void devtools.send('Page.crash').catch(() => {});
      await crashed;
      const next = await visit.context.newPage();
      await next.goto(app.url);
      await next.getByText('The page was left before this answer was complete.').waitFor();
      expect((await next.locator('.answer .markdown').textContent())!.startsWith(seen.trimEnd())).toBe(true);
      await visit.context.close();
    });

    it('is whole if it was complete, though the conversation was not saved with it yet', async () => {
      const visit = await visitWith({ temperature: 0, maxTokens: 16 });
      await visit.page.evaluate(() => {
        const seen = new MutationObserver(() => {
          const text = document.querySelector('.answer:has(.stats) .markdown')?.textContent;
          if (!text) return;
          sessionStorage.setItem('seen', text);
          seen.disconnect();
          location.reload();
        });
        seen.observe(document.body, { childList: true, subtree: true });
      });
      await ask(visit, STORY);
      await visit.page.waitForEvent('load');
      await visit.page.locator('.badge-name').waitFor();
      const seen = await visit.page.evaluate(() => sessionStorage.getItem('seen'));
      expect(seen).toMatch(/\w/);
      expect(await visit.answer(1)).toBe(seen!.trim());
      expect(await visit.page.getByText('The page was left').count()).toBe(0);
      await visit.context.close();
    });

    it('is kept with the answer that it was to take the place of', async () => {
      const visit = await visitWith({ temperature: 0, maxTokens: 16 });
      await ask(visit, STORY);
      const first = await visit.answer(1);
      await ask(visit, 'And then?');
      await visit.answer(2);
      app.pauseMs = 3000;
      await visit.page.getByRole('button', { name: 'Answer again' }).first().click();
      await visit.page.locator('.answer[aria-busy=true]').waitFor();
      await visit.page.reload();
      await visit.page.getByText('The page was left before this answer was complete.').waitFor();
      await visit.page.getByRole('button', { name: 'Previous version' }).click();
      expect(await visit.answer(1)).toBe(first);
      expect(await visit.page.locator('.question').count()).toBe(2);
      await visit.context.close();
    });

    it('a question without an answer can be answered', async () => {
      const visit = await visitWith({});
      app.pauseMs = 3000;
      await ask(visit, STORY);
      await visit.page.locator('.answer').waitFor();
      await visit.page.reload();
      await visit.page.getByText('Not answered yet.').waitFor();
      app.pauseMs = 0;
      await visit.page.locator('.badge-name').waitFor();
      await goOn(visit, 'Answer');
      expect((await visit.answer(1)).length).toBeGreaterThan(20);
      await visit.context.close();
    });
  });

  it('drafts and their documents belong to their conversation, after a reload too', async () => {
    const visit = await visitWith({ temperature: 0 });
    const { page } = visit;
    const draft = () => page.locator('#composer').inputValue();
    await ask(visit, STORY);
    await visit.answer(1);
    await page.locator('#composer').fill('And the cup?');
    await page.getByRole('button', { name: 'New conversation' }).click();
    expect(await draft()).toBe('');
    await page.setInputFiles('input[accept^="text"]', {
      name: 'codes.txt',
      mimeType: 'text/plain',
      buffer: Buffer.from('The door code of the old mill is 4817. '.repeat(8)),
    });
    await page.locator('#composer').pressSequentially('What is the door code of the old mill?');
    await page.reload();
    await page.locator('.attachment', { hasText: 'codes.txt' }).waitFor();
    expect(await draft()).toBe('What is the door code of the old mill?');
    await page.getByRole('button', { name: STORY, exact: true }).click();
    expect(await draft()).toBe('And the cup?');
    expect(await page.locator('.attachment').count()).toBe(0);
    await page.getByRole('button', { name: 'New conversation' }).click();
    await page.locator('.badge-name').waitFor();
    await page.locator('#composer').press('Enter');
    expect(await visit.answer(1)).toBe('4817');
    expect(await draft()).toBe('');
    await page.reload();
    await visit.answer(1);
    expect(await draft()).toBe('');
    await visit.context.close();
  });

  it('a question that is edited stays in its editor until it can be answered', async () => {
    const visit = await visitWith({ temperature: 0, maxTokens: 16 });
    const { page } = visit;
    await ask(visit, STORY);
    await visit.answer(1);
    await page.getByRole('button', { name: 'Edit' }).first().click();
    await app.kill();
    await page.locator('.badge', { hasText: 'No server' }).waitFor();
    // Nothing can be asked, and the page says why; also where caches are compared.
    expect(await page.getByRole('button', { name: 'Ask again' }).isDisabled()).toBe(true);
    expect(await page.getByRole('button', { name: 'Answer again' }).getAttribute('title')).toBe('No model is ready.');
    await page.getByText('Compare codecs').click();
    await page.locator('.problem-row', { hasText: 'The server does not answer' }).waitFor();
    await page.getByText('Compare codecs').click();
    await page.locator('.editor textarea').fill('Tell me a story about a cat.');
    await page.keyboard.press('Enter');
    expect(await page.locator('.editor textarea').inputValue()).toBe('Tell me a story about a cat.');
    await app.revive();
    await page.locator('.badge-name').waitFor({ timeout: 60_000 });
    await page.locator('.editor textarea').focus();
    await page.keyboard.press('Enter');
    await page.locator('.bubble', { hasText: 'a story about a cat' }).waitFor();
    await visit.answer(1);
    await visit.context.close();
  });

  it('a killed server is told, the question is kept, and all goes on when it is back', async () => {
    // Mimir was loaded here before, and is kept.
    const visit = await visitWith({ place: 'browser', device: 'wasm', temperature: 0 });
    const { page } = visit;
    await page.getByRole('combobox', { name: 'Runs on' }).selectOption({ label: 'This server' });
    await page.locator('.chip', { hasText: 'tq4' }).waitFor();
    app.pauseMs = 40;
    await ask(visit, STORY);
    const seen = await partOfAnswer(visit);
    await app.kill();
    await page.locator('.problem-row', { hasText: 'The server does not answer' }).waitFor();
    await page.locator('.badge', { hasText: 'No server' }).locator('.dot.failed').waitFor();
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.getByRole('button', { name: 'Use this browser' }).waitFor();
    expect(await page.locator('.bubble').allTextContents()).toEqual([STORY]);
    expect((await visit.answer(1)).startsWith(seen.trimEnd())).toBe(true);
    await page.locator('#composer').fill('And then?');
    expect(await visit.violations()).toEqual([]);
    app.pauseMs = 0;
    await app.revive();
    await page.locator('.badge-name').waitFor({ timeout: 60_000 });
    expect(await page.locator('#composer').inputValue()).toBe('And then?');
    await goOn(visit);
    expect((await visit.answer(1)).startsWith(seen.trimEnd())).toBe(true);
    // A server that is not asked anything is missed too.
    await app.kill();
    await page.locator('.badge', { hasText: 'No server' }).waitFor();
    await page.getByRole('button', { name: 'Use this browser' }).click();
    await page.locator('.facts', { hasText: 'as requested' }).waitFor({ state: 'attached' });
    await app.revive();
    await page.locator('#composer').press('Enter');
    await visit.answer(2);
    await visit.context.close();
  });

  describe('a model', () => {
    const openTiny = async (settings: object = {}): Promise<Visit> => {
      const visit = await visitWith({ place: 'browser', device: 'wasm', ...settings });
      await visit.page.setInputFiles('input[accept=".gguf"]', tiny);
      await visit.page.locator('.field', { hasText: 'Model: tiny.gguf' }).waitFor();
      await visit.page.locator('.badge-name').waitFor();
      return visit;
    };

    it('from a file: must be chosen again after a reload, unless it is kept; its answers go on', async () => {
      const visit = await openTiny({ temperature: 1.5 });
      const { page } = visit;
      await page.reload();
      await page.getByText(/tiny\.gguf was opened from a file/).waitFor();
      await page.getByRole('button', { name: 'Choose tiny.gguf' }).waitFor();
      expect(await visit.violations()).toEqual([]);
      await page.setInputFiles('.problem-row input[type=file]', tiny);
      await page.locator('.badge-name').waitFor();
      await page.getByRole('button', { name: /Keep it in this browser \(\d+ KB\)/ }).click();
      await page.locator('.stored', { hasText: 'tiny.gguf' }).waitFor();
      await page.getByRole('button', { name: /Keep it/ }).waitFor({ state: 'detached' });
      await page.locator('.badge-name').waitFor();
      await ask(visit, 'Tell me all.');
      await partOfAnswer(visit, 10);
      await page.reload();
      await page.getByText('The page was left before this answer was complete.').waitFor();
      const kept = await visit.answer(1);
      expect(kept.length).toBeGreaterThan(10);
      await page.locator('.field', { hasText: 'Model: tiny.gguf' }).waitFor();
      await page.locator('.badge-name').waitFor();
      await goOn(visit);
      await page.keyboard.press('Escape');
      expect((await visit.answer(1)).startsWith(kept)).toBe(true);
      await visit.context.close();
    });

    it('that is none is not stored, and the one before is opened after a reload', async () => {
      const visit = await visitWith({ place: 'browser', device: 'wasm' });
      const { page } = visit;
      await page.getByText('Models from the hub').click();
      await page.getByLabel('Name of a model on the hub').fill(`${app.url}/`);
      await page.keyboard.press('Enter');
      await page.locator('.problem-row', { hasText: 'not a GGUF file' }).waitFor();
      expect(await page.locator('.stored li').count()).toBe(1);
      await page.reload();
      await page.locator('.badge-name', { hasText: 'Mimir' }).waitFor();
      await visit.context.close();
    });

    it('has nothing in its cache of what another one has read', async () => {
      const visit = await visitWith({ place: 'browser', device: 'wasm', temperature: 0 });
      const { page } = visit;
      const figure = page.locator('.card', { hasText: 'still fit' }).locator('.figure');
      await ask(visit, STORY);
      await visit.answer(1);
      expect(await figure.textContent()).toMatch(/^[1-9]/);
      await page.setInputFiles('input[accept=".gguf"]', tiny);
      await page.locator('.field', { hasText: 'Model: tiny.gguf' }).waitFor();
      await page.locator('.badge-name').waitFor();
      expect(await figure.textContent()).toMatch(/^0 of/);
      await visit.context.close();
    });
  });

  it('another conversation is answered at the same time', async () => {
    const visit = await visitWith({ temperature: 0 });
    const { page } = visit;
    app.pauseMs = 200;
    await ask(visit, STORY);
    await partOfAnswer(visit, 5);
    await page.getByRole('button', { name: 'New conversation' }).click();
    expect(await page.getByRole('button', { name: 'Stop' }).count()).toBe(0);
    await ask(visit, 'Tell me a story about a cat.');
    await page.getByRole('button', { name: 'Stop' }).waitFor();
    await page.locator('.conversation .running').nth(1).waitFor();
    await page.keyboard.press('Escape');
    await visit.answer(1);
    // Only the one that is shown was stopped.
    expect(await page.locator('.conversation .running').count()).toBe(1);
    app.pauseMs = 0;
    await page.getByRole('button', { name: STORY, exact: true }).click();
    expect((await visit.answer(1)).length).toBeGreaterThan(40);
    await visit.context.close();
  });

  it('a message that cannot be sent because another tab answers is not lost', async () => {
    const first = await visitWith({});
    const second = await app.openTab(first);
    await second.page.locator('.badge-name').waitFor();
    app.pauseMs = 40;
    await ask(first, STORY);
    await second.page.getByRole('button', { name: STORY, exact: true }).click();
    await ask(second, 'And another one.');
    await second.page.getByText(/Another tab answers in this conversation/).waitFor();
    expect(await second.page.locator('#composer').inputValue()).toBe('And another one.');
    app.pauseMs = 0;
    await first.answer(1);
    await second.answer(1);
    await second.page.locator('#composer').press('Enter');
    await second.answer(2);
    await first.context.close();
  });

  it('an answer ends at its maximum length, and when it repeats itself', async () => {
    const visit = await visitWith({ temperature: 0, maxTokens: 256 });
    const { page } = visit;
    await page.getByLabel('Maximum length').selectOption('512');
    expect(await page.evaluate(() => JSON.parse(localStorage.getItem('kvasir.settings')!).maxTokens)).toBe(512);
    await page.evaluate(() => localStorage.setItem('kvasir.settings', '{"temperature":0,"maxTokens":12}'));
    await page.reload();
    await page.locator('.badge-name').waitFor();
    await ask(visit, STORY);
    await page.getByText('Cut off: the maximum length is reached').waitFor();
    expect(await page.locator('.stats').textContent()).toMatch(/12 tokens/);
    await visit.context.close();

    const looping = await visitWith({ place: 'browser', device: 'wasm', temperature: 0 });
    await looping.page.setInputFiles('input[accept=".gguf"]', loop);
    await looping.page.locator('.field', { hasText: 'Model: loop.gguf' }).waitFor();
    await looping.page.locator('.badge-name').waitFor();
    await ask(looping, 'Again and again.');
    await looping.page.getByText('Stopped: the answer repeated itself.').waitFor();
    await looping.context.close();
  });
});
