/**
 * SentencePiece's byte-pair encoding: neighbours merge in the order of the score of what they become, the highest
 * first and the leftmost among equals, until no pair makes a token. What is no token then is written as bytes.
 */
import { FormatError } from '../../errors.ts';
import { hexToken } from './bytes.ts';
import { type Cost, mergePairs } from './merge.ts';
import { remembered } from './remember.ts';
import { TokenType, type Vocab } from './vocab.ts';

const utf8 = new TextEncoder();

/** Returns a function that encodes plain text. Control tokens take no part in merging, so no text can produce one. */
export function spmEncoder(vocab: Vocab): (text: string) => number[] {
  const words = new Map<string, number>();
  vocab.tokens.forEach((text, id) => {
    const type = vocab.types[id];
    if (type !== TokenType.control && type !== TokenType.unknown && type !== TokenType.byte) words.set(text, id);
  });
  const bytes = Array.from({ length: 256 }, (_, byte) => vocab.idOf.get(hexToken(byte)) ?? vocab.unk);
  if (bytes.includes(undefined)) {
    throw new FormatError(
      'The vocabulary has neither all byte tokens (<0x00> to <0xFF>) nor an unknown token; convert the model again.',
    );
  }

  const cost: Cost = (text, left, _, stop) => {
    const id = words.get(text.slice(left, stop));
    return id === undefined ? undefined : -vocab.scores[id]!;
  };
  const encodeRun = remembered(run => {
    const ids: number[] = [];
    for (const piece of mergePairs(run, cost)) {
      const id = words.get(piece);
      if (id !== undefined) ids.push(id);
      else for (const byte of utf8.encode(piece)) ids.push(bytes[byte]!);
    }
    return ids;
  });
  // Where no token has a space inside, no merge crosses the start of a word, and words can be encoded one by one.
  const crossing = [...words.keys()].some(text => /[^▁]▁/.test(text));

  return text => {
    const plain = text.replaceAll(' ', '▁');
    const ids: number[] = [];
    for (const run of crossing ? [plain] : (plain.match(/▁*[^▁]+|▁+/g) ?? [])) {
      for (const id of encodeRun(run)) ids.push(id);
    }
    return ids;
  };
}
