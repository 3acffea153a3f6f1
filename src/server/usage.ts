/** Token counts in the answer to a client. */
import type { Usage } from '../engine/stream.ts';

/** Of all answers of a request. They share their prompt, so that what was cached before is what the first one found. */
export function openaiUsage(usages: readonly Usage[], reasoningTokens?: number): object {
  const sum = (count: (usage: Usage) => number) => usages.reduce((total, usage) => total + count(usage), 0);
  const prompt = usages[0]?.promptTokens ?? 0;
  const completion = sum(usage => usage.completionTokens);
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: Math.min(...usages.map(usage => usage.reusedTokens)) },
    ...(reasoningTokens !== undefined && { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
  };
}
