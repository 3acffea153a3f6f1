/** Byte-level byte-pair encoding of a GGUF's vocabulary: words by Hugging Face's tokenizer library, merges by rank. */
import * as huggingFace from '@huggingface/tokenizers';
import { disguise } from './bytes.ts';
import { type Cost, mergePairs } from './merge.ts';
import { PairRanks } from './ranks.ts';
import { remembered } from './remember.ts';
import { TokenType, type Vocab } from './vocab.ts';

// The library's type declarations lack the file extensions that Node's resolution asks for, so its parts have no types.
// Its own BPE is not used: it keeps every merge as a string, which for 49K merges is 20 MB, and for 280K over 100.
const { SequencePreTokenizer } = huggingFace as unknown as {
  SequencePreTokenizer: new (config: object) => { pre_tokenize(text: string): string[] };
};

/**
 * Returns a function that encodes plain text. Control tokens are not among its words, so no text can produce one.
 * A byte that the vocabulary has no token for is left out, as llama.cpp leaves it out (SmolLM2 lacks U+0004).
 */
export function bpeEncoder(vocab: Vocab): (text: string) => number[] {
  const wordId = (text: string): number | undefined => {
    const id = vocab.idOf.get(text);
    return id === undefined || vocab.types[id] === TokenType.control || vocab.types[id] === TokenType.unknown
      ? undefined
      : id;
  };
  const cost = rankOfPairs(vocab.merges, wordId, vocab.tokens.length);
  const cutter = new SequencePreTokenizer({
    type: 'Sequence',
    pretokenizers: vocab.pre.patterns.map(pattern => ({
      type: 'Split',
      pattern: { Regex: pattern },
      behavior: 'Isolated',
      invert: false,
    })),
  });

  const encodeWord = remembered(word => {
    const text = disguise(word);
    const whole = vocab.pre.ignoreMerges ? wordId(text) : undefined;
    if (whole !== undefined) return [whole];
    return mergePairs(text, cost)
      .map(wordId)
      .filter(id => id !== undefined);
  });
  return text => {
    const ids: number[] = [];
    for (const word of cutter.pre_tokenize(text)) for (const id of encodeWord(word)) ids.push(id);
    return ids;
  };
}

function rankOfPairs(merges: readonly string[], wordId: (text: string) => number | undefined, words: number): Cost {
  // A half that is no word itself, such as a byte that the vocabulary lacks, gets a number behind theirs.
  const others = new Map<string, number>();
  const numberOf = (text: string) => wordId(text) ?? others.get(text);
  const ranks = new PairRanks(merges.length);
  merges.forEach((merge, rank) => {
    const space = merge.indexOf(' ', 1);
    const [left, right] = [merge.slice(0, space), merge.slice(space + 1)];
    // A merge into something that is no word would lose text, as nothing could name it.
    if (space <= 0 || wordId(left + right) === undefined) return;
    for (const half of [left, right]) if (numberOf(half) === undefined) others.set(half, words + others.size);
    ranks.add(numberOf(left)!, numberOf(right)!, rank);
  });
  return (text, start, middle, stop) => {
    const [left, right] = [numberOf(text.slice(start, middle)), numberOf(text.slice(middle, stop))];
    return left === undefined || right === undefined ? undefined : ranks.get(left, right);
  };
}
