/** A GGUF's vocabulary, read and checked: its tokens, what kind each is, and which ones begin and end a text. */
import { FormatError, UnsupportedError } from '../../errors.ts';
import { getBool, getInt, getNumbers, getString, getStrings, type Metadata } from './metadata.ts';
import { type PreTokenizer, preTokenizer } from './pretokenizer.ts';

/** GGUF's token types. */
export const TokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

export interface Vocab {
  /** Byte-level byte-pair encoding, or SentencePiece's score-driven merging. */
  kind: 'bpe' | 'spm';
  tokens: readonly string[];
  idOf: ReadonlyMap<string, number>;
  types: Uint8Array;
  scores: ArrayLike<number>;
  merges: readonly string[];
  pre: PreTokenizer;
  bos?: number;
  eos?: number;
  /** End of turn, where it is not simply eos. */
  eot?: number;
  unk?: number;
  /** Every token that ends generation. */
  endIds: ReadonlySet<number>;
  addBos: boolean;
  addEos: boolean;
  addSpacePrefix: boolean;
  /** Control tokens swallow the white space after them. */
  eatSpaces: boolean;
}

// Found by their text, as llama.cpp does, because files seldom name them; in order of preference.
const END_OF_TURN = [
  '<|eot_id|>',
  '<|im_end|>',
  '<|end|>',
  '<end_of_turn>',
  '<|endoftext|>',
  '<|end_of_text|>',
  '<EOT>',
  '_<EOT>',
  '[EOT]',
  '<｜end▁of▁sentence｜>',
  '<end_of_utterance>',
];
const END_OF_GENERATION = [
  ...END_OF_TURN,
  '<|return|>',
  '<|call|>',
  '<|flush|>',
  '<|calls|>',
  '</s>',
  '<|eom_id|>',
  '[EOS]',
  '<eos>',
  '<turn|>',
  '<|tool_response>',
  '[e~[',
];
// Fill-in-the-middle padding, repository and file marks: a model that writes one has left its text. First found counts.
const FILL_MARKS = [
  ['<|fim_pad|>', '<fim-pad>', '<fim_pad>', '<PAD>', '[PAD]'],
  ['<|fim_repo|>', '<|repo_name|>', '<fim-repo>', '<REPO>', '<reponame>'],
  ['<|file_sep|>'],
];
// Tokens of gpt-oss that are part of its visible format.
const ALWAYS_VISIBLE = ['<|channel|>', '<|message|>', '<|start|>', '<|constrain|>'];

export function readVocab(meta: Metadata): Vocab {
  const model = getString(meta, 'tokenizer.ggml.model');
  if (model !== 'gpt2' && model !== 'llama') {
    const found = model === undefined ? 'missing' : JSON.stringify(model.slice(0, 64));
    throw new UnsupportedError(
      `The model file's tokenizer.ggml.model is ${found}; this version reads "gpt2" (byte-level BPE) and "llama" (SentencePiece).`,
    );
  }
  const kind = model === 'gpt2' ? 'bpe' : 'spm';
  const tokens = getStrings(meta, 'tokenizer.ggml.tokens')?.map((text, id) => text || `[EMPTY_${id}]`);
  if (!tokens?.length) {
    throw new FormatError('The model file has no tokenizer.ggml.tokens; convert it again with its tokenizer.');
  }
  const idOf = new Map(tokens.map((text, id) => [text, id]));
  if (idOf.size !== tokens.length) {
    throw new FormatError('The model file lists a token twice in tokenizer.ggml.tokens; convert it again.');
  }
  const merges = getStrings(meta, 'tokenizer.ggml.merges') ?? [];
  if (kind === 'bpe' && merges.length === 0) {
    throw new FormatError('The model file has no tokenizer.ggml.merges; convert it again with its tokenizer.');
  }

  const scores = perToken(meta, 'tokenizer.ggml.scores', tokens.length) ?? new Float32Array(tokens.length);
  const fileTypes = perToken(meta, 'tokenizer.ggml.token_type', tokens.length);
  const types = fileTypes ? Uint8Array.from(fileTypes) : new Uint8Array(tokens.length).fill(TokenType.normal);

  const id = (name: string): number | undefined => {
    const value = getInt(meta, `tokenizer.ggml.${name}_token_id`);
    // An id outside the vocabulary is a common conversion slip that llama.cpp ignores too.
    return value !== undefined && value >= 0 && value < tokens.length ? value : undefined;
  };
  const spm = kind === 'spm';
  const bos = id('bos') ?? (spm ? 1 : undefined);
  const eos = id('eos') ?? (spm ? 2 : undefined);
  const unk = id('unknown') ?? (spm ? 0 : undefined);
  const eot = id('eot') ?? firstOf(idOf, END_OF_TURN);
  const endIds = endTokens(idOf, types, [eos, eot, id('eom')]);
  const pre = spm ? { patterns: [], ignoreMerges: false, addBos: true } : preTokenizer(preName(meta));

  return {
    kind,
    tokens,
    idOf,
    types,
    scores,
    merges,
    pre,
    bos,
    eos,
    eot,
    unk,
    endIds,
    addBos: (getBool(meta, 'tokenizer.ggml.add_bos_token') ?? pre.addBos) && bos !== undefined,
    addEos: (getBool(meta, 'tokenizer.ggml.add_eos_token') ?? false) && eos !== undefined,
    addSpacePrefix: getBool(meta, 'tokenizer.ggml.add_space_prefix') ?? spm,
    // Phi-3's way, which its files do not say; llama.cpp goes by the model's name too.
    eatSpaces: /phi-?3/i.test(getString(meta, 'general.name') ?? ''),
  };
}

function preName(meta: Metadata): string {
  return getString(meta, 'tokenizer.ggml.pre') || 'default';
}

/** Collects the tokens that end generation, and makes those that look like control tokens into control tokens. */
function endTokens(
  idOf: ReadonlyMap<string, number>,
  types: Uint8Array,
  named: readonly (number | undefined)[],
): Set<number> {
  const ends = new Set<number>();
  for (const text of END_OF_GENERATION) {
    const id = idOf.get(text);
    if (id === undefined) continue;
    ends.add(id);
    types[id] = TokenType.control;
  }
  for (const marks of FILL_MARKS) {
    const id = firstOf(idOf, marks);
    if (id === undefined) continue;
    ends.add(id);
    types[id] = TokenType.control;
  }
  for (const text of ALWAYS_VISIBLE) {
    const id = idOf.get(text);
    if (id !== undefined) types[id] = TokenType.userDefined;
  }
  for (const id of named) if (id !== undefined) ends.add(id);

  // Where a turn has its own closing calls, <|end|> only closes a part of it.
  const has = (text: string) => idOf.has(text);
  const end = idOf.get('<|end|>');
  const call = has('<|call|>') || has('<|calls|>');
  if (end !== undefined && call && (has('<|return|>') || has('<|flush|>'))) {
    ends.delete(end);
    types[end] = TokenType.userDefined;
  }
  return ends;
}

function firstOf(idOf: ReadonlyMap<string, number>, texts: readonly string[]): number | undefined {
  for (const text of texts) {
    const id = idOf.get(text);
    if (id !== undefined) return id;
  }
  return undefined;
}

function perToken(meta: Metadata, key: string, count: number): ArrayLike<number> | undefined {
  const values = getNumbers(meta, key);
  if (values && values.length < count) {
    throw new FormatError(
      `The model file's ${key} has ${values.length} entries for ${count} tokens; it is damaged, convert it again.`,
    );
  }
  return values;
}
