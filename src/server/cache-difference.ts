/**
 * Why was my prefix missed? To a request with the header `x-explain-cache`, the header `x-cache-difference` and the usage say
 * where its prompt departs from the nearest text in the cache: usually at a date, or at tools in another order.
 */
import type { EncodeChatOptions } from '../chat/answer-stream.ts';
import type { PromptOptions } from '../chat/conversation-options.ts';
import type { ChatMessage } from '../model/template.ts';
import type { ModelService } from '../worker/service.ts';
import { toAscii } from './ascii.ts';
import type { Exchange } from './route.ts';

/** Tokens that are shown on each side. */
const SHOWN_TOKENS = 8;

/** Call it before the request runs: afterwards its own prompt is in the cache. */
export const explainCache = (
  exchange: Exchange,
  messages: readonly ChatMessage[],
  { cacheSalt, ...options }: EncodeChatOptions & { cacheSalt?: string },
): Promise<void> => explain(exchange, cacheSalt, service => service.tokenizeChat(messages, options));

/** As `explainCache`, of a prompt without a chat. */
export const explainPromptCache = (
  exchange: Exchange,
  prompt: string | number[],
  { cacheSalt, ...options }: Pick<PromptOptions, 'parseSpecialTokens' | 'suffix'> & { cacheSalt?: string },
): Promise<void> =>
  explain(exchange, cacheSalt, async service =>
    typeof prompt === 'string' ? service.tokenizePrompt(prompt, options) : prompt,
  );

async function explain(
  { request, headers, jobs, tenant }: Exchange,
  cacheSalt: string | undefined,
  tokenize: (service: ModelService) => Promise<number[]>,
): Promise<void> {
  if (!request.headers.get('x-explain-cache')) return;
  const service = jobs.service();
  const prompt = await tokenize(service);
  const difference = await compare(service, prompt, { tenant: tenant.name, cacheSalt });
  headers.set('x-cache-difference', toAscii(JSON.stringify(difference)));
}

/** What `explainCache` has found, for the usage: many clients show no headers. */
export function cacheDifference({ headers }: Exchange): { cache_difference?: object } {
  const found = headers.get('x-cache-difference');
  return found === null ? {} : { cache_difference: JSON.parse(found) };
}

async function compare(service: ModelService, prompt: number[], whose: { tenant: string; cacheSalt?: string }) {
  const { shared, next } = await service.nearestText(prompt, whose);
  const text = (ids: number[]) => service.detokenize(ids);
  return {
    prompt_tokens: prompt.length,
    shared_tokens: shared,
    before: await text(prompt.slice(Math.max(0, shared - SHOWN_TOKENS), shared)),
    prompt: await text(prompt.slice(shared, shared + SHOWN_TOKENS)),
    cached: await text(next),
  };
}
