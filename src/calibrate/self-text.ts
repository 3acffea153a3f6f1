/**
 * Text that the model writes itself, where no other is at hand: rows of many documents, begun by openings of several
 * kinds and continued at several temperatures. A document that ends makes room for the next.
 *
 * Special tokens stay out of it. Heads that have nothing to look for look at such a token as they look at the first one of
 * a row; what is learned from rows with many of them is about these tokens.
 */
import type { Engine } from '../engine/engine.ts';
import { createSampler } from '../engine/sample.ts';
import { step } from '../engine/step.ts';
import type { Chunk } from '../model/forward.ts';
import { planOf } from '../plan/plan.ts';

/** Cooler text goes in circles, hotter text falls apart: what is learned from either fits no other. */
const TEMPERATURES = [0.8, 0.9, 1];
const MIN_P = 0.05;
/** A document ends here if it did not before: small models begin to repeat themselves. */
const LONGEST = 512;

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
  'Question: What happened in Europe in the 19th century?\nAnswer:',
  'How to bake bread\n\n',
  'A function that sorts a list of numbers:\n\n',
  'The difference between weather and climate is',
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
    const sampling = { temperature: TEMPERATURES[row % TEMPERATURES.length], minP: MIN_P, seed: seed * 0x10001 + row };
    const opening = (n: number) => OPENINGS[(row + n) % OPENINGS.length];
    const ids = tokenizer.encode(opening(0), { bos: tokenizer.addBos });
    const sequence = engine.openSequence(plan, context);
    return {
      ids,
      next: ids.slice(0, context),
      opened: 0,
      documents: 1,
      opening,
      sampler: createSampler(sampling),
      sequence,
    };
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
          const { ids, sampler } = writer;
          const { id } = sampler.sample(logits);
          writer.next = [id];
          if (tokenizer.endIds.has(id) || ids.length >= writer.opened + LONGEST) {
            writer.next = tokenizer.encode(`\n\n${writer.opening(writer.documents++)}`).slice(0, context - ids.length);
            writer.opened = ids.length;
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
