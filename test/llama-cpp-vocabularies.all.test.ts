/**
 * The vocabularies in llama.cpp's repository (`models/ggml-vocab-*.gguf`), with their test vectors: texts (`.inp`) and the
 * ids (`.out`) that the models' own tokenizers make of them. On other texts llama.cpp itself is asked.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { createTokenizer } from '../src/model/tokenizer.ts';
import { edgeCaseStrings } from './support/edge-case-strings.ts';
import { checkOutOfLlamaCpp } from './support/llama-cpp-repository.ts';
import { findLlamaTokenizers, firstDifference } from './support/llama-tokenizer.ts';
import { readMetadata } from './support/model.ts';

const folder = checkOutOfLlamaCpp('models');
const files = readdirSync(folder);
// BERT's vocabularies are those of embedding models, which are not supported.
const vocabularies = files.filter(name => /^ggml-vocab-.*\.gguf$/.test(name) && !name.includes('bert'));
const readTokenizer = (name: string) => createTokenizer(readMetadata(join(folder, name)));

it.each(vocabularies.filter(name => files.includes(`${name}.out`)))('%s: the ids of its vectors', name => {
  const read = (end: string) => readFileSync(join(folder, name + end), 'utf8');
  const texts = read('.inp').split('\n__ggml_vocab_test__\n');
  // The separator also ends most files.
  if (texts.at(-1) === '') texts.pop();
  const ids = read('.out').trimEnd().split('\n');
  const tokenizer = readTokenizer(name);
  expect(texts.map(text => tokenizer.encode(text).join(' '))).toEqual(ids.map(line => line.trim()));
});

const loadLlama = await findLlamaTokenizers();
const edgeCases = edgeCaseStrings();

describe.skipIf(!loadLlama)(`compared with llama.cpp${loadLlama ? '' : ' (needs node-llama-cpp)'}`, () => {
  it.each(vocabularies)('%s', async name => {
    const [llama, tokenizer] = [await loadLlama!(join(folder, name)), readTokenizer(name)];
    for (const parseSpecialTokens of [false, true]) {
      const different = edgeCases.filter(({ text }) => {
        const ids = tokenizer.encode(text, { parseSpecialTokens });
        return firstDifference(ids, llama(text, parseSpecialTokens)) !== undefined;
      });
      expect(
        different.map(edgeCase => edgeCase.name),
        `special tokens: ${parseSpecialTokens}`,
      ).toEqual([]);
    }
  });
});
