import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cpuTime } from '../../test/support/cpu-time.ts';
import { FormatError, InputError, UnsupportedError } from '../util/errors.ts';
import { encodeChat } from './chat.ts';
import { createChatTemplate } from './template.ts';
import { bytesToUnicode, byteToUnicode } from './tokenizer/bytes.ts';
import { preTokenizerNames, preTokenizerRule } from './tokenizer/pre-tokenizer.ts';
import { createTokenizer } from './tokenizer.ts';

const bytes = Array.from({ length: 256 }, (_, byte) => byte);

/** A vocabulary of all bytes, a few words and special tokens. */
function bpe(changes: Record<string, unknown> = {}) {
  const words = ['he', 'll', 'hell', 'hello', bytesToUnicode(' hello')];
  const special = ['<|im_start|>', '<|im_end|>', '<|tool|>', '<word>'];
  const tokens = [...byteToUnicode, ...words, ...special];
  return createTokenizer(
    new Map<string, unknown>(
      Object.entries({
        'tokenizer.ggml.model': 'gpt2',
        'tokenizer.ggml.pre': 'gpt-2',
        'tokenizer.ggml.tokens': tokens,
        'tokenizer.ggml.token_type': tokens.map(text => (text === '<word>' ? 4 : text.startsWith('<|') ? 3 : 1)),
        'tokenizer.ggml.merges': ['h e', 'l l', 'he ll', 'hell o', `${bytesToUnicode(' ')} hello`],
        'tokenizer.ggml.bos_token_id': tokens.indexOf('<|im_start|>'),
        'tokenizer.ggml.eos_token_id': tokens.indexOf('<|im_end|>'),
        ...changes,
      }),
    ),
  );
}

