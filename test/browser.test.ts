/** The webgpu device in a real browser: headless Chromium, with a GPU or on the CPU. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { loadModel } from '../src/index.ts';
import { noChromium, openInChromium } from './browser/chromium.ts';
import type { cases } from './browser/page.ts';
import { writeGguf } from './gguf-writer.ts';
import { matrix } from './matrix.ts';
import { tinyModel } from './tiny-model.ts';

vi.setConfig({ testTimeout: process.env.KVASIR_LONG ? 1_200_000 : 240_000 });

type Cases = typeof cases;

describe.skipIf(noChromium)(noChromium ? `in Chromium (skipped: ${noChromium})` : 'in Chromium', () => {
  const models: Record<string, Uint8Array<ArrayBuffer>> = {
    '/model.gguf': writeGguf(tinyModel({ tied: false, headDim: 32 })),
    '/mimir.gguf': new Uint8Array(readFileSync(new URL('../models/mimir.gguf', import.meta.url))),
  };
  let page: Page;
  let close: () => Promise<void>;
  const run = <Name extends keyof Cases>(name: Name, argument?: Parameters<Cases[Name]>[0]) =>
    page.evaluate(
      ([name, argument]) =>
        (globalThis as unknown as { cases: Record<string, (x: unknown) => unknown> }).cases[name](argument),
      [name, argument] as const,
    ) as Promise<Awaited<ReturnType<Cases[Name]>>>;

  beforeAll(async () => {
    const entryPoints = [fileURLToPath(new URL('./browser/page.ts', import.meta.url))];
    const opened = await openInChromium({ entryPoints }, models);
    ({ page, close } = opened);
    await page.goto(opened.address);
    await page.waitForFunction(() => 'cases' in globalThis);
  }, 120_000);

  afterAll(() => close?.());

  it('finds an adapter', async () => {
    expect(await run('adapter')).toMatchObject({ name: expect.any(String), software: true });
  });

  const CASES = [
    ['f16', 1e-3],
    ['tq4', 2e-2],
    ['tq4u', 2e-2],
    ['kivi2g32', 1e-3],
  ] as const;
  it.each(matrix(CASES, { tq4u: 'integer codes' }, ([spec]) => spec))(
    '%s: sealed pages and outputs like js',
    async (spec, tolerance) => {
      const shape = { headDim: 32, heads: 4, kvHeads: 2, pageTokens: 32 };
      const found = await run('attention', { ...shape, spec });
      expect(found.error).toBeLessThan(tolerance);
      expect(found.different).toBeLessThanOrEqual(1);
    },
  );

  const device = 'webgpu' as const;
  const brief = {
    path: '/model.gguf',
    device,
    prompt: 'The mead of poetry.',
    kv: 'tq4u',
    maxTokens: 6,
    pageTokens: 16,
  };
  // Takes SwiftShader minutes: `npm run test:long`.
  const long = { ...brief, path: '/mimir.gguf', prompt: 'Tell me a story about a lost teapot.', maxTokens: 200 };
  it.each(process.env.KVASIR_LONG ? [brief, { ...long, pageTokens: 64 }] : [brief])(
    '$path generates the same text as in Node',
    async asked => {
      const here = await run('generate', asked);
      expect(here.ids).toHaveLength(asked.maxTokens);
      const { kv, pageTokens, prompt, maxTokens } = asked;
      await using model = await loadModel(new Blob([models[asked.path]]), { device: 'webgpu', kv, pageTokens });
      const { ids, text } = await model.complete(prompt, { temperature: 0, maxTokens, ignoreEos: true });
      expect(here).toEqual({ ids, text });
    },
  );
});
