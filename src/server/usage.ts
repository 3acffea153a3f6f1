/** Token counts in the answer to a client. */

interface TokenCounts {
  promptTokens: number;
  /** Tokens of the prompt that were in the cache. */
  cachedTokens: number;
  completionTokens: number;
  /** Tokens of the completion that are reasoning. */
  reasoningTokens?: number;
  /** Why no more of the prompt was in the cache. */
  cache_difference?: object;
}

export const openaiUsage = ({
  promptTokens,
  cachedTokens,
  completionTokens,
  reasoningTokens,
  cache_difference,
}: TokenCounts): object => ({
  prompt_tokens: promptTokens,
  completion_tokens: completionTokens,
  total_tokens: promptTokens + completionTokens,
  prompt_tokens_details: { cached_tokens: cachedTokens, ...(cache_difference && { cache_difference }) },
  ...(reasoningTokens !== undefined && { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
});