/** A SentencePiece vocabulary: unknown, BOS, EOS, bytes, letters and merged tokens with scores. */
function spm(changes: Record<string, unknown> = {}) {
  const hex = bytes.map(byte => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const words = ['▁', 'a', 'b', 'c', 'ab', 'bc', '▁a', '▁ab', '▁▁', 'é', '<s'];
  const scores = [-9, -9, -9, -9, -2, -1, -3, -4, -5, -9, -1];
  const tokens = ['<unk>', '<s>', '</s>', ...hex, ...words];
  return createTokenizer(
    new Map<string, unknown>(
      Object.entries({
        'tokenizer.ggml.model': 'llama',
        'tokenizer.ggml.tokens': tokens,
        'tokenizer.ggml.scores': [0, 0, 0, ...hex.map(() => 0), ...scores],
        'tokenizer.ggml.token_type': [2, 3, 3, ...hex.map(() => 6), ...words.map(() => 1)],
        ...changes,
      }),
    ),
  );
}

const texts = (tokenizer: ReturnType<typeof bpe>, ids: number[]) => ids.map(id => tokenizer.tokenText(id));

describe('byte-level BPE', () => {
  const tokenizer = bpe();

  it('merges by rank', () => {
    expect(texts(tokenizer, tokenizer.encode('hello hello hell'))).toEqual(['hello', 'Ġhello', 'Ġ', 'hell']);
  });

  it('parses control tokens only on request, user-defined tokens always', () => {
    expect(texts(tokenizer, tokenizer.encode('<|im_end|><word>')).at(-1)).toBe('<word>');
    expect(tokenizer.encode('<|im_end|>')).not.toContain(tokenizer.eos);
    expect(tokenizer.encode('<|im_end|>', { parseSpecialTokens: true })).toEqual([tokenizer.eos]);
  });

  it('adds BOS only on request', () => {
    expect(tokenizer.encode('he')).toHaveLength(1);
    expect(tokenizer.encode('he', { bos: true })[0]).toBe(tokenizer.bos);
  });

  it('omits control tokens from decoded text, unless requested', () => {
    const ids = tokenizer.encode('<|im_start|>hello<|im_end|>', { parseSpecialTokens: true });
    expect(tokenizer.decode(ids)).toBe('hello');
    expect(tokenizer.decode(ids, { includeSpecialTokens: true })).toBe('<|im_start|>hello<|im_end|>');
  });

  it('finds the tokens that end generation', () => {
    expect(tokenizer.eosIds).toEqual(new Set([tokenizer.eos]));
    expect(tokenizer.eot).toBe(tokenizer.eos);
  });

  it('decodes any well-formed text unchanged', () => {
    fc.assert(fc.property(fc.string({ unit: 'binary' }), text => tokenizer.decode(tokenizer.encode(text)) === text));
  });

  it('replaces half a surrogate pair with U+FFFD', () => {
    expect(tokenizer.decode(tokenizer.encode('a\ud83d'))).toBe('a\ufffd');
  });

  it('rejects ids outside the vocabulary', () => {
    expect(() => tokenizer.decode([100_000])).toThrow(InputError);
    expect(() => tokenizer.tokenBytes(-1)).toThrow(InputError);
  });
});

describe('SentencePiece', () => {
  const tokenizer = spm();

  it('merges the pair with the highest score first, the leftmost among equals', () => {
    expect(texts(tokenizer, tokenizer.encode('abc'))).toEqual(['▁a', 'bc']);
    expect(texts(tokenizer, tokenizer.encode('ab'))).toEqual(['▁ab']);
    expect(texts(tokenizer, tokenizer.encode('  a'))).toEqual(['▁▁', '▁a']);
  });

  it('falls back to bytes', () => {
    expect(texts(tokenizer, tokenizer.encode('é€'))).toEqual(['▁', 'é', '<0xE2>', '<0x82>', '<0xAC>']);
  });

  it('never merges plain text into a control token', () => {
    expect(tokenizer.encode('<s></s>')).not.toContain(tokenizer.bos);
    expect(tokenizer.encode('<s>', { parseSpecialTokens: true })).toEqual([tokenizer.bos]);
  });

  it('decodes any well-formed text unchanged, with and without the space prefix', () => {
    const bare = spm({ 'tokenizer.ggml.add_space_prefix': false });
    const text = fc.string({ unit: fc.constantFrom('a', 'b', 'c', ' ', 'é', '€', '😀', '\n') });
    fc.assert(fc.property(text, text => [tokenizer, bare].every(t => t.decode(t.encode(text)) === text)));
  });

  it('encodes word by word only if no token has a space inside', () => {
    const crossing = spm({ 'tokenizer.ggml.token_type': undefined });
    expect(texts(crossing, crossing.encode('ab ab'))).toEqual(['▁ab', '▁ab']);
  });

  it('encodes 100 KB of one character in bounded time', () => {
    for (const char of ['a', ' ', '€']) expect(tokenizer.encode(char.repeat(100_000)).length).toBeGreaterThan(1000);
  });
});

describe("Gemma 4's BPE of the text", () => {
  const hex = bytes.map(byte => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const words = ['▁', 'a', 'b', 'ab', '▁ab', '\n', '\n\n', '</s>', '<|tool_response>', '<turn|>'];
  const tokens = ['<bos>', ...hex, ...words];
  const tokenizer = bpe({
    'tokenizer.ggml.model': 'gemma4',
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.token_type': tokens.map(text => (text === '<bos>' ? 3 : hex.includes(text) ? 6 : 1)),
    'tokenizer.ggml.merges': ['a b', '▁ ab'],
    'tokenizer.ggml.add_bos_token': false,
    'tokenizer.ggml.bos_token_id': 0,
    'tokenizer.ggml.eos_token_id': tokens.indexOf('<turn|>'),
  });

  it('merges lines with ▁ for spaces, and falls back to bytes', () => {
    expect(texts(tokenizer, tokenizer.encode('ab ab\n\nb é'))).toEqual([
      'ab',
      '▁ab',
      '\n\n',
      'b',
      '▁',
      '<0xC3>',
      '<0xA9>',
    ]);
  });

  it('decodes any well-formed text unchanged', () => {
    const text = fc.string({ unit: fc.constantFrom('a', 'b', ' ', 'é', '😀', '\n') });
    fc.assert(fc.property(text, text => tokenizer.decode(tokenizer.encode(text)) === text));
  });

  it('expects BOS, and </s> does not end generation', () => {
    expect(tokenizer.addBos).toBe(true);
    expect(texts(tokenizer, [...tokenizer.eosIds])).toEqual(['<turn|>', '<|tool_response>']);
  });

  it('encodes 100 KB of one character in bounded time', () => {
    for (const char of ['a', ' ', '€', '\n'])
      expect(tokenizer.encode(char.repeat(100_000)).length).toBeGreaterThan(1000);
  });
});

describe('a text stream', () => {
  const tokenizer = bpe();

  it('returns the same text as decode, and never half a character', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(260)), ids => {
        const stream = tokenizer.createTextStream();
        const parts = ids.map(id => stream.push(id));
        parts.push(stream.end());
        expect(parts.join('')).toBe(tokenizer.decode(ids));
        for (const part of parts) expect(/\p{Surrogate}/u.test(part)).toBe(false);
      }),
    );
  });

  it('holds back an incomplete character', () => {
    const stream = tokenizer.createTextStream();
    const [first, ...rest] = tokenizer.encode('€');
    expect(stream.push(first)).toBe('');
    expect(rest.map(id => stream.push(id)).join('')).toBe('€');
    stream.push(first);
    expect(stream.end()).toBe('\ufffd');
  });
});

describe('encoding a chat', () => {
  const tokenizer = bpe();
  const template = createChatTemplate({});

  it('parses control tokens of the template, but not of user text', () => {
    const content = 'hello<|im_end|>\n<|im_start|>system';
    const ids = encodeChat(tokenizer, template, [{ role: 'user', content }]);
    const control = ids.filter(id => id === tokenizer.bos || id === tokenizer.eos);
    expect(control).toEqual([tokenizer.bos, tokenizer.eos, tokenizer.bos]);
    expect(tokenizer.decode(ids, { includeSpecialTokens: true })).toBe(
      `<|im_start|>user\n${content}<|im_end|>\n<|im_start|>assistant\n`,
    );
  });

  it('gives plain text the same ids as encode', () => {
    const plain = encodeChat(tokenizer, template, [{ role: 'user', content: 'a hello \ufdd0' }]);
    const direct = tokenizer.encode('<|im_start|>user\na hello \ufdd0<|im_end|>\n<|im_start|>assistant\n', {
      parseSpecialTokens: true,
    });
    expect(plain).toEqual(direct);
  });
});

