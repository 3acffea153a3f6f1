import { describe, expect, test } from 'vitest';
import { groupModels, isSafePath, parseModelName, parseProfileName, parseQuant } from './name.ts';

describe('model names', () => {
  test.each([
    ['acme/tiny', { repo: 'acme/tiny' }],
    ['hf:acme/tiny-GGUF:q4_k_m', { repo: 'acme/tiny-GGUF', quant: 'q4_k_m' }],
    ['acme/tiny/sub/x.gguf', { repo: 'acme/tiny', file: 'sub/x.gguf' }],
  ])('parses %s', (text, name) => expect(parseModelName(text)).toEqual(name));

  test.each(['tiny', './tiny/x.gguf', '../a/b', '/a/b', 'models/x.gguf', 'a/b/c', 'a/b/../x.gguf', 'C:\\a\\b', 'a/b:'])(
    '%s is not a hub name',
    text => expect(parseModelName(text)).toBeUndefined(),
  );

  test.each([
    ['acme/tiny', { repo: 'acme/tiny' }],
    ['hf:acme/tiny:a b.kvprofile', { repo: 'acme/tiny', file: 'a b.kvprofile' }],
    ['acme/tiny/sub/x.kvprofile', { repo: 'acme/tiny', file: 'sub/x.kvprofile' }],
  ])('parses the profile %s', (text, name) => expect(parseProfileName(text)).toEqual(name));

  test.each(['x.kvprofile', 'dir/x.kvprofile', './a/b', '/a/b', 'a/b/c', 'a/b:Q4_0', 'a/b:../x.kvprofile'])(
    '%s is not a profile on the hub',
    text => expect(parseProfileName(text)).toBeUndefined(),
  );

  test('rejects unsafe file paths', () => {
    expect(isSafePath('Q4_K_M/model v1.0 (a)-00001-of-00002.gguf')).toBe(true);
    for (const bad of ['', '.', '..', 'a/..', '/a', 'a/', 'a\\b', 'c:a', 'a\0', 'a\u202eb', 'a/..b', 'a.']) {
      expect(isSafePath(bad), JSON.stringify(bad)).toBe(false);
    }
  });
});

test.each([
  ['llama-2-7b.Q4_K_M.gguf', 'Q4_K_M'],
  ['qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf', 'Q4_K_M'],
  ['UD-Q4_K_XL/Big-UD-Q4_K_XL-00001-of-00003.gguf', 'UD-Q4_K_XL'],
  ['Phi-3-mini-4k-instruct-fp16.gguf', 'F16'],
  ['Phi-3-mini-4k-instruct-q4.gguf', 'Q4'],
  ['gpt-oss-20b-mxfp4.gguf', 'MXFP4'],
  ['x-BF16.gguf', 'BF16'],
  ['x-IQ2_XXS.gguf', 'IQ2_XXS'],
  ['x-TQ1_0.gguf', 'TQ1_0'],
  ['Q4_0.gguf', 'Q4_0'],
  ['bitnet-i2.gguf', undefined],
])('finds the quantization of %s', (file, quant) => expect(parseQuant(file)).toBe(quant));

test('groups the parts of a model and leaves out other GGUF files', () => {
  const files = [
    'b-Q8_0-00002-of-00002.gguf',
    'b-Q8_0-00001-of-00002.gguf',
    'a-F16.gguf',
    'mmproj-a-F16.gguf',
    'x.txt',
  ];
  expect(groupModels(files)).toEqual([
    { file: 'a-F16.gguf', quant: 'F16', parts: ['a-F16.gguf'], partCount: 1 },
    { file: files[1], quant: 'Q8_0', parts: [files[1], files[0]], partCount: 2 },
  ]);
});
