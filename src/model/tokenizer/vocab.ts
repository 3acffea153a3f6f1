/** Reads and checks the vocabulary of a GGUF file: its tokens, their types, and which ones begin and end a text. */
import { FormatError, UnsupportedError } from '../../util/errors.ts';
import { linesRule, type PreTokenizerRule, preTokenizerRule } from './pre-tokenizer.ts';
import { getBool, getInt, getNumbers, getString, getStrings, type Metadata } from './tokenizer-metadata.ts';

/** GGUF's token types. */
export const TokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

export interface Vocab {
  /** Byte-level BPE, BPE of the text itself with `▁` for spaces (Gemma 4), or SentencePiece, which merges by score. */
  kind: 'bpe' | 'textBpe' | 'spm';
  tokens: readonly string[];
  idByText: ReadonlyMap<string, number>;
  types: Uint8Array;
  scores: ArrayLike<number>;
  merges: readonly string[];
  preTokenizer: PreTokenizerRule;
  bos?: number;
  eos?: number;
  /** End of turn; may be the same as eos. */
  eot?: number;
  unk?: number;
  /** If the model fills in the middle. */
  infill?: InfillTokens;
  /** Every token that ends generation. */
  eosIds: ReadonlySet<number>;
  addBos: boolean;
  addEos: boolean;
  addSpacePrefix: boolean;
  /** Control tokens include the white space after them. */
  rstripControlTokens: boolean;
}

/** The tokens before the text ahead of a gap, before the text after it, and before the text that fills it. */
export interface InfillTokens {
  prefix: number;
  suffix: number;
  middle: number;
}

// Found by text, as llama.cpp does, because few files name them; in order of preference.
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
// Fill-in-the-middle tokens also end generation. Of each list, the first that the vocabulary has is used.
const FILL_IN_THE_MIDDLE = [
  ['<|fim_pad|>', '<fim-pad>', '<fim_pad>', '<PAD>', '[PAD]'],
  ['<|fim_repo|>', '<|repo_name|>', '<fim-repo>', '<REPO>', '<reponame>'],
  ['<|file_sep|>'],
];
// The names of these tokens in a file, now and before, and their texts.
const INFILL = {
  prefix: {
    names: ['fim_pre', 'prefix'],
    texts: ['<|fim_prefix|>', '<fim-prefix>', '<fim_prefix>', '<｜fim▁begin｜>', '<PRE>', '▁<PRE>', '<|code_prefix|>'],
  },
  suffix: {
    names: ['fim_suf', 'suffix'],
    texts: ['<|fim_suffix|>', '<fim-suffix>', '<fim_suffix>', '<｜fim▁hole｜>', '<SUF>', '▁<SUF>', '<|code_suffix|>'],
  },
  middle: {
    names: ['fim_mid', 'middle'],
    texts: ['<|fim_middle|>', '<fim-middle>', '<fim_middle>', '<｜fim▁end｜>', '<MID>', '▁<MID>', '<|code_middle|>'],
  },
};

const KINDS = new Map<string, Vocab['kind']>([
  ['gpt2', 'bpe'],
  ['gemma4', 'textBpe'],
  ['llama', 'spm'],
]);

function readKind(meta: Metadata): Vocab['kind'] {
  const model = getString(meta, 'tokenizer.ggml.model');
  const kind = KINDS.get(model ?? '');
  if (kind) return kind;
  const found = model === undefined ? 'missing' : JSON.stringify(model.slice(0, 64));
  throw new UnsupportedError(
    `The model file's tokenizer.ggml.model is ${found}; this version reads "gpt2" (byte-level BPE), "gemma4" (BPE of the ` +
      'text) and "llama" (SentencePiece).',
  );
}

