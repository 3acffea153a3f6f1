/**
 * Text that the model writes itself, where no other is at hand: rows of many documents, begun in turn by openings of
 * several kinds and by tokens drawn at random, and continued at several temperatures. Each is written without sight of
 * those before it, and ends where it begins to go in circles: small models repeat themselves and whatever they see, and
 * what is learned from such text fits no other. Half of them are then spelt as old corpora are, with spaces around
 * punctuation: the same words, other tokens.
 *
 * Special tokens stay out of it. Heads that have nothing to look for look at such a token as they look at the first one of
 * a row; what is learned from rows with many of them is about these tokens.
 */
import { createRandom, type Random } from '../codec/parts/random.ts';
import type { Engine } from '../engine/engine.ts';
import { createSampler } from '../engine/sample.ts';
import { step } from '../engine/step.ts';
import type { Chunk } from '../model/forward.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { planOf } from '../plan/plan.ts';
import { OPENINGS } from './openings.ts';

const TEMPERATURES = [0.8, 0.9, 1];
const MIN_P = 0.05;
/** A document ends here if it did not before. */
const LONGEST = 512;
/** And here in a row by which layers are weighed, of which little is read: one document alone would weigh them wrong. */
const BRIEF = 64;
/** So many tokens in the order that they had before in a document, and it is taken to go in circles. */
const CIRCLE = 6;
/** Tokens drawn at random that begin every other document. */
const DRAWN = 4;

/** Hyphens within a word, commas and points within a number; other punctuation, with the spaces around it. */
const PUNCTUATION = /(?<=\w)-(?=\w)|(?<=\d)[.,](?=\d)| *([.,;:!?()"\n]|'s) */g;
/** Openings further for every row. */
const STRIDE = 5;

export interface SelfTextOptions {
  rows: number;
  /** Tokens a row. */
  context: number;
  seed: number;
  /** The number of the first of these rows, which decides their seeds. */
  first: number;
  /** The number of a row of brief documents. */
  brief?: number;
  signal?: AbortSignal;
  /** Tokens so far. */
  onProgress?: (tokens: number) => void;
}

/** All rows at once, a token of each a step; undefined if the signal came first. */
export async function writeRows(engine: Engine, options: SelfTextOptions): Promise<number[][] | undefined> {
  const { rows, context, seed, first, brief, signal, onProgress } = options;
  const plan = planOf('tq4', { ...engine.config, turn: engine.rope.frequencies });
  const open = (opening: () => number[], longest: number) => {
    const document = opening().slice(0, longest - 1);
    return { document, next: [...document], sequence: engine.openSequence(plan, longest) };
  };
  const writers = Array.from({ length: rows }, (_, i) => {
    const row = first + i;
    const temperature = TEMPERATURES[row % TEMPERATURES.length];
    const sampler = createSampler({ temperature, minP: MIN_P, seed: seed * 0x10001 + row });
    const longest = Math.min(row === brief ? BRIEF : LONGEST, context);
    const opening = createOpenings(engine.tokenizer, row, createRandom(seed * 0x10001 + row + 0x4000));
    /** Documents that are done, how many they are, the one at hand, and what of it the model has not read. */
    return { ids: [] as number[], done: 0, ...open(opening, longest), longest, sampler, opening };
  });
  type Writer = (typeof writers)[number];
  const lengthOf = ({ ids, document }: Writer) => Math.min(context, ids.length + document.length);
  const finish = (writer: Writer) => {
    writer.ids.push(...spell(engine.tokenizer, writer.document, writer.done++));
    writer.sequence.dispose();
    Object.assign(writer, open(writer.opening, writer.longest));
  };
  try {
    for (let live = writers; live.length > 0; live = live.filter(writer => lengthOf(writer) < context)) {
      const byChunk = new Map<Chunk, Writer>(
        live.map(writer => [{ sequence: writer.sequence, tokens: writer.next, logits: 'last' }, writer]),
      );
      const done = await step(engine, [...byChunk.keys()], {
        signal,
        onLogits(chunk, _row, logits) {
          const writer = byChunk.get(chunk)!;
          const { document, longest, sampler } = writer;
          const { id } = sampler.sample(logits);
          if (engine.tokenizer.endIds.has(id) || document.length + 1 >= longest || circles(document)) finish(writer);
          else {
            document.push(id);
            writer.next = [id];
          }
        },
      });
      if (!done) return undefined;
      onProgress?.(writers.reduce((sum, writer) => sum + lengthOf(writer), 0));
    }
  } finally {
    for (const { sequence } of writers) sequence.dispose();
  }
  return writers.map(({ ids, document }) => [...ids, ...document].slice(0, context));
}

/** Gives the tokens that begin one document after the other. */
function createOpenings(tokenizer: Tokenizer, row: number, random: Random): () => number[] {
  let documents = 0;
  return () => {
    const n = documents++;
    const between = n > 0 ? '\n\n' : '';
    const bos = n === 0 && tokenizer.addBos;
    if (n % 2 === 0) return tokenizer.encode(between + OPENINGS[(STRIDE * row + n / 2) % OPENINGS.length], { bos });
    const ids = tokenizer.encode(between);
    const last = ids.length + DRAWN;
    while (ids.length < last) {
      const id = random.uint32() % tokenizer.vocabSize;
      // Special tokens have no bytes of their own.
      if (tokenizer.tokenBytes(id).length > 0) ids.push(id);
    }
    return ids;
  };
}

/** The n-th document of a row as it is, or with spaces around its punctuation. */
function spell(tokenizer: Tokenizer, document: readonly number[], n: number): readonly number[] {
  if (n % 4 < 2) return document;
  const text = tokenizer.decode(document);
  const apart = text.replace(PUNCTUATION, (all, mark?: string) => (mark ? ` ${mark} ` : ` @${all}@ `));
  return tokenizer.encode(apart.replace(/ +/g, ' '));
}

/** Whether the last tokens were there before, in the same order. */
function circles(ids: readonly number[]): boolean {
  const last = ids.length - CIRCLE;
  for (let at = 0; at < last; at++) {
    let same = 0;
    while (same < CIRCLE && ids[at + same] === ids[last + same]) same++;
    if (same === CIRCLE) return true;
  }
  return false;
}
