/**
 * SentencePiece's byte-pair encoding: the adjacent pair whose merged token has the highest score merges first, the
 * leftmost among equals, until no pair makes a token. Symbols that are no token are encoded as bytes.
 */
import { FormatError } from '../../util/errors.ts';
import { formatHexToken } from './bytes.ts';
import { type MergeCost, mergePairs } from './merge.ts';
import { TokenType, type Vocab } from './vocab.ts';
import { cacheWords } from './word-cache.ts';

const utf8 = new TextEncoder();

/**
 * Returns a function that encodes plain text, and stops once it has more than `max` ids. Control tokens are excluded, so no
 * text can produce one.
 */
export function createSpmEncoder(vocab: Vocab): (text: string, max: number) => number[] {
  const plainIds = new Map<string, number>();
  vocab.tokens.forEach((text, id) => {
    const type = vocab.types[id];
    if (type !== TokenType.control && type !== TokenType.unknown && type !== TokenType.byte) plainIds.set(text, id);
  });
  const byteIds = Array.from(
    { length: 256 },
    (_, byte) => vocab.idByText.get(formatHexToken(byte)) ?? vocab.unk,
  ).filter(id => id !== undefined);
  if (byteIds.length < 256) {
    throw new FormatError(
      'The vocabulary lacks byte tokens (<0x00> to <0xFF>) and has no unknown token; convert the model again.',
    );
  }

  const cost: MergeCost = (text, start, _, end) => {
    const id = plainIds.get(text.slice(start, end));
    return id === undefined ? undefined : -vocab.scores[id];
  };
  const encodeWord = cacheWords(word => {
    const ids: number[] = [];
    for (const piece of mergePairs(word, cost)) {
      const id = plainIds.get(piece);
      if (id !== undefined) ids.push(id);
      else for (const byte of utf8.encode(piece)) ids.push(byteIds[byte]);
    }
    return ids;
  });
  // If no token has a space inside, no merge crosses the start of a word: words can be encoded one by one.
  const crossesWords = [...plainIds.keys()].some(text => /[^▁]▁/.test(text));

  return (text, max) => {
    const plain = text.replaceAll(' ', '▁');
    const ids: number[] = [];
    for (const word of crossesWords ? [plain] : (plain.match(/▁*[^▁]+|▁+/g) ?? [])) {
      for (const id of encodeWord(word)) ids.push(id);
      if (ids.length > max) break;
    }
    return ids;
  };
}
