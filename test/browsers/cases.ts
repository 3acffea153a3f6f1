/** Calls the test cases of page.ts in a page of Chromium. */
import type { Page } from 'playwright-core';
import { type Browser, openBrowser, openSite, type Site, testScripts } from './chromium.ts';
import type { cases } from './page.ts';

type Cases = typeof cases;

export interface TestTab {
  readonly page: Page;
  run<Name extends keyof Cases>(
    name: Name,
    argument?: Parameters<Cases[Name]>[0],
  ): Promise<Awaited<ReturnType<Cases[Name]>>>;
}

export interface TestPage extends TestTab, Browser {
  readonly page: Page;
  readonly site: Site;
  /** Loads the page, again if it was open, with these headers. */
  open(headers?: Record<string, string>): Promise<void>;
  /** Another tab with the same page and the same storage. `script` runs first in its Workers. */
  openTab(script?: string): Promise<TestTab>;
}

export async function openTestPage(files: Record<string, Uint8Array>, profile?: string): Promise<TestPage> {
  const scripts = await testScripts();
  const site = await openSite(scripts, files);
  const browser = await openBrowser(profile);
  const { page } = browser;
  const load = async (page: Page) => {
    await page.goto(site.address);
    await page.waitForFunction(() => 'cases' in globalThis);
  };
  return {
    ...browser,
    ...tabOf(page),
    site,
    async open(headers = {}) {
      for (const name of Object.keys(site.headers)) delete site.headers[name];
      Object.assign(site.headers, headers);
      await load(page);
    },
    async openTab(script = '') {
      const tab = await page.context().newPage();
      const body = `${script}\n${scripts['/engine-worker.js']}`;
      await tab.route('**/engine-worker.js', route => route.fulfill({ contentType: 'text/javascript', body }));
      await load(tab);
      return tabOf(tab);
    },
    async close() {
      await browser.close();
      site.close();
    },
  };
}

const tabOf = (page: Page): TestTab => ({
  page,
  run: (name, argument) =>
    page.evaluate(
      ([name, argument]) =>
        (globalThis as unknown as { cases: Record<string, (x: unknown) => unknown> }).cases[name](argument),
      [name, argument] as const,
    ) as never,
});
