/** Text to token ids and back, with the vocabulary of a GGUF file. The ids are the same as llama.cpp's. */
import { ContextError, InputError, UnsupportedError } from '../util/errors.ts';
import { createBpeEncoder } from './tokenizer/bpe.ts';
import { parseHexToken, unicodeToBytes } from './tokenizer/bytes.ts';
import { type ControlMarks, createControlMarker } from './tokenizer/control-marks.ts';
import { createSpecialTokenSplitter, type SpecialToken, type TextOrId } from './tokenizer/special-tokens.ts';
import { createSpmEncoder } from './tokenizer/spm.ts';
import { createTextStream, type TextStream } from './tokenizer/stream.ts';
import type { Metadata } from './tokenizer/tokenizer-metadata.ts';
import { type InfillTokens, readVocab, TokenType, type Vocab } from './tokenizer/vocab.ts';

export type { ControlMarks } from './tokenizer/control-marks.ts';
export type { TextStream } from './tokenizer/stream.ts';
export type { Metadata } from './tokenizer/tokenizer-metadata.ts';
export type { InfillTokens } from './tokenizer/vocab.ts';

export interface EncodeOptions {
  /** Parse control tokens spelled out in the text (`<|im_start|>`). Only for trusted text. */
  parseSpecialTokens?: boolean;
  /** Put the beginning-of-sequence token first. `addBos` says whether the model expects it. */
  bos?: boolean;
  /** A text with more tokens is a ContextError, which is thrown before all of it has been read. Default: no limit. */
  maxTokens?: number;
}

export interface DecodeOptions {
  /** Include the text of control tokens, which is left out by default. */
  includeSpecialTokens?: boolean;
}

export interface Tokenizer {
  readonly vocabSize: number;
  /** Beginning of sequence. */
  readonly bos?: number;
  /** End of sequence. */
  readonly eos?: number;
  /** End of turn. */
  readonly eot?: number;
  /** Every token that ends generation, including `eos` and `eot`. */
  readonly eosIds: ReadonlySet<number>;
  /** Whether the model expects BOS before, and EOS after, a text. */
  readonly addBos: boolean;
  readonly addEos: boolean;
  /** The tokens of a gap and what is around it, if the model fills in the middle. */
  readonly infill?: InfillTokens;
  encode(text: string, options?: EncodeOptions): number[];
  /** The prompt whose continuation fills the gap between two texts. Control tokens in them are not parsed. */
  encodeInfill(prefix: string, suffix: string, options?: Omit<EncodeOptions, 'parseSpecialTokens'>): number[];
  /** The inverse of `encode`; invalid UTF-8 becomes U+FFFD. */
  decode(ids: Iterable<number>, options?: DecodeOptions): string;
  /** The bytes that a token adds to a text; none for control tokens, unless `includeSpecialTokens`. */
  tokenBytes(id: number, options?: DecodeOptions): Uint8Array;
  /** A token's entry in the vocabulary, such as `Ġhello` or `<|im_end|>`. */
  tokenText(id: number): string;
  /** Decodes token by token, holding back incomplete characters. */
  createTextStream(options?: DecodeOptions): TextStream;
}

/** A tokenizer that can encode rendered chat templates: see `tokenizer/control-marks.ts`. */
export interface ChatTokenizer extends Tokenizer {
  /** Marks the control tokens in one of the template's string literals. */
  markControlTokens(literal: string, marks: ControlMarks): string;
  /** Encodes a rendered template: only marked control tokens are parsed as such. */
  encodeMarked(text: string, marks: ControlMarks, maxTokens?: number): number[];
}

const utf8 = new TextEncoder();

export const NO_INFILL =
  'This model does not fill in the middle: its vocabulary has no tokens for a prefix, a suffix and what is between them. ' +
  'Leave out the suffix, or use a model that does, such as Qwen2.5-Coder.';

