/** Words repeat: remembering the short ones makes encoding about as fast as cutting a text into words. */
const WORDS = 50_000;
const LENGTH = 64;

export function remembered(encode: (word: string) => readonly number[]): (word: string) => readonly number[] {
  const known = new Map<string, readonly number[]>();
  return word => {
    const before = known.get(word);
    if (before) return before;
    const ids = encode(word);
    if (word.length <= LENGTH) {
      if (known.size >= WORDS) known.clear();
      known.set(word, ids);
    }
    return ids;
  };
}
