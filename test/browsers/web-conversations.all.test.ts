/** Conversations in the web app in Chromium: versions, titles, search, files, deletion and shortcuts, by keyboard and mouse. */
import { readFile } from 'node:fs/promises';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp, PHONE, type Visit } from './open-app.ts';

vi.setConfig({ testTimeout: 120_000 });

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp();
  }, 120_000);
  afterAll(() => app?.close());

  /** The server answers with a number that grows, after the question. */
  const visitCounting = async (viewport = DESKTOP): Promise<Visit> => {
    const visit = await app.visit(viewport);
    let count = 0;
    await visit.page.route('**/v1/chat/completions', route => {
      const { messages } = route.request().postDataJSON();
      const content = `${messages.at(-1).content} ${++count}`;
      const chunk = (choice: object) => `data: ${JSON.stringify({ choices: [choice] })}\n\n`;
      const body = `${chunk({ delta: { content } })}${chunk({ delta: {}, finish_reason: 'stop' })}data: [DONE]\n\n`;
      return route.fulfill({ contentType: 'text/event-stream', body });
    });
    await visit.page.locator('.badge-name').waitFor();
    return visit;
  };

  const ask = async ({ page }: Visit, question: string) => {
    await page.locator('#composer').fill(question);
    await page.keyboard.press('Enter');
  };

  /** The name of what has the focus. */
  const focused = (page: Page) =>
    page.evaluate(() => document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent);

  it('begins with suggestions, which are sent at once, and says what Mimir can do', async () => {
    const visit = await visitCounting();
    const { page } = visit;
    await page.getByText('It knows nothing of the world.').waitFor();
    await page.getByRole('button', { name: /^Try a document/ }).click();
    expect(await visit.answer(1)).toMatch(/What must one say to enter the crimson harbour\? 1$/);
    await page.locator('.question .attachment', { hasText: 'sample.txt' }).waitFor();
    expect(await page.locator('#composer').inputValue()).toBe('');
    await page.getByRole('button', { name: 'New conversation' }).click();
    await page.getByRole('button', { name: /^Tell a story/ }).click();
    expect(await visit.answer(1)).toBe('Tell me a story about a lost teapot. 2');
    await visit.context.close();
  });

  it('keeps earlier answers and questions as versions, also after a reload', async () => {
    const visit = await visitCounting();
    const { page, answer, violations } = visit;
    await ask(visit, 'a');
    expect(await answer(1)).toBe('a 1');
    await ask(visit, 'b');
    expect(await answer(2)).toBe('b 2');
    await page.getByRole('button', { name: 'Answer again' }).first().click();
    await page.locator('.answer', { hasText: 'a 3' }).waitFor();
    expect(await page.locator('.answer').count()).toBe(1);
    expect(await page.locator('.answer .versions').textContent()).toBe('2 / 2');
    await page.getByRole('button', { name: 'Previous version' }).click();
    expect(await answer(2)).toBe('b 2');

    // Arrow up in an empty field edits the last question.
    await page.locator('#composer').focus();
    await page.keyboard.press('ArrowUp');
    await page.getByLabel('Edit message').and(page.locator(':focus')).waitFor();
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('c');
    await page.keyboard.press('Enter');
    await page.locator('.answer', { hasText: 'c 4' }).waitFor();
    expect(await answer(2)).toBe('c 4');
    await page.reload();
    await page.locator('.badge-name').waitFor();
    expect(await answer(2)).toBe('c 4');
    expect(await page.locator('.versions').allTextContents()).toEqual(['1 / 2', '2 / 2']);
    await page.getByRole('button', { name: 'Previous version' }).last().press('Enter');
    await page.locator('.answer', { hasText: 'b 2' }).waitFor();
    expect(await page.getByLabel('Version 1 of 2').count()).toBe(2);
    expect(await violations()).toEqual([]);

    // What is edited outlives the page, too.
    await page.locator('#composer').focus();
    await page.keyboard.press('ArrowUp');
    await page.locator('.editor textarea').fill('b, or c');
    await page.reload();
    await page.locator('.badge-name').waitFor();
    expect(await page.locator('.editor textarea').inputValue()).toBe('b, or c');
    await page.locator('.editor textarea').press('Escape');
    await page.locator('.editor').waitFor({ state: 'detached' });
    expect(await focused(page)).toBe('Edit');
    await visit.context.close();
  });

  it('renames, finds, exports, deletes and imports conversations', async () => {
    const visit = await visitCounting();
    const { page, tabTo, answer, violations } = visit;
    await ask(visit, 'honey');
    await answer(1);
    // While a field has the focus, too.
    await page.keyboard.press('ControlOrMeta+Shift+O');
    await ask(visit, 'water');
    await answer(1);
    await page.getByRole('button', { name: 'Rename honey' }).press('Enter');
    await page.locator('.title-field:focus').waitFor();
    await page.keyboard.type('Mead, of bees');
    await page.keyboard.press('Enter');
    await page.locator('.conversation-title', { hasText: 'Mead, of bees' }).waitFor();
    expect(await focused(page)).toBe('Rename Mead, of bees');

    await page.keyboard.press('ControlOrMeta+K');
    await page.keyboard.type('honey');
    await expect.poll(() => page.locator('.conversation').count()).toBe(1);
    await page.keyboard.press('Enter');
    expect(await answer(1)).toBe('honey 1');
    await page.keyboard.press('ControlOrMeta+K');
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.press('Delete');
    // A title that was given stays.
    await ask(visit, 'more');
    await answer(2);
    expect(await page.locator('.conversation-title').allTextContents()).toEqual(['Mead, of bees', 'water']);

    const save = async (label: string): Promise<string> => {
      const download = page.waitForEvent('download');
      await page.getByRole('dialog').getByRole('button', { name: label }).click();
      return readFile(await (await download).path(), 'utf8');
    };
    await tabTo('Export and import');
    await page.keyboard.press('Enter');
    expect(await save('This conversation as Markdown')).toMatch(/^# Mead, of bees\n\n## Question\n\nhoney\n/);
    const json = await save('All conversations as JSON');
    expect(await violations()).toEqual([]);
    await page.keyboard.press('Escape');

    const deleteWater = page.getByRole('button', { name: 'Delete water' });
    await deleteWater.press('Enter');
    expect(await violations()).toEqual([]);
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    expect(await page.locator('.conversation').count()).toBe(2);
    const confirm = async () => {
      await deleteWater.press('Enter');
      await tabTo('Delete');
      await page.keyboard.press('Enter');
      await expect.poll(() => page.locator('.conversation').count()).toBe(1);
    };
    await confirm();
    await expect.poll(() => focused(page)).toBe('Mead, of bees');
    await page.getByRole('alert').getByRole('button', { name: 'Undo' }).click();
    expect(await answer(1)).toBe('water 2');
    await confirm();

    const importFile = async (text: string) => {
      await page.getByRole('button', { name: 'Export and import' }).click();
      await page
        .locator('dialog[open] input[type=file]')
        .setInputFiles({ name: 'saved.json', mimeType: 'application/json', buffer: Buffer.from(text) });
    };
    await importFile('{}');
    await page.getByText('saved.json cannot be imported: it has no conversations of this app.').waitFor();
    await importFile(json);
    await page.getByText('1 imported, 1 already here.').waitFor();
    expect(await page.locator('.conversation-title').allTextContents()).toEqual(['Mead, of bees', 'water']);
    await page.reload();
    await page.locator('.conversation-title', { hasText: 'water' }).click();
    expect(await answer(1)).toBe('water 2');
    await visit.context.close();
  });

  it('has two ways out of a full context', async () => {
    const visit = await visitCounting();
    const { page, answer, violations } = visit;
    await ask(visit, 'a');
    await answer(1);
    const read: string[] = [];
    await page.route('**/v1/chat/completions', route => {
      const { messages } = route.request().postDataJSON();
      read.push(messages.map(({ content }: { content: string }) => content).join(', '));
      if (messages.length === 1) return route.fallback();
      const error = { message: 'Use overflow: slide.', code: 'context_length_exceeded' };
      return route.fulfill({ status: 400, json: { error } });
    });
    await ask(visit, 'b');
    await page.locator('.problem', { hasText: 'There is no room left for an answer' }).waitFor();
    expect(await violations()).toEqual([]);
    await page.getByRole('button', { name: 'Leave out the oldest messages' }).press('Enter');
    await page.getByText('The messages above are left out').waitFor();
    expect(await answer(2)).toBe('b 2');
    await expect.poll(() => focused(page)).toBe('Conversation');
    await ask(visit, 'c');
    await page.getByRole('button', { name: 'Continue in a new conversation' }).click();
    await page.locator('.answer', { hasText: 'c 3' }).waitFor();
    expect(await answer(1)).toBe('c 3');
    expect(await page.locator('.conversation-title').allTextContents()).toHaveLength(2);
    expect(read).toEqual(['a, a 1, b', 'b', 'b, b 2, c', 'c']);
    await visit.context.close();
  });

  it('leaves Enter and Escape to an input method while it writes a word', async () => {
    const visit = await visitCounting();
    const { page, answer } = visit;
    /** What Chromium sends while a word is composed, and Safari right after it. */
    const press = (selector: string, key: string) =>
      page.locator(selector).evaluate((field, key) => {
        for (const composing of [{ isComposing: true }, { keyCode: 229 }])
          field.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...composing }));
      }, key);
    await ask(visit, 'honey');
    await answer(1);
    await page.locator('#composer').fill('ha');
    await press('#composer', 'Enter');
    await page.getByRole('button', { name: 'Edit' }).press('Enter');
    await page.locator('.editor textarea').fill('hachi');
    await press('.editor textarea', 'Enter');
    await press('.editor textarea', 'Escape');
    await page.getByRole('button', { name: 'Rename honey' }).press('Enter');
    await page.locator('.title-field').fill('hachimitsu');
    await press('.title-field', 'Enter');
    await press('.title-field', 'Escape');
    expect(await page.locator('.title-field').inputValue()).toBe('hachimitsu');
    expect(await page.locator('.editor textarea').inputValue()).toBe('hachi');
    expect(await page.locator('#composer').inputValue()).toBe('ha');
    expect(await page.locator('.answer').allTextContents()).toEqual([expect.stringMatching(/^honey 1/)]);
    await visit.context.close();
  });

  it('jumps to the end, and lists its shortcuts', async () => {
    const visit = await visitCounting(PHONE);
    const { page, answer, violations } = visit;
    await ask(visit, 'long\n\n'.repeat(60));
    await answer(1);
    const jump = page.getByRole('button', { name: 'Jump to the end' });
    expect(await jump.count()).toBe(0);
    await page.locator('.thread').evaluate(thread => thread.scrollTo({ top: 0 }));
    await jump.waitFor();
    expect(await violations()).toEqual([]);
    await jump.click();
    await jump.waitFor({ state: 'detached' });

    await page.locator('.thread').focus();
    await page.keyboard.press('?');
    await page.getByRole('dialog').getByText('edit the last question').waitFor();
    expect(await violations()).toEqual([]);
    await page.keyboard.press('Escape');
    await page.locator('.thread').focus();
    await page.keyboard.press('/');
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('composer');
    await visit.context.close();
  });
});
