/** Byte-level byte-pair encoding of a GGUF's vocabulary, on the parts of Hugging Face's tokenizer library. */
import * as huggingFace from '@huggingface/tokenizers';
import { disguise } from './bytes.ts';
import { remembered } from './remember.ts';
import { TokenType, type Vocab } from './vocab.ts';

// The library's type declarations lack the file extensions that Node's resolution asks for, so its parts have no types.
const { BPE, SequencePreTokenizer } = huggingFace as unknown as {
  BPE: new (config: object) => { encode(words: string[]): string[] };
  SequencePreTokenizer: new (config: object) => { pre_tokenize(text: string): string[] };
};

/**
 * Returns a function that encodes plain text. Control tokens are not among its words, so no text can produce one.
 * A byte that the vocabulary has no token for is left out, as llama.cpp leaves it out (SmolLM2 lacks U+0004).
 */
export function bpeEncoder(vocab: Vocab): (text: string) => number[] {
  const words: Record<string, number> = Object.create(null);
  vocab.tokens.forEach((text, id) => {
    if (vocab.types[id] !== TokenType.control && vocab.types[id] !== TokenType.unknown) words[text] = id;
  });
  const merges: [string, string][] = [];
  for (const merge of vocab.merges) {
    const space = merge.indexOf(' ', 1);
    const pair: [string, string] = [merge.slice(0, space), merge.slice(space + 1)];
    // A merge into something that is no word would lose text, as nothing could name it.
    if (space > 0 && pair.join('') in words) merges.push(pair);
  }

  const model = new BPE({
    type: 'BPE',
    vocab: words,
    merges,
    ignore_merges: vocab.pre.ignoreMerges,
  });
  const cutter = new SequencePreTokenizer({
    type: 'Sequence',
    pretokenizers: vocab.pre.patterns.map(pattern => ({
      type: 'Split',
      pattern: { Regex: pattern },
      behavior: 'Isolated',
      invert: false,
    })),
  });

  const encodeWord = remembered(word => model.encode([disguise(word)]).map(token => words[token]!));
  return text => {
    const ids: number[] = [];
    for (const word of cutter.pre_tokenize(text)) for (const id of encodeWord(word)) ids.push(id);
    return ids;
  };
}
