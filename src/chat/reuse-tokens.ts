/**
 * The same text can be divided into tokens in several ways: an answer that the model has written is not always divided as
 * the tokenizer would. A later prompt that contains it keeps its tokens, or the cache would be of no use from there on.
 */
import type { Tokenizer } from '../model/tokenizer.ts';

/**
 * `next` with as many tokens of `earlier` as possible: up to there both have the same text. Control tokens, which have no
 * text, only match themselves.
 */
export function reuseTokens(
  { tokenBytes }: Pick<Tokenizer, 'tokenBytes'>,
  earlier: readonly number[],
  next: readonly number[],
): number[] {
  let shared = { earlier: 0, next: 0 };
  let [i, j] = [0, 0];
  /** The text of the tokens read so far that the other side has not matched yet. One of them is empty. */
  let [a, b]: Uint8Array[] = [new Uint8Array(), new Uint8Array()];
  for (;;) {
    if (a.length === 0 && b.length === 0) {
      shared = { earlier: i, next: j };
      while (i < earlier.length && earlier[i] === next[j]) shared = { earlier: ++i, next: ++j };
    }
    const [readsEarlier, readsNext] = [a.length === 0, b.length === 0];
    if ((readsEarlier && i === earlier.length) || (readsNext && j === next.length)) break;
    if (readsEarlier) a = tokenBytes(earlier[i++]);
    if (readsNext) b = tokenBytes(next[j++]);
    const common = Math.min(a.length, b.length);
    if (common === 0 || a.subarray(0, common).some((byte, at) => byte !== b[at])) break;
    [a, b] = [a.subarray(common), b.subarray(common)];
  }
  return [...earlier.slice(0, shared.earlier), ...next.slice(shared.next)];
}
