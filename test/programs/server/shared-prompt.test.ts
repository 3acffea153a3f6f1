/** A long system prompt that requests have in common is read once: through `kvasir serve`, on SmolLM2. */
import { readFileSync } from 'node:fs';
import { expect } from 'vitest';
import { ask, firstModel } from '../../../bench/serve/client.ts';
import { itAll } from '../../support/matrix.ts';
import { startServer } from '../../support/serve.ts';
import { describeWithFile, smolModel } from '../../support/shared.ts';

const SYSTEM_TOKENS = 2000;
/** Tokens that the first request reads, relative to the next ones. */
const MIN_SPEEDUP = 10;

/** A little more than 2,000 tokens. */
const text = readFileSync(new URL('../../../LICENSE', import.meta.url), 'utf8');
const messages = (question: string) => [
  { role: 'system' as const, content: text },
  { role: 'user' as const, content: question },
];

describeWithFile(smolModel, 'a system prompt of 2,000 tokens', path => {
  itAll('is read once: the next requests read a tenth of the tokens', { timeout: 600_000 }, async () => {
    const { url, kill } = await startServer(path, '--context', '4096');
    const metric = async (name: string) => {
      const page = await (await fetch(`${url}/metrics`)).text();
      return Number(page.match(new RegExp(`^${name}\\{.*\\} (.*)$`, 'm'))?.[1]);
    };
    try {
      const target = { url, model: await firstModel(url) };
      const send = (question: string) =>
        ask(target, messages(question), { maxTokens: 2, signal: AbortSignal.timeout(500_000) });
      await ask(target, [{ role: 'user', content: 'Hi' }], { maxTokens: 2, signal: AbortSignal.timeout(60_000) });
      const first = await send('Who may copy it?');
      expect(first.promptTokens).toBeGreaterThan(SYSTEM_TOKENS);
      // The beginning of every chat.
      expect(first.cachedTokens).toBeLessThan(16);
      const others = [await send('What does it cost?'), await send('Who wrote it?'), await send('When?')];
      for (const { cachedTokens } of others) expect(cachedTokens).toBeGreaterThan(0.9 * SYSTEM_TOKENS);
      expect(await metric('vllm:prefix_cache_hits_total')).toBe(
        [first, ...others].reduce((sum, { cachedTokens }) => sum + cachedTokens, 0),
      );
      const readTokens = ({ promptTokens, cachedTokens }: typeof first) => promptTokens - cachedTokens;
      for (const answer of others) expect(readTokens(first) / readTokens(answer)).toBeGreaterThan(MIN_SPEEDUP);
    } finally {
      await kill();
    }
  });
});