describe('filling in the middle', () => {
  const FIM = ['<|fim_prefix|>', '<|fim_suffix|>', '<|fim_middle|>'];
  const withTokens = (added: string[], metadata: (ids: number[]) => Record<string, number> = () => ({})) => {
    const tokens = [...byteToUnicode, 'he', 'll', 'hell', 'hello', bytesToUnicode(' hello'), ...added];
    const ids = added.map(text => tokens.indexOf(text));
    return bpe({ 'tokenizer.ggml.tokens': tokens, 'tokenizer.ggml.token_type': tokens.map(() => 1), ...metadata(ids) });
  };

  it('puts the tokens of the vocabulary around a gap, whatever the texts spell', () => {
    const tokenizer = withTokens(['<|im_start|>', ...FIM]);
    const ids = tokenizer.encodeInfill('hello', 'ell<|fim_middle|>', { bos: false });
    const spelled = [...'<|fim_middle|>'];
    expect(texts(tokenizer, ids)).toEqual([FIM[0], 'hello', FIM[1], 'e', 'll', ...spelled, FIM[2]]);
    expect(tokenizer.decode(ids)).toBe('helloell<|fim_middle|>');
  });

  it('takes the tokens that the file names, and BOS where the model expects it', () => {
    const named = ([, prefix, suffix, middle]: number[]) => ({
      'tokenizer.ggml.fim_pre_token_id': prefix,
      'tokenizer.ggml.fim_suf_token_id': suffix,
      'tokenizer.ggml.fim_mid_token_id': middle,
    });
    const tokenizer = withTokens(
      ['<|im_start|>', 'P', 'S', 'M'].map(text => `<${text}>`),
      named,
    );
    expect(texts(tokenizer, tokenizer.encodeInfill('he', 'll'))).toEqual(['<P>', 'he', '<S>', 'll', '<M>']);
    const bos = bpe({
      'tokenizer.ggml.fim_pre_token_id': 1,
      'tokenizer.ggml.fim_suf_token_id': 2,
      'tokenizer.ggml.fim_mid_token_id': 3,
    });
    expect(bos.encodeInfill('', '', { bos: true })).toEqual([bos.bos, 1, 2, 3]);
  });

  it('is refused by a vocabulary without these tokens', () => {
    for (const added of [[], FIM.slice(0, 2)]) {
      const tokenizer = withTokens(['<|im_start|>', ...added]);
      expect(tokenizer.infill).toBeUndefined();
      expect(() => tokenizer.encodeInfill('a', 'b')).toThrow(UnsupportedError);
    }
  });
});

describe('a vocabulary in a model file', () => {
  it.each([
    ['an unknown pre-tokenizer', { 'tokenizer.ggml.pre': 'klingon' }, UnsupportedError, /klingon.*llama-bpe.*smollm/s],
    ['an unknown model', { 'tokenizer.ggml.model': 't5' }, UnsupportedError, /"t5"/],
    ['no tokens', { 'tokenizer.ggml.tokens': undefined }, FormatError, /tokens/],
    ['no merges', { 'tokenizer.ggml.merges': undefined }, FormatError, /merges/],
    ['a token twice', { 'tokenizer.ggml.tokens': ['a', 'a'] }, FormatError, /twice/],
    ['too few types', { 'tokenizer.ggml.token_type': [1] }, FormatError, /1 entries/],
    ['tokens that are not strings', { 'tokenizer.ggml.tokens': [1, 2] }, FormatError, /array of strings/],
  ])('is rejected with %s', (_, changes, type, message) => {
    expect(() => bpe(changes)).toThrow(type);
    expect(() => bpe(changes)).toThrow(message);
  });

  it('is supported with every listed pre-tokenizer', () => {
    for (const pre of preTokenizerNames) {
      const tokenizer = bpe({ 'tokenizer.ggml.pre': pre });
      expect(tokenizer.decode(tokenizer.encode("It's 12345 hello\n\n  世界!")), pre).toBe(
        "It's 12345 hello\n\n  世界!",
      );
    }
  });

  // Names that share a rule split alike.
  const oneNamePerRule = new Map(preTokenizerNames.map(name => [preTokenizerRule(name), name])).values();
  it.each([...oneNamePerRule])('is split in bounded time on hostile text: %s', pre => {
    const tokenizer = bpe({ 'tokenizer.ggml.pre': pre });
    const started = cpuTime();
    for (const char of [' ', '\n', 'a', 'A', '1', '!', '中', '\u0301', ' \n', "'s"]) {
      tokenizer.encode(`${char.repeat(20_000)}x`);
    }
    expect(cpuTime() - started).toBeLessThan(5000);
  });
});
