/** The web app, end to end and by keyboard only: in Chromium, with Mimir on the server and in the browser. */
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { itAll } from '../support/matrix.ts';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp, PHONE, sample, type Visit } from './open-app.ts';

vi.setConfig({ testTimeout: 240_000 });

const FACTS = 'The door code of the old mill is 4817. The door code of the old barn is 2265. '.repeat(4);
/** To the questions of web/src/state/sample.ts. */
const SAMPLE_ANSWERS = ['wirzem', 'Urban', '6177', 'blue vase', 'scarlet crate', 'violet box'];

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp();
  }, 120_000);
  afterAll(() => app?.close());

  /** Answers are the likeliest ones, so that they can be compared. */
  const setGreedy = ({ page }: Visit) =>
    page.evaluate(() => {
      const saved = JSON.parse(localStorage.getItem('kvasir.settings') ?? '{}');
      localStorage.setItem('kvasir.settings', JSON.stringify({ ...saved, temperature: 0 }));
    });

  const addByKeyboard = async ({ page, tabTo }: Visit, files: Parameters<typeof page.setInputFiles>[1]) => {
    await tabTo('Add a document');
    const chooser = page.waitForEvent('filechooser');
    await page.keyboard.press('Enter');
    await (await chooser).setFiles(files);
    await page.locator('.attachment').waitFor();
  };

  const dropFile = ({ page }: Visit, name: string, text: string) =>
    page.evaluate(
      ([name, text]) => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([text], name, { type: 'text/plain' }));
        document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
      },
      [name, text] as const,
    );

  it('answers on a dropped document, edits, stops, and resumes after a reload', async () => {
    const visit = await app.visit(DESKTOP);
    const { page, answer } = visit;
    await setGreedy(visit);
    await page.reload();
    await page.locator('.badge-name').waitFor();
    expect(await visit.violations()).toEqual([]);

    await dropFile(visit, 'codes.txt', FACTS);
    await page.locator('.attachment', { hasText: 'tokens' }).waitFor();
    await page.locator('#composer').focus();
    await page.keyboard.type('What is the door code of the old mill?');
    await page.keyboard.press('Enter');
    expect(await answer(1)).toBe('4817');
    expect(await page.locator('.card', { hasText: 'still fit' }).textContent()).toMatch(
      /Cache[1-9]\d+ of 8,192 tokens/,
    );

    // Arrow up in an empty field edits the last question.
    await page.keyboard.press('ArrowUp');
    await page.getByLabel('Edit message').and(page.locator(':focus')).waitFor();
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('What is the door code of the old barn?');
    await page.keyboard.press('Enter');
    await page.locator('.bubble', { hasText: 'old barn?' }).waitFor();
    expect(await answer(1)).toBe('2265');
    expect(await page.locator('.question').count()).toBe(1);

    await page.reload();
    expect(await answer(1)).toBe('2265');
    await page.locator('.badge-name').waitFor();
    await visit.tabTo('New conversation');
    await page.keyboard.press('Enter');
    await page.locator('#composer').focus();
    await page.keyboard.type('Tell me a story about a lost teapot.');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Stop' }).waitFor();
    await page.keyboard.press('Escape');
    await answer(1);
    expect(await page.locator('.stats').last().textContent()).toMatch(/stopped/);
    expect(await visit.violations()).toEqual([]);
    await visit.context.close();
  });

  it('keeps an answer of a page that is left, and goes on with it', async () => {
    const visit = await app.visit(DESKTOP);
    const { page, answer } = visit;
    const story = 'Tell me a story about a lost teapot.';
    const ask = async () => {
      await page.locator('.badge-name').waitFor();
      await page.locator('#composer').fill(story);
      await page.keyboard.press('Enter');
    };
    await setGreedy(visit);
    await page.reload();
    await ask();
    const whole = await answer(1);
    await page.getByRole('button', { name: 'New conversation' }).click();
    app.pauseMs = 40;
    await ask();
    const seen = await page.waitForFunction(() => {
      const text = document.querySelector('.answer .markdown')?.textContent ?? '';
      return text.length > 40 ? text : undefined;
    });
    await page.reload();
    await page.getByText('The page was left before this answer was complete.').waitFor();
    const kept = await answer(1);
    expect(kept.startsWith((await seen.jsonValue())!.trimEnd())).toBe(true);
    expect(kept.length).toBeLessThan(whole.length);
    expect(await visit.violations()).toEqual([]);
    app.pauseMs = 0;
    await page.locator('.badge-name').waitFor();
    await page.getByRole('button', { name: 'Go on' }).click();
    await page.getByRole('button', { name: 'Go on' }).waitFor({ state: 'detached' });
    expect(await answer(1)).toBe(whole);
    await visit.context.close();
  });

  itAll('switches to this browser and to another codec, forks, compares, and opens without a network', async () => {
    const visit = await app.visit(DESKTOP, 'dark');
    const { page, tabTo, answer } = visit;
    await setGreedy(visit);
    await page.reload();
    await page.locator('.badge-name').waitFor();
    await tabTo(/^This server/);
    await page.keyboard.press('ArrowDown');
    await page.locator('.codecs').waitFor();
    await page.locator('.badge-name').waitFor();
    // Mimir has a profile: balanced is a plan of 3 bits, and small, the next one, of 2.
    await page.locator('.chip', { hasText: 'auto-mead:3' }).waitFor();
    await tabTo(/^balanced/);
    await page.keyboard.press('ArrowDown');
    await page.locator('.chip', { hasText: 'auto-mead:2' }).waitFor();

    await addByKeyboard(visit, sample);
    const [question] = (await readFile(sample, 'utf8')).split('\n');
    await page.keyboard.type(question);
    await page.keyboard.press('Enter');
    await page.locator('progress').waitFor();
    expect(await page.locator('.reading').textContent()).toMatch(/Reading [\d,]+ of 5,5\d\d tokens/);
    expect(await answer(1)).toBe('wirzem');
    // At once, while the cache is being saved.
    await page.locator('#composer').focus();
    await page.keyboard.type('Who got the golden candle from Carl?');
    await page.keyboard.press('Enter');
    expect(await answer(2)).toBe('Urban');
    expect(await visit.violations()).toEqual([]);

    await tabTo('Fork here');
    await page.keyboard.press('Enter');
    expect(await page.locator('.conversation').count()).toBe(2);
    // The cache is saved: after a reload the document is not read again.
    await page.waitForFunction(async () => {
      const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('kvasir');
      const sessions = (await folder.getDirectoryHandle('sessions')) as unknown as { values(): AsyncIterable<unknown> };
      for await (const _ of sessions.values()) return true;
      return false;
    });
    await page.locator('.conversation-title').last().focus();
    await page.keyboard.press('Enter');
    await page.reload();
    await page.locator('.badge-name').waitFor();
    await page.locator('#composer').focus();
    await page.keyboard.type('What is the door code of the hidden mill?');
    await page.keyboard.press('Enter');
    expect(await answer(3)).toBe('6177');
    expect(await page.locator('.stats').last().textContent()).toMatch(/5,5\d\d reused/);

    await tabTo(/Compare codecs/);
    await page.keyboard.press('Enter');
    await page.locator('#composer').focus();
    await page.keyboard.type('Tell me a story about a lost teapot.');
    await page.keyboard.press('Enter');
    await page.locator('.strip').waitFor({ timeout: 120_000 });
    expect(await page.locator('.strip span').count()).toBeGreaterThan(20);
    expect(await page.locator('.pane').first().textContent()).toMatch(/teapot/);
    expect(await visit.violations()).toEqual([]);

    await page.evaluate(() => navigator.serviceWorker.ready);
    await visit.context.setOffline(true);
    await page.reload();
    await page.locator('.badge-name', { hasText: 'Mimir' }).waitFor();
    expect(await answer(3)).toBe('6177');
    await visit.context.close();
  });

  itAll('sends the system prompt and the settings of answers, and keeps them', async () => {
    const visit = await app.visit(DESKTOP);
    const { page } = visit;
    await page.locator('.badge-name').waitFor();
    const card = page.locator('.right').getByRole('region', { name: 'Answers' });
    await card.getByLabel('Style').selectOption('Varied');
    await card.getByText('More').click();
    await card.getByLabel('System prompt').fill(' Be brief. ');
    await card.getByLabel('Repetition penalty').fill('1.1');
    await card.getByLabel('Seed').fill('7');
    const asked = page.waitForRequest(/chat\/completions/);
    await page.locator('#composer').fill('Hello');
    await page.keyboard.press('Enter');
    expect((await asked).postDataJSON()).toMatchObject({
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'Hello' },
      ],
      ...{ temperature: 0.9, top_p: 0.95, repetition_penalty: 1.1, seed: 7, max_tokens: 4096 },
    });
    await visit.answer(1);
    await card.getByLabel('Top-p').fill('0.5');
    await page.reload();
    await page.locator('.badge-name').waitFor();
    expect(await card.getByLabel('Style').inputValue()).toBe('');
    await card.getByText('More').click();
    expect(await card.getByLabel('System prompt').inputValue()).toBe(' Be brief. ');
    expect(await visit.violations()).toEqual([]);
    await visit.context.close();
  });

  itAll('an address opens a comparison on the sample, which can be saved as an image', async () => {
    const visit = await app.visit(DESKTOP, 'dark', `${app.url}/#compare=f16,mead2&sample=stories`);
    const { page } = visit;
    await page.locator('.strip').waitFor({ timeout: 120_000 });
    const shown = await page.locator('.picture').textContent();
    expect(shown).toMatch(/mead2 takes 7\.\d times less memory than f16\. All 6 answers are the same\./);
    // Each token can be chosen, by keyboard too.
    await page.getByLabel('Token of the answer').press('ArrowRight');
    expect(await page.locator('.strip-token').textContent()).toMatch(/“.+”: [\d.]+ % and [\d.]+ %$/);
    for (const pane of await page.locator('.pane').all())
      expect(await pane.locator('.tokens').allTextContents()).toEqual(SAMPLE_ANSWERS);
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByText('Save as an image').click()]);
    expect(download.suggestedFilename()).toBe('kvasir-f16-mead2.png');
    const image = await readFile(await download.path());
    // A PNG of 2400 x 1350 pixels.
    expect([image.toString('latin1', 1, 4), image.readUInt32BE(16), image.readUInt32BE(20)]).toEqual([
      'PNG',
      2400,
      1350,
    ]);
    await page.locator('.right summary', { hasText: 'A page in bytes' }).click();
    expect(await page.locator('.right .page-parts').first().textContent()).toMatch(/codes [\d.]+ KB/);
    expect(await visit.violations()).toEqual([]);
    await page.getByText('Compare codecs').click();
    expect(new URL(page.url()).hash).toBe('');
    await visit.context.close();
  });

  itAll('a conversation that is deleted while it answers leaves nothing behind', async () => {
    const visit = await app.visit(DESKTOP);
    const { page, tabTo, answer } = visit;
    const storedSessions = () =>
      page.evaluate(async () => {
        const root = await navigator.storage.getDirectory();
        const folder = await root.getDirectoryHandle('kvasir', { create: true });
        const sessions = await folder.getDirectoryHandle('sessions', { create: true });
        const names = [];
        for await (const name of (sessions as unknown as { keys(): AsyncIterable<string> }).keys()) names.push(name);
        return names;
      });
    const ask = async (question: string) => {
      await page.locator('#composer').focus();
      await page.keyboard.type(question);
      await page.keyboard.press('Enter');
    };
    await page.locator('.badge-name').waitFor();
    await tabTo(/^This server/);
    await page.keyboard.press('ArrowDown');
    await page.locator('.codecs').waitFor();
    await page.locator('.badge-name').waitFor();
    await ask('Tell me a long story about a lost teapot.');
    await page.waitForFunction(() => (document.querySelector('.answer .markdown')?.textContent ?? '').length > 20);
    await tabTo(/^Delete (?!all)/);
    await page.keyboard.press('Enter');
    await tabTo('Delete');
    await page.keyboard.press('Enter');
    await page.locator('.conversation').first().waitFor({ state: 'detached' });
    // Until it is closed, nothing else can be typed into.
    await page.locator('dialog[open]').waitFor({ state: 'detached' });
    // The next conversation is saved after everything that the first one may have started.
    await ask('What is the door code of the old mill?');
    await answer(1);
    await expect.poll(async () => (await storedSessions()).length).toBe(1);
    const [kept] = await storedSessions();
    expect(kept).toContain(await page.evaluate(() => sessionStorage.getItem('kvasir.open')!));
    await visit.context.close();
  });

  itAll('loads a model by its address, keeps it, and deletes it', async () => {
    const visit = await app.visit(DESKTOP);
    const { page, tabTo, answer } = visit;
    await page.locator('.badge-name').waitFor();
    await tabTo(/^This server/);
    await page.keyboard.press('ArrowDown');
    await page.locator('.codecs').waitFor();
    await page.locator('.badge-name').waitFor();
    await tabTo('Models from the hub');
    await page.keyboard.press('Enter');
    await tabTo(/^Name of a model on the hub/);
    await page.keyboard.type(`${app.url}/models/mimir.gguf`);
    await page.keyboard.press('Enter');
    await page.locator('.field', { hasText: 'Model: mimir.gguf' }).waitFor();
    await page.locator('.badge-name').waitFor();
    // From what is stored, also if the host has no such file any more.
    await page.route('**/models/mimir.gguf', route => route.abort());
    await page.reload();
    await page.locator('.badge-name').waitFor();
    await page.locator('#composer').focus();
    await page.keyboard.type('Tell me a story about a lost teapot.');
    await page.keyboard.press('Enter');
    expect((await answer(1)).length).toBeGreaterThan(20);
    await tabTo('Answer again');
    const old = page.locator('.answer[data-old]');
    await page.locator('.answer').evaluate(element => element.setAttribute('data-old', ''));
    await page.keyboard.press('Enter');
    await old.waitFor({ state: 'detached' });
    expect((await answer(1)).length).toBeGreaterThan(20);
    await tabTo('Delete all that is stored');
    await page.keyboard.press('Enter');
    await tabTo('Delete');
    await page.keyboard.press('Enter');
    await page.locator('.conversation').first().waitFor({ state: 'detached' });
    await visit.context.close();
  });

  itAll('fits a phone', async () => {
    const visit = await app.visit(PHONE, 'dark');
    const { page, tabTo, answer } = visit;
    await page.locator('.badge-name').waitFor();
    await page.locator('#composer').focus();
    await page.keyboard.type('Tell me a story about a lost teapot.');
    await page.keyboard.press('Enter');
    await answer(1);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    expect(width).toBeLessThanOrEqual(PHONE.width);
    expect(await visit.violations()).toEqual([]);
    await tabTo('Cache and model');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').getByText('still fit').waitFor();
    expect(await visit.violations()).toEqual([]);
    await page.keyboard.press('Escape');
    await tabTo('Conversations');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').getByText('Tell me a story').waitFor();
    await visit.context.close();
  });

  itAll('asks for the key of a server, and keeps it until the tab is closed', async () => {
    const locked = await openApp({ tenants: [{ name: 'a', keys: ['a-long-key'] }] });
    try {
      const { page, tabTo, answer, violations } = await locked.visit(PHONE);
      await page.getByText('This server needs a key').waitFor();
      expect(await violations()).toEqual([]);
      for (const key of ['a-wrong-key', 'a-long-key']) {
        await tabTo(/API key/);
        await page.keyboard.type(key);
        await page.keyboard.press('Enter');
        if (key === 'a-wrong-key') await page.getByText('does not accept').waitFor();
        await page.locator('input[type=password]').evaluateAll(inputs => {
          for (const input of inputs) (input as HTMLInputElement).select();
        });
      }
      await page.locator('.badge-name').waitFor();
      await page.reload();
      await page.locator('.badge-name').waitFor();
      expect(await page.evaluate(() => sessionStorage.getItem('kvasir.apiKey'))).toBe('a-long-key');
      // What is saved can be read without it.
      await page.locator('#composer').fill('Tell me a story about a lost teapot.');
      await page.keyboard.press('Enter');
      const story = await answer(1);
      await page.evaluate(() => sessionStorage.clear());
      await page.reload();
      await page.getByText('This server needs a key').waitFor();
      expect(await answer(1)).toBe(story);
      expect(await violations()).toEqual([]);
    } finally {
      await locked.close();
    }
  });
});
