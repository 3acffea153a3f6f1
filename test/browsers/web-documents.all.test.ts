/** What goes into and comes out of the web app in Chromium: PDF and Word documents, code, formulas and links. */
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { makeDocx, makePdf } from '../support/documents.ts';
import { noChromium } from './chromium.ts';
import { DESKTOP, type OpenApp, openApp, PHONE } from './open-app.ts';

vi.setConfig({ testTimeout: 120_000 });

const FACTS = 'The door code of the old mill is 4817. The door code of the old barn is 2265.';

const paragraph = (text: string, style = '') =>
  `<w:p><w:pPr>${style}</w:pPr><w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">${text}</w:t></w:r></w:p>`;
const cell = (text: string) => `<w:tc>${paragraph(text)}</w:tc>`;
const item = (text: string, level: number) => paragraph(text, `<w:numPr><w:ilvl w:val="${level}"/></w:numPr>`);

const DOCX = makeDocx(
  [
    paragraph('Mead', '<w:pStyle w:val="Heading2"/>'),
    '<w:p><w:r><w:t>Honey</w:t><w:tab/><w:t>and</w:t><w:br/><w:t>water &amp; yeast</w:t></w:r></w:p>',
    '<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins><w:r><w:t>new</w:t></w:r></w:ins></w:p>',
    item('one', 0),
    item('two', 1),
    `<w:tbl><w:tr>${cell('a')}${cell('b|c')}</w:tr><w:tr>${cell('1')}${cell('2')}</w:tr></w:tbl>`,
    `<w:sdt><w:sdtContent>${paragraph('in a control')}</w:sdtContent></w:sdt>`,
  ].join(''),
);
const DOCX_TEXT = [
  '## Mead',
  'Honey\tand\nwater & yeast',
  'new',
  '- one\n  - two',
  '| a | b\\|c |\n| --- | --- |\n| 1 | 2 |',
  'in a control',
].join('\n\n');

/** An old encryption without the password of the reader. */
const ENCRYPTION = `/Encrypt << /Filter /Standard /V 1 /R 2 /O <${'61'.repeat(32)}> /U <${'62'.repeat(32)}> /P -4 >> /ID [<63><63>]`;

/** The server's answers, as an event stream. */
const answerWith = (page: Page, text: string) =>
  page.route('**/v1/chat/completions', route => {
    const chunk = (choice: object) => `data: ${JSON.stringify({ choices: [choice] })}\n\n`;
    const body = `${chunk({ delta: { content: text } })}${chunk({ delta: {}, finish_reason: 'stop' })}data: [DONE]\n\n`;
    return route.fulfill({ contentType: 'text/event-stream', body });
  });

const ANSWER = `See https://example.org/a and [this](javascript:alert(1)).

\`\`\`ts
const greeting: string = "<img src=x onerror=globalThis.isHacked=true>";
\`\`\`

It costs $5 and $6, and $x^2$ is

$$
\\sum_{i=1}^n i = \\frac{n(n+1)}{2}
$$

\\[\\href{javascript:alert(1)}{a}\\] \\(\\label{composer} b\\) <b onclick="alert(1)">raw</b>
`;

