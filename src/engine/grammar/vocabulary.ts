/** A model's tokens as a trie, walked once for each state of a grammar that is met: which tokens may come next. */

import { CHANNEL_MARKERS } from '../../model/channels.ts';
import { THINK_TAGS } from '../../model/thinking.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';
import { UnsupportedError } from '../../util/errors.ts';

/** Control tokens that an answer format uses as markers: a grammar may ask for them. */
export const MARKERS = [
  ...THINK_TAGS.flatMap(({ open, close }) => [open, close]),
  ...['<tool_call>', '</tool_call>', '<|python_tag|>', '<seed:tool_call>', '</seed:tool_call>'],
  ...['<arg_key>', '</arg_key>', '<arg_value>', '</arg_value>', '[TOOL_CALLS]', '[CALL_ID]', '[ARGS]'],
];

/** The first symbol after the bytes. */
const FIRST_MARKER = 256;

export interface Vocabulary {
  /** Words of a bitmask. */
  readonly words: number;
  /** Symbols: bytes, then markers. */
  readonly symbols: number;
  /** Symbols of the markers that are control tokens. */
  readonly markers: ReadonlyMap<string, number>;
  /** Bytes of the longest token. */
  readonly longest: number;
  /** The tokens that end a text. */
  readonly endIds: readonly number[];
  /** The symbols of a token. */
  symbolsOf(id: number): ArrayLike<number>;
  /** Sets the bit of each token whose symbols can be read, one after the other, from `start`. */
  walk<State>(start: State, next: (state: State, symbol: number) => State | undefined, mask: Uint32Array): void;
}

export function createVocabulary(tokenizer: Tokenizer): Vocabulary {
  const { vocabSize, eosIds, eos, eot } = tokenizer;
  // In channels, the end of a turn's message does not end the text.
  const endIds = [...new Set([eot, eos].filter(id => id !== undefined && eosIds.has(id)))] as number[];
  if (endIds.length === 0)
    throw new UnsupportedError('The model has no end-of-sequence token, so its output cannot follow a schema.');
  const markers = new Map<string, number>();
  const symbolById = new Map<number, number>();
  const keys: { key: string; id: number }[] = [];
  let longest = 1;
  for (let id = 0; id < vocabSize; id++) {
    if (eosIds.has(id)) continue;
    const bytes = tokenizer.tokenBytes(id);
    const name = bytes.length === 0 ? tokenizer.tokenText(id) : '';
    if (MARKERS.includes(name) || CHANNEL_MARKERS.includes(name)) {
      const symbol = FIRST_MARKER + markers.size;
      markers.set(name, symbol);
      symbolById.set(id, symbol);
      keys.push({ key: String.fromCharCode(symbol), id });
    } else if (bytes.length > 0) {
      longest = Math.max(longest, bytes.length);
      keys.push({ key: String.fromCharCode(...bytes), id });
    }
  }
  const trie = createTrie(keys);

  return {
    words: Math.ceil(vocabSize / 32),
    symbols: FIRST_MARKER + markers.size,
    markers,
    longest,
    endIds,
    symbolsOf(id) {
      const symbol = symbolById.get(id);
      return symbol === undefined ? tokenizer.tokenBytes(id) : [symbol];
    },
    walk(start, next, mask) {
      const { symbols, depths, ends, ids } = trie;
      const states = [start];
      for (let at = 0; at < symbols.length; ) {
        const depth = depths[at];
        const state = next(states[depth], symbols[at]);
        if (state === undefined) {
          at = ends[at];
          continue;
        }
        states[depth + 1] = state;
        const id = ids[at];
        if (id >= 0) mask[id >>> 5] |= 1 << (id & 31);
        at++;
      }
    },
  };
}

/** Nodes in depth-first order, each with the place after its subtree. Tokens with the same text get a node each. */
function createTrie(keys: { key: string; id: number }[]) {
  keys.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : a.id - b.id));
  const symbols: number[] = [];
  const depths: number[] = [];
  const ids: number[] = [];
  let before = '';
  for (const { key, id } of keys) {
    let shared = 0;
    while (shared < key.length - 1 && key.charCodeAt(shared) === before.charCodeAt(shared)) shared++;
    for (let depth = shared; depth < key.length; depth++) {
      symbols.push(key.charCodeAt(depth));
      depths.push(depth);
      ids.push(depth === key.length - 1 ? id : -1);
    }
    before = key;
  }
  const ends = new Int32Array(symbols.length);
  const open: number[] = [];
  for (let at = 0; at <= symbols.length; at++) {
    const depth = depths[at] ?? 0;
    while (open.length > depth) ends[open.pop()!] = at;
    open.push(at);
  }
  return { symbols: Uint16Array.from(symbols), depths: Uint16Array.from(depths), ids: Int32Array.from(ids), ends };
}
