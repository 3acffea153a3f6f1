/** Text to token ids and back, by the vocabulary that a GGUF carries. The ids are those llama.cpp would give. */
import { InputError } from '../errors.ts';
import { bpeEncoder } from './tokenizer/bpe.ts';
import { byteOfHexToken, bytesOfDisguised } from './tokenizer/bytes.ts';
import { createMarker, type Marks } from './tokenizer/marked.ts';
import type { Metadata } from './tokenizer/metadata.ts';
import { type SpecialToken, specialSplitter } from './tokenizer/special.ts';
import { spmEncoder } from './tokenizer/spm.ts';
import { createTextStream, type TextStream } from './tokenizer/stream.ts';
import { readVocab, TokenType, type Vocab } from './tokenizer/vocab.ts';

export type { Marks } from './tokenizer/marked.ts';
export type { Metadata } from './tokenizer/metadata.ts';
export type { TextStream } from './tokenizer/stream.ts';

export interface EncodeOptions {
  /** Read control tokens written out in the text (`<|im_start|>`). Only for text that we made ourselves: a template. */
  special?: boolean;
  /** Put the beginning-of-sequence token first. `addBos` says whether the model wants that. */
  bos?: boolean;
  /** The marks that `markControls` put into the text; then control tokens are read between them and nowhere else. */
  marks?: Marks;
}

export interface DecodeOptions {
  /** Write control tokens out instead of leaving them away. */
  special?: boolean;
}

export interface Tokenizer {
  readonly vocabSize: number;
  readonly bos?: number;
  readonly eos?: number;
  readonly eot?: number;
  /** Every token that ends generation, eos and eot among them. */
  readonly endIds: ReadonlySet<number>;
  /** Whether the model file wants BOS before, and EOS after, a text. */
  readonly addBos: boolean;
  readonly addEos: boolean;
  encode(text: string, options?: EncodeOptions): number[];
  /** Puts marks around each control token written out in `text`, one of a template's own strings, for `encode` to read. */
  markControls(text: string, marks: Marks): string;
  /** Text as it was before `encode`; invalid UTF-8 becomes U+FFFD. */
  decode(ids: Iterable<number>, options?: DecodeOptions): string;
  /** The bytes a token adds to a text; none for control tokens, unless `special`. */
  tokenBytes(id: number, options?: DecodeOptions): Uint8Array;
  /** A token's own name in the vocabulary, e.g. `Ġhello` or `<|im_end|>`. */
  tokenText(id: number): string;
  /** Decodes token by token, holding unfinished characters back. */
  createTextStream(options?: DecodeOptions): TextStream;
}

const utf8 = new TextEncoder();

export function createTokenizer(meta: Metadata): Tokenizer {
  const vocab = readVocab(meta);
  const encodePlain = vocab.kind === 'bpe' ? bpeEncoder(vocab) : spmEncoder(vocab);
  // User-defined tokens are read in any text, as llama.cpp does: they are words. Control tokens only where asked.
  const userDefined = specialTokens(vocab, [TokenType.userDefined]);
  const controls = specialTokens(vocab, [TokenType.control, TokenType.unknown]);
  const untrusted = specialSplitter(userDefined);
  const trusted = specialSplitter([...userDefined, ...controls]);
  const marker = createMarker(controls, userDefined);
  const cache: (Uint8Array | undefined)[] = [];
  const nothing = new Uint8Array(0);

  const tokenBytes = (id: number, options: DecodeOptions = {}): Uint8Array => {
    checkId(vocab, id);
    const type = vocab.types[id];
    if (!options.special && (type === TokenType.control || type === TokenType.unknown)) return nothing;
    cache[id] ??= bytesOf(vocab, id);
    return cache[id];
  };

  return {
    vocabSize: vocab.tokens.length,
    bos: vocab.bos,
    eos: vocab.eos,
    eot: vocab.eot,
    endIds: vocab.endIds,
    addBos: vocab.addBos,
    addEos: vocab.addEos,

    encode(text, { special = false, bos = false, marks } = {}) {
      const ids: number[] = [];
      if (bos && vocab.bos !== undefined) ids.push(vocab.bos);
      let afterSpecial = true;
      const whole = wellFormed(text);
      for (const fragment of marks ? marker.split(whole, marks) : special ? trusted(whole) : untrusted(whole)) {
        if (typeof fragment === 'number') {
          ids.push(fragment);
        } else {
          const prefix = vocab.kind === 'spm' && vocab.addSpacePrefix && afterSpecial ? ' ' : '';
          for (const id of encodePlain(prefix + fragment)) ids.push(id);
        }
        afterSpecial = typeof fragment === 'number';
      }
      return ids;
    },

    markControls: marker.mark,

    decode(ids, options) {
      const stream = createTextStream(id => tokenBytes(id, options));
      let text = '';
      for (const id of ids) text += stream.push(id);
      text += stream.end();
      // The space that encode put in front is not the text's own.
      return vocab.kind === 'spm' && vocab.addSpacePrefix && text.startsWith(' ') ? text.slice(1) : text;
    },

    tokenBytes,

    tokenText(id) {
      checkId(vocab, id);
      return vocab.tokens[id]!;
    },

    createTextStream: options => createTextStream(id => tokenBytes(id, options)),
  };
}

function specialTokens(vocab: Vocab, types: readonly number[]): SpecialToken[] {
  const tokens: SpecialToken[] = [];
  vocab.tokens.forEach((text, id) => {
    if (!types.includes(vocab.types[id]!)) return;
    tokens.push({ id, text, eatsSpaceAfter: vocab.eatSpaces && !['<unk>', '<s>', '<|endoftext|>'].includes(text) });
  });
  return tokens;
}

function bytesOf(vocab: Vocab, id: number): Uint8Array {
  const text = vocab.tokens[id]!;
  const type = vocab.types[id]!;
  if (type === TokenType.control || type === TokenType.unknown || type === TokenType.userDefined) {
    return utf8.encode(text);
  }
  const byte = type === TokenType.byte ? byteOfHexToken(text) : undefined;
  if (byte !== undefined) return Uint8Array.of(byte);
  return vocab.kind === 'bpe' ? bytesOfDisguised(text) : utf8.encode(text.replaceAll('▁', ' '));
}

/** UTF-8 cannot hold half a surrogate pair; it becomes U+FFFD before anything looks at it. */
function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd');
}

function checkId(vocab: Vocab, id: number): void {
  if (!Number.isInteger(id) || id < 0 || id >= vocab.tokens.length) {
    throw new InputError(`Token id ${id} is outside the vocabulary; ids go from 0 to ${vocab.tokens.length - 1}.`);
  }
}
