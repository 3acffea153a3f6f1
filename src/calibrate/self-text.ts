/**
 * Text that the model writes itself, where no other is at hand: rows of many documents, begun by openings of several
 * kinds and continued at several temperatures. A document that ends makes room for the next.
 */
import type { Engine } from '../engine/engine.ts';
import { createSampler } from '../engine/sample.ts';
import { step } from '../engine/step.ts';
import { encodeChat } from '../model/chat.ts';
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
];

const QUESTIONS = [
  'Tell me a story about the sea.',
  'How does a bicycle stay upright?',
  'Write a function that sorts a list of numbers, and explain it.',
  'What happened in Europe in the 19th century?',
  'Give me a recipe for bread.',
  'What is the difference between weather and climate?',
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
  const openings = openingsOf(engine);
  const writers = Array.from({ length: rows }, (_, i) => {
    const row = first + i;
    const sampling = { temperature: TEMPERATURES[row % TEMPERATURES.length], minP: MIN_P, seed: seed * 0x10001 + row };
    const ids: number[] = [];
    let documents = row;
    let opened = 0;
    /** What comes after the last token: an opening where a document has ended. */
    const next = () => {
      const last = ids.slice(-1);
      if (last.length > 0 && !tokenizer.endIds.has(last[0]) && ids.length < opened + LONGEST) return last;
      opened = ids.length;
      ids.push(...openings[documents++ % openings.length]);
      return [...last, ...ids.slice(opened, context)];
    };
    return { ids, next, sampler: createSampler(sampling), sequence: engine.openSequence(plan, context) };
  });
  try {
    for (let live = writers; live.length > 0; live = live.filter(({ ids }) => ids.length < context)) {
      const byChunk = new Map<Chunk, (typeof writers)[number]>(
        live.map(writer => [{ sequence: writer.sequence, tokens: writer.next(), logits: 'last' }, writer]),
      );
      const done = await step(engine, [...byChunk.keys()], {
        signal,
        onLogits(chunk, _row, logits) {
          const { ids, sampler } = byChunk.get(chunk)!;
          ids.push(sampler.sample(logits).id);
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

function openingsOf({ tokenizer, template }: Engine): number[][] {
  const plain = OPENINGS.map(text => tokenizer.encode(text, { bos: tokenizer.addBos }));
  const asked = QUESTIONS.map(content => encodeChat(tokenizer, template, [{ role: 'user', content }]));
  // Every third one is a question.
  return plain.flatMap((ids, i) => (i % 2 === 1 ? [ids, asked[(i - 1) / 2]] : [ids]));
}