export function createTokenizer(meta: Metadata): ChatTokenizer {
  const vocab = readVocab(meta);
  const encodePlain = vocab.kind === 'spm' ? createSpmEncoder(vocab) : createBpeEncoder(vocab);
  // As in llama.cpp, user-defined tokens are parsed in any text, control tokens only on request.
  const userDefined = specialTokens(vocab, [TokenType.userDefined]);
  const controls = specialTokens(vocab, [TokenType.control, TokenType.unknown]);
  const splitUserDefined = createSpecialTokenSplitter(userDefined);
  const splitAll = createSpecialTokenSplitter([...userDefined, ...controls]);
  const marker = createControlMarker(controls, userDefined);
  const bytesById: (Uint8Array | undefined)[] = [];
  const noBytes = new Uint8Array(0);

  const tokenBytes = (id: number, options: DecodeOptions = {}): Uint8Array => {
    checkId(vocab, id);
    const type = vocab.types[id];
    if (!options.includeSpecialTokens && (type === TokenType.control || type === TokenType.unknown)) return noBytes;
    bytesById[id] ??= decodeTokenBytes(vocab, id);
    return bytesById[id];
  };

  const longest = vocab.tokens.reduce((length, text) => Math.max(length, text.length), 1);

  const encodePieces = (
    text: string,
    split: (text: string) => TextOrId[],
    max = Number.POSITIVE_INFINITY,
  ): number[] => {
    if (text.length > max * longest) throw tooLong(max);
    const ids: number[] = [];
    let afterSpecial = true;
    for (const piece of split(replaceLoneSurrogates(text))) {
      if (typeof piece === 'number') {
        ids.push(piece);
      } else {
        const prefix = vocab.kind === 'spm' && vocab.addSpacePrefix && afterSpecial ? ' ' : '';
        for (const id of encodePlain(prefix + piece, max - ids.length)) ids.push(id);
      }
      if (ids.length > max) throw tooLong(max);
      afterSpecial = typeof piece === 'number';
    }
    return ids;
  };

  const encode: Tokenizer['encode'] = (text, { parseSpecialTokens = false, bos = false, maxTokens } = {}) => {
    const split = parseSpecialTokens ? splitAll : splitUserDefined;
    const ids = encodePieces(text, split, maxTokens);
    return bos && vocab.bos !== undefined ? [vocab.bos, ...ids] : ids;
  };

  return {
    vocabSize: vocab.tokens.length,
    bos: vocab.bos,
    eos: vocab.eos,
    eot: vocab.eot,
    eosIds: vocab.eosIds,
    addBos: vocab.addBos,
    addEos: vocab.addEos,

    infill: vocab.infill,

    encode,

    encodeInfill(before, after, { bos, maxTokens } = {}) {
      if (!vocab.infill) throw new UnsupportedError(NO_INFILL);
      const { prefix, suffix, middle } = vocab.infill;
      const start = encode('', { bos });
      return [...start, prefix, ...encode(before, { maxTokens }), suffix, ...encode(after, { maxTokens }), middle];
    },

    markControlTokens: marker.mark,

    encodeMarked: (text, marks, maxTokens) => encodePieces(text, piece => marker.split(piece, marks), maxTokens),

    decode(ids, options) {
      const stream = createTextStream(id => tokenBytes(id, options));
      let text = '';
      for (const id of ids) text += stream.push(id);
      text += stream.end();
      // Drop the space prefix that `encode` added.
      return vocab.kind === 'spm' && vocab.addSpacePrefix && text.startsWith(' ') ? text.slice(1) : text;
    },

    tokenBytes,

    tokenText(id) {
      checkId(vocab, id);
      return vocab.tokens[id];
    },

    createTextStream: options => createTextStream(id => tokenBytes(id, options)),
  };
}

function specialTokens(vocab: Vocab, types: readonly number[]): SpecialToken[] {
  const tokens: SpecialToken[] = [];
  vocab.tokens.forEach((text, id) => {
    if (!types.includes(vocab.types[id])) return;
    tokens.push({ id, text, rstrip: vocab.rstripControlTokens && !['<unk>', '<s>', '<|endoftext|>'].includes(text) });
  });
  return tokens;
}

function decodeTokenBytes(vocab: Vocab, id: number): Uint8Array {
  const text = vocab.tokens[id];
  const type = vocab.types[id];
  if (type === TokenType.control || type === TokenType.unknown || type === TokenType.userDefined) {
    return utf8.encode(text);
  }
  const byte = type === TokenType.byte ? parseHexToken(text) : undefined;
  if (byte !== undefined) return Uint8Array.of(byte);
  return vocab.kind === 'bpe' ? unicodeToBytes(text) : utf8.encode(text.replaceAll('▁', ' '));
}

/** UTF-8 cannot encode half a surrogate pair, so it becomes U+FFFD. */
function replaceLoneSurrogates(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd');
}

const tooLong = (max: number): ContextError =>
  new ContextError(`The text has more than ${max} tokens, and no more are read. Shorten it.`);

function checkId(vocab: Vocab, id: number): void {
  if (!Number.isInteger(id) || id < 0 || id >= vocab.tokens.length) {
    throw new InputError(`Token id ${id} is outside the vocabulary; ids go from 0 to ${vocab.tokens.length - 1}.`);
  }
}
