/** Text repeats its words: caching the ids of short words makes encoding about as fast as splitting a text into words. */
const MAX_WORDS = 50_000;
const MAX_WORD_LENGTH = 64;

export function cacheWords(encode: (word: string) => readonly number[]): (word: string) => readonly number[] {
  const cache = new Map<string, readonly number[]>();
  return word => {
    const cached = cache.get(word);
    if (cached) return cached;
    const ids = encode(word);
    if (word.length <= MAX_WORD_LENGTH) {
      if (cache.size >= MAX_WORDS) cache.clear();
      cache.set(word, ids);
    }
    return ids;
  };
}
