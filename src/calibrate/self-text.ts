/**
 * Text that the model writes itself, where no other is at hand: rows of many documents, begun in turn by openings of
 * several kinds and by tokens drawn at random, and continued at several temperatures. Each is written without sight of
 * those before it, and ends where it begins to go in circles: small models repeat themselves and whatever they see, and
 * what is learned from such text fits no other.
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

const TEMPERATURES = [0.8, 0.9, 1];
const MIN_P = 0.05;
/** A document ends here if it did not before. */
const LONGEST = 512;
/** So many tokens in the order that they had before in a document, and it is taken to go in circles. */
const CIRCLE = 6;
/** Tokens drawn at random that begin every other document. */
const DRAWN = 4;

/** Kinds of text, ways of writing, and layouts: heads look at line ends, brackets and commas as each kind has them. */
const OPENINGS = [
  'The history of',
  'Once upon a time',
  '# Introduction\n\n',
  'def main(',
  'In recent years, researchers have',
  'Q: ',
  'The city lies',
  'Dear',
  'import ',
  'According to',
  '1. ',
  'She looked at',
  'Question: How does a bicycle stay upright?\nAnswer:',
  ' = Early life = \n \n He was born in 1912 , the son of a',
  'How to bake bread\n\n',
  'A function that sorts a list of numbers:\n\n',
  'The difference between weather and climate is',
  '{"name": "',
  '<html>\n<head>\n  <title>',
  'User: Hi, can you help me?\nAssistant:',
  '| Year | Team | Games |\n| --- | --- | --- |\n| 19',
  'export function ',
  'WASHINGTON (AP) -',
  '- ',
  '/**\n * ',
  'SELECT ',
  "the band 's second album , which was released on",
  'Theorem 1. Let $',
  '"I don\'t know," he said. "',
  '#include <stdio.h>\n\nint main(',
  'Dr. ',
  'class ',
  'Abstract: ',
  '$ ',
  'Die Stadt',
  'La ville',
  'In 1998, the company',
  'for (let i = 0; i < ',
  'Ingredients:\n- ',
  'CHAPTER I\n\n',
];

export interface SelfTextOptions {
  rows: number;
  /** Tokens a row. */
  context: number;
  seed: number;
  /** The number of the first of these rows, which decides their seeds. */
  first: number;
  signal?: AbortSignal;
  /** Tokens so far. */
  onProgress?: (tokens: number) => void;
}

/** All rows at once, a token of each a step; undefined if the signal came first. */
export async function writeRows(engine: Engine, options: SelfTextOptions): Promise<number[][] | undefined> {
  const { rows, context, seed, first, signal, onProgress } = options;
  const { tokenizer } = engine;
  const plan = planOf('tq4', { ...engine.config, turn: engine.rope.frequencies });
  const writers = Array.from({ length: rows }, (_, i) => {
    const row = first + i;
    const sampler = createSampler({
      temperature: TEMPERATURES[row % TEMPERATURES.length],
      minP: MIN_P,
      seed: seed * 0x10001 + row,
    });
    const openings = createOpenings(tokenizer, row, createRandom(seed * 0x10001 + row + 0x4000));
    const ids = openings();
    const sequence = engine.openSequence(plan, LONGEST);
    return { ids, next: ids.slice(0, context), opened: 0, openings, sampler, sequence };
  });
  try {
    for (let live = writers; live.length > 0; live = live.filter(({ ids }) => ids.length < context)) {
      const byChunk = new Map<Chunk, (typeof writers)[number]>(
        live.map(writer => [{ sequence: writer.sequence, tokens: writer.next, logits: 'last' }, writer]),
      );
      const done = await step(engine, [...byChunk.keys()], {
        signal,
        onLogits(chunk, _row, logits) {
          const writer = byChunk.get(chunk)!;
          const { ids, sampler, openings } = writer;
          const { id } = sampler.sample(logits);
          writer.next = [id];
          if (tokenizer.endIds.has(id) || ids.length + 1 >= writer.opened + LONGEST || circles(ids, writer.opened)) {
            writer.opened = ids.length;
            writer.next = openings().slice(0, context - ids.length);
            writer.sequence.dispose();
            writer.sequence = engine.openSequence(plan, LONGEST);
          }
          ids.push(...writer.next);
        },
      });
      if (!done) return undefined;
      onProgress?.(writers.reduce((sum, { ids }) => sum + Math.min(ids.length, context), 0));
    }
  } finally {
    for (const { sequence } of writers) sequence.dispose();
  }
  return writers.map(({ ids }) => ids.slice(0, context));
}

/** Gives the tokens that begin one document after the other. */
function createOpenings(tokenizer: Tokenizer, row: number, random: Random): () => number[] {
  let documents = 0;
  return () => {
    const n = documents++;
    const between = n > 0 ? '\n\n' : '';
    const bos = n === 0 && tokenizer.addBos;
    if (n % 2 === 0) return tokenizer.encode(between + OPENINGS[(row + n / 2) % OPENINGS.length], { bos });
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

/** Whether the last tokens were there before, in the same order, in the document that begins at `opened`. */
function circles(ids: readonly number[], opened: number): boolean {
  const last = ids.length - CIRCLE;
  for (let at = opened; at < last; at++) {
    let same = 0;
    while (same < CIRCLE && ids[at + same] === ids[last + same]) same++;
    if (same === CIRCLE) return true;
  }
  return false;
}
