/** The engine in a real browser: headless Chromium, on the CPU with and without threads, and on an emulated GPU. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { createDocument, readGrammar } from '../../src/eval/needle/document.ts';
import { loadModel } from '../../src/index.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { ALL_CASES, itAll, LONG_CASES, matrix } from '../support/matrix.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { openTestPage, type TestPage } from './cases.ts';
import { ISOLATED, noChromium } from './chromium.ts';

vi.setConfig({ testTimeout: LONG_CASES ? 1_200_000 : 240_000 });

const models: Record<string, Uint8Array<ArrayBuffer>> = {
  '/model.gguf': writeGguf(tinyModel({ tied: false, headDim: 32 })),
  '/mimir.gguf': new Uint8Array(readFileSync(new URL('../../models/mimir.gguf', import.meta.url))),
};

describe.skipIf(noChromium)(noChromium ? `in Chromium (skipped: ${noChromium})` : 'in Chromium', () => {
  let browser: TestPage;
  const run: TestPage['run'] = (name, argument) => browser.run(name, argument);

  beforeAll(async () => {
    browser = await openTestPage(models);
  }, 120_000);
  afterAll(() => browser?.close());

  const options = { kv: 'tq4', pageTokens: 64, context: 2048 } as const;

  /** Ten questions about a document of so many tokens. */
  const askTenQuestions = async (tokens: number) => {
    const depths = Array.from({ length: 10 }, (_, i) => i / 10);
    const count = (text: string) => text.length / 4;
    const { text, facts } = createDocument(await readGrammar(), { seed: 7, tokens, depths, count });
    return { prompts: facts.map(({ question }) => `${text}\n\n${question}`), expected: facts.map(fact => fact.answer) };
  };

  const answersInNode = async (prompts: readonly string[]) => {
    await using model = await loadModel(new Blob([models['/mimir.gguf']]), { ...options, device: 'wasm' });
    await using conversation = model.conversation();
    const ids: number[][] = [];
    for (const content of prompts) {
      const messages = [{ role: 'user', content }];
      ids.push((await conversation.answer(messages, { temperature: 0, maxTokens: 12 }).result()).ids);
    }
    return ids;
  };

  /** Mimir answers questions rightly, and with the same tokens as on wasm in Node. */
  const answerQuestions = async (device: 'wasm' | 'webgpu', count = 10) => {
    // SwiftShader reads about one token per second: for it, two pages and a tail.
    const asks = await askTenQuestions(device === 'wasm' ? 600 : 150);
    const [prompts, expected] = [asks.prompts.slice(0, count), asks.expected.slice(0, count)];
    const asked = { ...options, path: '/mimir.gguf', questions: prompts, maxTokens: 12 };
    const found = await run('ask', { ...asked, device, threads: device === 'wasm' ? 2 : undefined });
    expect(found.error).toBeUndefined();
    expect(found.answers?.map(({ text }) => text.trim())).toEqual(expected);
    expect(found.answers?.map(({ ids }) => ids)).toEqual(await answersInNode(prompts));
    return found.device;
  };

  describe('on wasm', () => {
    it.each([
      ['with threads, on a cross-origin isolated page', ISOLATED, 2, 'wasm (SIMD and threads), as requested'],
      ['with one thread, on any other page', {}, 1, /; one thread: the page is not cross-origin isolated/],
    ])('%s: Mimir answers questions as in Node', async (_, headers, threads, why) => {
      await browser.open(headers);
      const device = await answerQuestions('wasm', ALL_CASES ? 10 : 3);
      expect(device).toMatchObject({ name: 'wasm', threads });
      expect(device?.why).toMatch(why);
    });

    it('a prompt that is being read can be stopped', async () => {
      await browser.open();
      const setting = { ...options, path: '/mimir.gguf', device: 'wasm', prefillChunk: 16, maxTokens: 1 } as const;
      const { done, total, finish } = await run('stop', { ...setting, questions: ['A long story. '.repeat(300)] });
      expect(finish).toBe('cancelled');
      expect(done).toBeLessThan(total / 2);
    });

    const pages = { isolated: ISOLATED, other: {} };
    const names = matrix(['isolated', 'other'] as const, {
      isolated: 'the page waits for its threads without sleeping',
    });
    it.each(names)('on the page itself, without a Worker: %s', async name => {
      await browser.open(pages[name]);
      const asked = { ...options, device: 'wasm', prompt: 'Tell me a story', maxTokens: 20 } as const;
      const { device, ...found } = await run('generate', { ...asked, path: 'mimir.gguf', threads: 2 });
      expect(device.threads).toBe(name === 'isolated' ? 2 : 1);
      await using model = await loadModel(models['/mimir.gguf'], { ...options, device: 'wasm' });
      const { ids, text } = await model.complete('Tell me a story', { temperature: 0, maxTokens: 20, ignoreEos: true });
      expect(found).toEqual({ ids, text });
    });

    it('auto says what it took and why', async () => {
      await browser.open();
      const asked = { ...options, path: '/model.gguf', prompt: 'x', maxTokens: 1, device: 'auto' } as const;
      expect((await run('generate', asked)).device).toMatchObject({
        name: 'wasm',
        why: expect.stringMatching(/^wasm .*; one thread: .*; no webgpu: .* runs on the CPU$/),
      });
    });
  });

  describe('on webgpu', () => {
    beforeAll(() => browser.open());

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

    // SwiftShader in Chromium takes minutes for it; the tiny model below has as many pages.
    it.runIf(LONG_CASES)('Mimir answers questions as in Node', { timeout: 900_000 }, async () => {
      expect(await answerQuestions('webgpu')).toMatchObject({ name: 'webgpu' });
    });

    const prompt = 'The mead of poetry. '.repeat(5);
    const brief = { path: '/model.gguf', prompt, kv: 'tq4u', maxTokens: 6, pageTokens: 16 };
    const long = { ...brief, path: '/mimir.gguf', prompt: 'Tell me a story about a lost teapot.', maxTokens: 200 };
    itAll.each(LONG_CASES ? [brief, { ...long, pageTokens: 64 }] : [brief])(
      '$path generates the same text as in Node',
      async asked => {
        const { device, ...found } = await run('generate', { ...asked, device: 'webgpu' });
        expect(device.name).toBe('webgpu');
        expect(found.ids).toHaveLength(asked.maxTokens);
        const { kv, pageTokens, prompt, maxTokens } = asked;
        await using model = await loadModel(new Blob([models[asked.path]]), { device: 'webgpu', kv, pageTokens });
        const { ids, text } = await model.complete(prompt, { temperature: 0, maxTokens, ignoreEos: true });
        expect(found).toEqual({ ids, text });
      },
    );
  });
});
