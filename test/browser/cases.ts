/** Calls the test cases of page.ts in a page of Chromium. */
import { type Browser, openBrowser, openSite, type Site, testScripts } from './chromium.ts';
import type { cases } from './page.ts';

type Cases = typeof cases;

export interface TestPage extends Browser {
  readonly site: Site;
  /** Loads the page, again if it was open, with these headers. */
  open(headers?: Record<string, string>): Promise<void>;
  run<Name extends keyof Cases>(
    name: Name,
    argument?: Parameters<Cases[Name]>[0],
  ): Promise<Awaited<ReturnType<Cases[Name]>>>;
}

export async function openTestPage(files: Record<string, Uint8Array>, profile?: string): Promise<TestPage> {
  const site = await openSite(await testScripts(), files);
  const browser = await openBrowser(profile);
  const { page } = browser;
  return {
    ...browser,
    site,
    async open(headers = {}) {
      for (const name of Object.keys(site.headers)) delete site.headers[name];
      Object.assign(site.headers, headers);
      await page.goto(site.address);
      await page.waitForFunction(() => 'cases' in globalThis);
    },
    run: (name, argument) =>
      page.evaluate(
        ([name, argument]) =>
          (globalThis as unknown as { cases: Record<string, (x: unknown) => unknown> }).cases[name](argument),
        [name, argument] as const,
      ) as never,
    async close() {
      await browser.close();
      site.close();
    },
  };
}