export function readVocab(meta: Metadata): Vocab {
  const kind = readKind(meta);
  const tokens = getStrings(meta, 'tokenizer.ggml.tokens')?.map((text, id) => text || `[EMPTY_${id}]`);
  if (!tokens?.length) {
    throw new FormatError('The model file has no tokenizer.ggml.tokens; convert it again with its tokenizer.');
  }
  const idByText = new Map<string, number>();
  tokens.forEach((text, id) => void idByText.set(text, id));
  if (idByText.size !== tokens.length) {
    throw new FormatError('The model file lists a token twice in tokenizer.ggml.tokens; convert it again.');
  }
  const merges = getStrings(meta, 'tokenizer.ggml.merges') ?? [];
  if (kind !== 'spm' && merges.length === 0) {
    throw new FormatError('The model file has no tokenizer.ggml.merges; convert it again with its tokenizer.');
  }

  const scores = getNumberPerToken(meta, 'tokenizer.ggml.scores', tokens.length) ?? new Float32Array(tokens.length);
  const fileTypes = getNumberPerToken(meta, 'tokenizer.ggml.token_type', tokens.length);
  const types = fileTypes ? Uint8Array.from(fileTypes) : new Uint8Array(tokens.length).fill(TokenType.normal);

  const id = (name: string): number | undefined => {
    const value = getInt(meta, `tokenizer.ggml.${name}_token_id`);
    // Some converted files have an id outside the vocabulary; llama.cpp ignores it too.
    return value !== undefined && value >= 0 && value < tokens.length ? value : undefined;
  };
  const spm = kind === 'spm';
  const bos = id('bos') ?? (spm ? 1 : undefined);
  const eos = id('eos') ?? (spm ? 2 : undefined);
  const unk = id('unknown') ?? (spm ? 0 : undefined);
  const eot = id('eot') ?? firstIdOf(idByText, END_OF_TURN);
  const eosIds = collectEosIds(idByText, types, [eos, eot, id('eom')]);
  const infillId = ({ names, texts }: (typeof INFILL)['prefix']) =>
    names.map(id).find(found => found !== undefined) ?? firstIdOf(idByText, texts);
  const [prefix, suffix, middle] = [INFILL.prefix, INFILL.suffix, INFILL.middle].map(infillId);
  const infill =
    prefix !== undefined && suffix !== undefined && middle !== undefined ? { prefix, suffix, middle } : undefined;
  // As with the tokens that end a text, files do not always say that these are control tokens.
  for (const token of Object.values(infill ?? {})) types[token] = TokenType.control;
  const preTokenizer = kind === 'bpe' ? preTokenizerRule(preTokenizerName(meta)) : linesRule;
  // Some files of Gemma 4 say that it does not expect BOS.
  const addBos = kind === 'textBpe' || (getBool(meta, 'tokenizer.ggml.add_bos_token') ?? preTokenizer.addBos);

  return {
    kind,
    tokens,
    idByText,
    types,
    scores,
    merges,
    preTokenizer,
    bos,
    eos,
    eot,
    unk,
    ...(infill && { infill }),
    eosIds,
    addBos: addBos && bos !== undefined,
    addEos: (getBool(meta, 'tokenizer.ggml.add_eos_token') ?? false) && eos !== undefined,
    addSpacePrefix: getBool(meta, 'tokenizer.ggml.add_space_prefix') ?? spm,
    // Phi-3's files do not say so; llama.cpp checks the model's name too.
    rstripControlTokens: /phi-?3/i.test(getString(meta, 'general.name') ?? ''),
  };
}

function preTokenizerName(meta: Metadata): string {
  return getString(meta, 'tokenizer.ggml.pre') || 'default';
}

/** Collects the tokens that end generation, and corrects the types of known tokens in `types`. */
function collectEosIds(
  idByText: ReadonlyMap<string, number>,
  types: Uint8Array,
  idsFromFile: readonly (number | undefined)[],
): Set<number> {
  const eosIds = new Set<number>();
  for (const text of END_OF_GENERATION) {
    const id = idByText.get(text);
    if (id === undefined) continue;
    eosIds.add(id);
    types[id] = TokenType.control;
  }
  for (const texts of FILL_IN_THE_MIDDLE) {
    const id = firstIdOf(idByText, texts);
    if (id === undefined) continue;
    eosIds.add(id);
    types[id] = TokenType.control;
  }
  for (const id of idsFromFile) if (id !== undefined) eosIds.add(id);

  // In Gemma 4's vocabulary </s> is the tag of HTML.
  const closing = idByText.get('</s>');
  if (closing !== undefined && idByText.has('<|tool_response>')) {
    eosIds.delete(closing);
    types[closing] = TokenType.normal;
  }

  // In vocabularies with these tokens, <|end|> ends a message within a turn, not the turn.
  const has = (text: string) => idByText.has(text);
  const end = idByText.get('<|end|>');
  const hasCall = has('<|call|>') || has('<|calls|>');
  if (end !== undefined && hasCall && (has('<|return|>') || has('<|flush|>'))) eosIds.delete(end);
  return eosIds;
}

function firstIdOf(idByText: ReadonlyMap<string, number>, texts: readonly string[]): number | undefined {
  for (const text of texts) {
    const id = idByText.get(text);
    if (id !== undefined) return id;
  }
  return undefined;
}

function getNumberPerToken(meta: Metadata, key: string, count: number): ArrayLike<number> | undefined {
  const values = getNumbers(meta, key);
  if (values && values.length < count) {
    throw new FormatError(
      `The model file's ${key} has ${values.length} entries for ${count} tokens; it is damaged, convert it again.`,
    );
  }
  return values;
}
