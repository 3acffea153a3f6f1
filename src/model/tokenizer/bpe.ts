/** Byte-pair encoding with a GGUF's vocabulary: the pre-tokenizer splits the text, merges go by rank. */
import { bytesToUnicode, formatHexToken } from './bytes.ts';
import { type MergeCost, mergePairs } from './merge.ts';
import { PairRanks } from './pair-ranks.ts';
import { createPreTokenizer } from './pre-tokenizer.ts';
import { TokenType, type Vocab } from './vocab.ts';
import { cacheWords } from './word-cache.ts';

const utf8 = new TextEncoder();

/**
 * Returns a function that encodes plain text, and stops once it has more than `max` ids. Control tokens are excluded, so no text can produce one.
 * A byte without a token in the vocabulary is dropped, as llama.cpp does (SmolLM2 has none for U+0004).
 */
export function createBpeEncoder(vocab: Vocab): (text: string, max: number) => number[] {
  const plainId = (text: string): number | undefined => {
    const id = vocab.idByText.get(text);
    return id === undefined || vocab.types[id] === TokenType.control || vocab.types[id] === TokenType.unknown
      ? undefined
      : id;
  };
  const cost = createMergeCost(vocab.merges, plainId, vocab.tokens.length);
  const splitWords = createPreTokenizer(vocab.preTokenizer);

  const isOfText = vocab.kind === 'textBpe';
  const byteIds = (piece: string) => Array.from(utf8.encode(piece), byte => vocab.idByText.get(formatHexToken(byte)));

  const encodeWord = cacheWords(word => {
    const text = isOfText ? word : bytesToUnicode(word);
    const isMerged = !vocab.preTokenizer.ignoreMerges && !(isOfText && word.startsWith('\n'));
    const wholeWord = isMerged ? undefined : plainId(text);
    if (wholeWord !== undefined) return [wholeWord];
    return mergePairs(text, cost)
      .flatMap(piece => plainId(piece) ?? (isOfText ? byteIds(piece) : undefined))
      .filter(id => id !== undefined);
  });
  return (text, max) => {
    const ids: number[] = [];
    for (const word of splitWords(isOfText ? text.replaceAll(' ', '▁') : text)) {
      for (const id of encodeWord(word)) ids.push(id);
      if (ids.length > max) break;
    }
    return ids;
  };
}

function createMergeCost(
  merges: readonly string[],
  plainId: (text: string) => number | undefined,
  vocabSize: number,
): MergeCost {
  // One side of a merge may be no token, such as a byte that the vocabulary lacks: it gets an id past the vocabulary.
  const extraIds = new Map<string, number>();
  const idOf = (text: string) => plainId(text) ?? extraIds.get(text);
  const addId = (text: string) => {
    const id = idOf(text) ?? vocabSize + extraIds.size;
    if (id >= vocabSize) extraIds.set(text, id);
    return id;
  };
  const ranks = new PairRanks(merges.length);
  merges.forEach((merge, rank) => {
    const space = merge.indexOf(' ', 1);
    const [left, right] = [merge.slice(0, space), merge.slice(space + 1)];
    // A merge whose result is no token would lose text.
    if (space <= 0 || plainId(left + right) === undefined) return;
    ranks.add(addId(left), addId(right), rank);
  });
  return (text, start, middle, end) => {
    const [left, right] = [idOf(text.slice(start, middle)), idOf(text.slice(middle, end))];
    return left === undefined || right === undefined ? undefined : ranks.get(left, right);
  };
}
