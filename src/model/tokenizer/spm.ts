/**
 * SentencePiece's byte-pair encoding: neighbours merge in the order of the score of what they become, the highest
 * first and the leftmost among equals, until no pair makes a token. What is no token then is written as bytes.
 */
import { FormatError } from '../../errors.ts';
import { hexToken } from './bytes.ts';
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

  const encodeRun = remembered(run => {
    const ids: number[] = [];
    for (const piece of mergeByScore(run, words, vocab.scores)) {
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

function mergeByScore(text: string, words: ReadonlyMap<string, number>, scores: ArrayLike<number>): string[] {
  // Symbols are runs of the text, named by where they start: end[i] is where it stops, prev[i] where the one before
  // starts. A start that was merged away has end 0.
  const end = new Int32Array(text.length);
  const prev = new Int32Array(text.length);
  let last = -1;
  for (let i = 0; i < text.length; i = end[i]!) {
    end[i] = i + (text.codePointAt(i)! > 0xffff ? 2 : 1);
    prev[i] = last;
    last = i;
  }

  const queue = new PairQueue();
  const offer = (left: number) => {
    const right = end[left]!;
    if (right >= text.length) return;
    const id = words.get(text.slice(left, end[right]));
    if (id !== undefined) queue.push(scores[id]!, left, end[right]!);
  };
  for (let i = 0; i < text.length; i = end[i]!) offer(i);

  for (let pair = queue.pop(); pair; pair = queue.pop()) {
    const { left, stop } = pair;
    const right = end[left]!;
    // Stale, unless both halves are still the neighbours that were offered.
    if (right === 0 || right >= text.length || end[right] !== stop) continue;
    end[left] = stop;
    end[right] = 0;
    if (stop < text.length) prev[stop] = left;
    if (prev[left]! >= 0) offer(prev[left]!);
    offer(left);
  }

  const pieces: string[] = [];
  for (let i = 0; i < text.length; i = end[i]!) pieces.push(text.slice(i, end[i]));
  return pieces;
}

interface Pair {
  score: number;
  left: number;
  stop: number;
}

/** A binary heap: highest score first, then leftmost. */
class PairQueue {
  readonly #heap: Pair[] = [];

  push(score: number, left: number, stop: number): void {
    const heap = this.#heap;
    const pair = { score, left, stop };
    let i = heap.length;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!before(pair, heap[parent]!)) break;
      heap[i] = heap[parent]!;
      i = parent;
    }
    heap[i] = pair;
  }

  pop(): Pair | undefined {
    const heap = this.#heap;
    const top = heap[0];
    const pair = heap.pop();
    if (!pair || heap.length === 0) return top;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && before(heap[child + 1]!, heap[child]!)) child++;
      if (!before(heap[child]!, pair)) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = pair;
    return top;
  }
}

function before(a: Pair, b: Pair): boolean {
  return a.score > b.score || (a.score === b.score && a.left < b.left);
}
