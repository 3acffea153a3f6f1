/** `maxTokens` as `max-tokens` or `max_tokens`. */
export const splitWords = (name: string, separator: '-' | '_'): string =>
  name.replace(/[A-Z]/g, letter => separator + letter.toLowerCase());
