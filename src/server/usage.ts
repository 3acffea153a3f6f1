/** Token counts in the answer to a client. */

interface TokenCounts {
  promptTokens: number;
  /** Tokens of the prompt that were in the cache. */
  cachedTokens: number;
  completionTokens: number;
  /** Tokens of the completion that are reasoning. */
  reasoningTokens?: number;
}

export const openaiUsage = ({
  promptTokens,
  cachedTokens,
  completionTokens,
  reasoningTokens,
}: TokenCounts): object => ({
  prompt_tokens: promptTokens,
  completion_tokens: completionTokens,
  total_tokens: promptTokens + completionTokens,
  prompt_tokens_details: { cached_tokens: cachedTokens },
  ...(reasoningTokens !== undefined && { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
});
