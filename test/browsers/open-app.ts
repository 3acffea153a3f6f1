/** The web app in Chromium, served as `kvasir serve` does, with Mimir. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { type BrowserContext, chromium, type Page } from 'playwright-core';
import { loadModel } from '../../src/api/model.ts';
import { type AppOptions, createApp } from '../../src/server/app.ts';
import { readyBackend } from '../../src/server/backend.ts';
import { listen } from '../../src/server/serve.ts';
import { readWebFiles } from '../../src/server/web-files.ts';
import { createService } from '../../src/worker/create-service.ts';
import type { ModelService } from '../../src/worker/service.ts';
import { mimir } from '../support/mimir.ts';

const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** A name that is neither https nor localhost, as of a server in the same network. */
export const LAN_HOST = 'kvasir.test';

const ARGS = [
  '--no-sandbox',
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  `--host-resolver-rules=MAP ${LAN_HOST} 127.0.0.1`,
];

export const DESKTOP = { width: 1360, height: 860 };
export const PHONE = { width: 390, height: 844 };

/** Ten pages of stories with facts in them, and a question on one. */
export const sample = fileURLToPath(new URL('../../web/public/sample.txt', import.meta.url));

export interface OpenApp {
  url: string;
  /** In a new profile of the browser. `address`: another one than the server's. */
  visit(viewport: Viewport, colorScheme?: 'light' | 'dark', address?: string): Promise<Visit>;
  /** Another tab of the same profile. */
  openTab(visit: Visit): Promise<Visit>;
  /** Milliseconds that the server's answers wait before each part: 0 unless a test sets it. */
  pauseMs: number;
  /** Ends the server at once, as a crash does. */
  kill(): Promise<void>;
  /** Starts it again at the same address. */
  revive(): Promise<void>;
  close(): Promise<void>;
}

export type Viewport = { width: number; height: number };

export interface Visit {
  page: Page;
  context: BrowserContext;
  /** Presses Tab until an element with this accessible name has the focus. */
  tabTo(name: string | RegExp): Promise<void>;
  /** Serious and critical violations that axe finds. */
  violations(): Promise<string[]>;
  /** The text of the last answer, when it is complete. */
  answer(count: number): Promise<string>;
}

export async function openApp(options: Partial<AppOptions> = {}): Promise<OpenApp> {
  const model = await loadModel(mimir, { device: 'wasm', threads: 1, kv: 'tq4' });
  const service = createService(model);
  const paused: ModelService = {
    ...service,
    answer(...request) {
      const stream = service.answer(...request);
      const next = stream.next.bind(stream);
      stream.next = async () => {
        await new Promise(resolve => setTimeout(resolve, opened.pauseMs));
        return next();
      };
      return stream;
    },
  };
  const serve = (port = 0) => {
    const app = createApp({ backend: readyBackend(paused), names: ['mimir'], web: readWebFiles(), ...options });
    return listen(app, { host: '127.0.0.1', port, requestMs: 600_000 });
  };
  let server = await serve();
  const browser = await chromium.launch({ executablePath, args: ARGS });
  const open = async (context: BrowserContext, address: string): Promise<Visit> => {
    const page = await context.newPage();
    // From now on: a listener that is added right before the dialog opens may come too late.
    page.on('filechooser', () => {});
    await page.goto(address);
    return { page, context, ...actionsOf(page) };
  };
  const opened: OpenApp = {
    url: server.url,
    pauseMs: 0,
    kill: () => server.stop(),
    async revive() {
      server = await serve(Number(new URL(server.url).port));
    },
    async visit(viewport, colorScheme = 'light', address = server.url) {
      const context = await browser.newContext({ viewport, colorScheme });
      context.setDefaultTimeout(20_000);
      return open(context, address);
    },
    openTab: ({ context, page }) => open(context, page.url()),
    async close() {
      await browser.close();
      await server.stop();
      await service.close();
    },
  };
  return opened;
}

function actionsOf(page: Page): Pick<Visit, 'tabTo' | 'violations' | 'answer'> {
  return {
    async tabTo(name) {
      for (let presses = 0; presses < 80; presses++) {
        const focused = await page.evaluate(() => {
          const { activeElement: element } = document;
          if (element === document.body) return '';
          const label = (element as HTMLInputElement | null)?.labels?.[0]?.textContent;
          return element?.getAttribute('aria-label') ?? label ?? element?.textContent ?? '';
        });
        if (typeof name === 'string' ? focused.trim() === name : name.test(focused)) return;
        await page.keyboard.press('Tab');
      }
      throw new Error(`No element named ${name} can be reached by the Tab key.`);
    },
    async violations() {
      await page.evaluate(axe);
      const found = await page.evaluate(async () => {
        const { axe } = globalThis as unknown as { axe: { run(): Promise<AxeResult> } };
        const { violations } = await axe.run();
        return violations.map(({ id, impact, nodes }) => ({ id, impact, html: nodes[0]?.html }));
      });
      return found
        .filter(({ impact }) => impact === 'serious' || impact === 'critical')
        .map(({ id, html }) => `${id}: ${html}`);
    },
    async answer(count) {
      // In one look: it must not begin again between two.
      const found = await page.waitForFunction(
        index => {
          const answer = document.querySelectorAll('.answer')[index];
          if (answer?.getAttribute('aria-busy') !== 'false') return undefined;
          const parts = [...answer.querySelectorAll('.markdown')];
          return { text: parts.map(part => part.textContent).join('') };
        },
        count - 1,
        { timeout: 120_000 },
      );
      return (await found.jsonValue())!.text.trim();
    },
  };
}

interface AxeResult {
  violations: { id: string; impact: string | null; nodes: { html: string }[] }[];
}
