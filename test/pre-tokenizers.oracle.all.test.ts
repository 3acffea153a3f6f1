/**
 * Every pre-tokenizer, and SentencePiece, against llama.cpp on random text. The vocabularies make the borders of words show
 * in the ids: any two bytes or characters of the texts merge, in a random order, so a border elsewhere changes what merges.
 */
import { rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { describe, expect, it } from 'vitest';
import { bytesToUnicode, byteToUnicode, formatHexToken } from '../src/model/tokenizer/bytes.ts';
import { preTokenizerNames } from '../src/model/tokenizer/pre-tokenizer.ts';
import { createTokenizer } from '../src/model/tokenizer.ts';
import { edgeCaseStrings } from './support/edge-case-strings.ts';
import { arrayOf, type Metadata, writeTempModel } from './support/gguf-writer.ts';
import { findLlamaTokenizers, firstDifference } from './support/llama-tokenizer.ts';
import { readMetadata } from './support/model.ts';
import { seeded } from './support/random.ts';
import { tinyModel } from './support/tiny-model.ts';

const random = seeded(33);

// Of every kind that a pattern distinguishes: cases, digits, marks, spaces, line ends, punctuation, symbols, scripts.
const PARTS = [
  ...'aZéÉßǅʰ',
  ...'019²Ⅷ٣',
  ...' \t\n\r\u00a0\u3000\u0085\u2028',
  ...`.,!?/-_'"#$+<=>^\`|~()…。，।“`,
  ...'中文あアㄅ가กไक',
  ...'\u0301\u0e31\u093f\u200d',
  ...'€©😀👨',
  ...["'s", "'t", "'LL", "'Ve", ' word', 'Word', 'WORD', ' hello', '123', '4567', '12345678', '\r\n', '\n\n', '   '],
];
const TEXTS = [
  ...edgeCaseStrings().map(({ text }) => text.slice(0, 1000)),
  ...Array.from({ length: 500 }, () =>
    Array.from({ length: 1 + random.below(12) }, () => PARTS[random.below(PARTS.length)]).join(''),
  ),
];
// llama.cpp hides these from patterns of characters, which name U+3000; the models' own tokenizers do not.
const UNICODE_SPACE = /[^\P{White_Space}\0-\x7f]/u;
const HIDES_SPACES = ['deepseek-coder', 'deepseek-llm'];

/** All ordered pairs, in random order. */
function shuffledPairs(symbols: Iterable<string>): [string, string][] {
  const all = [...new Set(symbols)];
  const pairs = all.flatMap(left => all.map((right): [string, string] => [left, right]));
  for (let i = pairs.length - 1; i > 0; i--) {
    const j = random.below(i + 1);
    [pairs[i], pairs[j]] = [pairs[j], pairs[i]];
  }
  return pairs;
}

function bpeVocabulary(): Metadata {
  const pairs = shuffledPairs(bytesToUnicode(PARTS.join('')));
  // No merges make these: only rules that ignore merges use them.
  const words = ['word', ' word', 'Word', ' hello', '123', '   ', '中文'].map(bytesToUnicode);
  const tokens = [...byteToUnicode, ...pairs.map(([left, right]) => left + right), ...words];
  return {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.merges': pairs.map(([left, right]) => `${left} ${right}`),
    'tokenizer.ggml.token_type': arrayOf(
      'i32',
      tokens.map(() => 1),
    ),
  };
}

const bytes = Array.from({ length: 256 }, (_, byte) => formatHexToken(byte));

/** Gemma 4's kind: merges of characters, runs of newlines as tokens, other characters as bytes. */
function textBpeVocabulary(): Metadata {
  const pairs = shuffledPairs([...PARTS.join('').replaceAll(' ', '▁')].slice(0, 60).filter(char => char !== '\n'));
  const letters = new Set(pairs.flat());
  const joined = pairs.map(([left, right]) => left + right);
  const tokens = ['<pad>', '<bos>', '<eos>', ...bytes, ...letters, '\n', '\n\n', '\n\n\n', ...joined, '<tool>'];
  return {
    'tokenizer.ggml.model': 'gemma4',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.merges': pairs.map(([left, right]) => `${left} ${right}`),
    'tokenizer.ggml.token_type': arrayOf(
      'i32',
      tokens.map((text, id) => (id < 3 ? 3 : id < 259 ? 6 : text === '<tool>' ? 4 : 1)),
    ),
    'tokenizer.ggml.bos_token_id': 1,
    'tokenizer.ggml.eos_token_id': 2,
  };
}

function spmVocabulary(): Metadata {
  // Some characters are no tokens, so that they become bytes.
  const letters = [...new Set(PARTS.join('').replaceAll(' ', '▁'))].filter(char => !'€文\t\u0301'.includes(char));
  const pairs = shuffledPairs(letters.slice(0, 60)).map(([left, right]) => left + right);
  const longer = ['▁▁▁', '▁word', 'wor', 'hello', '<tool>', '\n\n\n'];
  const tokens = ['<unk>', '<s>', '</s>', ...bytes, ...letters, ...pairs, ...longer];
  const types = (text: string) => (text === '<unk>' ? 2 : /^<\/?s>$/.test(text) ? 3 : text === '<tool>' ? 4 : 1);
  return {
    'tokenizer.ggml.model': 'llama',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.token_type': arrayOf(
      'i32',
      tokens.map((text, id) => (id >= 3 && id < 259 ? 6 : types(text))),
    ),
    // Few different scores, so that some are equal.
    'tokenizer.ggml.scores': arrayOf(
      'f32',
      tokens.map(() => -random.below(50)),
    ),
  };
}

const loadLlama = await findLlamaTokenizers();

/** The texts whose ids differ from llama.cpp's. */
async function differences(vocabulary: Metadata, texts: readonly string[]): Promise<string[]> {
  const path = await writeTempModel(tinyModel({ vocab: 1, vocabulary: false, metadata: vocabulary }));
  try {
    const llama = await loadLlama!(path);
    const tokenizer = createTokenizer(readMetadata(path));
    return texts.filter(text => firstDifference(tokenizer.encode(text), llama(text, false)) !== undefined);
  } finally {
    await rm(dirname(path), { recursive: true });
  }
}

describe.skipIf(!loadLlama)(`compared with llama.cpp${loadLlama ? '' : ' (needs node-llama-cpp)'}`, () => {
  const bpe = bpeVocabulary();

  it.each(preTokenizerNames)('splits as it does: %s', async pre => {
    const texts = HIDES_SPACES.includes(pre) ? TEXTS.filter(text => !UNICODE_SPACE.test(text)) : TEXTS;
    expect(await differences({ ...bpe, 'tokenizer.ggml.pre': pre }, texts)).toEqual([]);
  });

  it("merges Gemma 4's text as it does", async () => {
    const texts = [...TEXTS, ...TEXTS.map(text => `${text}\n\n\n\n<tool> ${text}`)];
    expect(await differences(textBpeVocabulary(), texts)).toEqual([]);
  });

  it.each([true, false])('merges SentencePiece as it does (space prefix: %s)', async prefix => {
    const vocabulary = { ...spmVocabulary(), 'tokenizer.ggml.add_space_prefix': prefix };
    const texts = [...TEXTS, ...TEXTS.map(text => `${text}<tool>${text}`)];
    expect(await differences(vocabulary, texts)).toEqual([]);
  });
});
