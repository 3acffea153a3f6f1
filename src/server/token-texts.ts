/** The texts and bytes of tokens, for log probabilities. */
import type { Token } from '../engine/stream.ts';
import type { ModelService } from '../worker/service.ts';

interface TokenText {
  token: string;
  bytes: number[];
}

const decoder = new TextDecoder();

/** Tokens with log probabilities in the shape of OpenAI's chat API. */
export async function chatLogprobs(service: ModelService, tokens: readonly Token[]): Promise<object[]> {
  const texts = await readTexts(service, tokens);
  return tokens.map(({ id, logprob, top = [] }) => ({
    ...texts.get(id),
    logprob,
    top_logprobs: top.map(other => ({ ...texts.get(other.id), logprob: other.logprob })),
  }));
}

/** The same in the shape of the older completions API. */
interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: (number | undefined)[];
  top_logprobs: Record<string, number>[];
  text_offset: number[];
}

/** `offset`: characters of text before these tokens. */
export async function completionLogprobs(
  service: ModelService,
  tokens: readonly Token[],
  offset: number,
): Promise<CompletionLogprobs> {
  const texts = await readTexts(service, tokens);
  const textOf = (id: number) => texts.get(id)?.token ?? '';
  let position = offset;
  return {
    tokens: tokens.map(({ id }) => textOf(id)),
    token_logprobs: tokens.map(({ logprob }) => logprob),
    top_logprobs: tokens.map(({ top = [] }) => Object.fromEntries(top.map(other => [textOf(other.id), other.logprob]))),
    text_offset: tokens.map(({ text }) => {
      position += text.length;
      return position - text.length;
    }),
  };
}

/** A vocabulary is small; asking the engine for each token would delay them. */
const known = new WeakMap<ModelService, Map<number, TokenText>>();

async function readTexts(service: ModelService, tokens: readonly Token[]): Promise<ReadonlyMap<number, TokenText>> {
  const texts = known.get(service) ?? new Map<number, TokenText>();
  known.set(service, texts);
  const ids = new Set(tokens.flatMap(({ id, top = [] }) => [id, ...top.map(other => other.id)]));
  const missing = [...ids].filter(id => !texts.has(id));
  const found = missing.length > 0 ? await service.tokenBytes(missing) : [];
  for (const [i, bytes] of found.entries()) texts.set(missing[i], { token: decoder.decode(bytes), bytes: [...bytes] });
  return texts;
}