describe.skipIf(noChromium)(noChromium ? `the web app (skipped: ${noChromium})` : 'the web app', () => {
  let app: OpenApp;
  beforeAll(async () => {
    app = await openApp();
  }, 120_000);
  afterAll(() => app?.close());

  it('reads PDF and Word documents, and answers on them', async () => {
    const { page, context, answer, violations } = await app.visit(DESKTOP);
    await page.locator('.badge-name').waitFor();
    const assets: string[] = [];
    page.on('request', request => assets.push(request.url()));
    const picker = page.locator('input[type=file][multiple]');
    await picker.setInputFiles([
      { name: 'codes.pdf', mimeType: 'application/pdf', buffer: makePdf(['', FACTS, 'The last page.']) },
      { name: 'mead.docx', mimeType: 'application/octet-stream', buffer: DOCX },
    ]);
    const cards = page.locator('.attachment', { hasText: 'tokens' });
    await cards.nth(1).waitFor();
    expect(assets.filter(url => /\/(pdf|docx)[\w.-]*\.js/.test(url)).length).toBeGreaterThanOrEqual(2);
    expect(await page.locator('.attachment pre').first().textContent()).toBe(`${FACTS}\n\nThe last page.`);
    expect(await page.locator('.attachment pre').last().textContent()).toBe(DOCX_TEXT);

    // None of those that cannot be read is added.
    await picker.setInputFiles([
      { name: 'scan.pdf', mimeType: 'application/pdf', buffer: makePdf(['', '']) },
      { name: 'locked.pdf', mimeType: 'application/pdf', buffer: makePdf([FACTS], ENCRYPTION) },
      { name: 'broken.pdf', mimeType: 'application/pdf', buffer: Buffer.from('%PDF-1.4 and nothing else') },
      { name: 'broken.docx', mimeType: 'application/octet-stream', buffer: DOCX.subarray(0, 200) },
    ]);
    const problem = page.locator('.composer .problem', { hasText: 'broken.docx' });
    await problem.waitFor();
    expect(await problem.textContent()).toBe(
      'scan.pdf has no text: it seems to be scanned. Convert it with a program that recognizes text (OCR). ' +
        'locked.pdf is encrypted. Save it without a password, then add it again. ' +
        'broken.pdf is damaged, or no PDF document. broken.docx is damaged, or no Word document.',
    );
    expect(await page.locator('.attachment').count()).toBe(2);
    expect(await violations()).toEqual([]);

    await page.getByRole('button', { name: 'Remove mead.docx' }).click();
    await page.locator('#composer').fill('What is the door code of the old mill?');
    await page.keyboard.press('Enter');
    expect(await answer(1)).toMatch(/4817/);

    // Without a network, too: the service worker has what reads them.
    await page.evaluate(() => navigator.serviceWorker.ready);
    await context.setOffline(true);
    await page.reload();
    await picker.setInputFiles([
      { name: 'offline.pdf', mimeType: 'application/pdf', buffer: makePdf([FACTS]) },
      { name: 'offline.docx', mimeType: 'application/octet-stream', buffer: DOCX },
    ]);
    await page.locator('.composer .attachment', { hasText: 'offline.docx' }).locator('summary').waitFor();
    expect(await page.locator('.composer .attachment pre').allTextContents()).toEqual([FACTS, DOCX_TEXT]);
    await context.close();
  });

  it('shows code in colors, formulas and links, and runs nothing that an answer contains', async () => {
    for (const [viewport, scheme] of [
      [DESKTOP, 'light'],
      [PHONE, 'dark'],
    ] as const) {
      const { page, context, answer, violations } = await app.visit(viewport, scheme);
      const refused: string[] = [];
      page.on('console', message => message.type() === 'error' && refused.push(message.text()));
      await answerWith(page, ANSWER);
      await page.locator('.badge-name').waitFor();
      await page.locator('#composer').fill('Show me.');
      await page.keyboard.press('Enter');
      await answer(1);
      await page.locator('.code .code-keyword', { hasText: 'const' }).waitFor();
      const color = (selector: string) =>
        page
          .locator(selector)
          .first()
          .evaluate(node => getComputedStyle(node).color);
      expect(await color('.code-keyword')).not.toBe(await color('.code-string'));
      await page.locator('.formula.display math mfrac').waitFor();
      expect(await page.locator('math').count()).toBe(3);
      const text = await page.locator('.answer .markdown').textContent();
      expect(text).toContain('It costs $5 and $6');
      expect(text).toContain('\\href{javascript:alert(1)}{a}');
      expect(text).toContain('<b onclick="alert(1)">raw</b>');
      expect(
        await page.locator('.markdown a').evaluateAll(links => links.map(link => link.getAttribute('href'))),
      ).toEqual(['https://example.org/a']);
      expect(await page.locator('.markdown [id], .markdown img, .markdown b').count()).toBe(0);
      expect(await page.evaluate(() => 'isHacked' in globalThis)).toBe(false);
      expect(refused).toEqual([]);
      expect(await violations()).toEqual([]);
      await context.close();
    }
  });
});
