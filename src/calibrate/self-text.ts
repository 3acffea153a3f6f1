/**
 * Generates calibration text with the model itself, if no text is given. A row holds many documents, which start with varied
 * openings or with random tokens, and are sampled at several temperatures. Each document is generated with an empty cache
 * and ends when it starts to repeat itself: small models repeat whatever they see, and parameters learned from such text do
 * not generalize. Half of the documents get spaces around punctuation, as in older corpora: the same words, other tokens.
 *
 * Special tokens are left out. Attention heads use them as sinks, like the first token of a row, so that rows with many of
 * them would teach codecs about these tokens only.
 */
import { createRandom, type Random } from '../codec/parts/random.ts';
import type { Engine } from '../engine/engine.ts';
import { createSampler } from '../engine/sample.ts';
import { step } from '../engine/step.ts';
import type { Chunk } from '../model/forward.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { createPlan } from '../plan/plan.ts';
import { OPENINGS } from './openings.ts';

const TEMPERATURES = [0.8, 0.9, 1];
const MIN_P = 0.05;
/** Max tokens per document. */
const MAX_DOCUMENT_TOKENS = 512;
/** Max tokens per document in the row that measures sensitivities: a single long document would bias them. */
const SHORT_DOCUMENT_TOKENS = 64;
/** A document repeats itself if its last tokens, this many, occurred before in the same order. */
const REPEAT_TOKENS = 6;
/** Number of random tokens that start every other document. */
const RANDOM_TOKENS = 4;

/** Hyphens within words, commas and points within numbers; and other punctuation, with the spaces around it. */
const PUNCTUATION = /(?<=\w)-(?=\w)|(?<=\d)[.,](?=\d)| *([.,;:!?()"\n]|'s) */g;
/** Each row starts this many openings after the previous row. */
const OPENING_STRIDE = 5;

export interface SelfTextOptions {
  rows: number;
  /** Tokens per row. */
  context: number;
  seed: number;
  /** Index of the first of these rows; the seeds depend on it. */
  firstRow: number;
  /** Index of the row with short documents. */
  shortRow?: number;
  signal?: AbortSignal;
  /** Called after each step with the number of tokens generated. */
  onProgress?: (tokens: number) => void;
}

/** Generates all rows as one batch, one token of each per step. Undefined if the signal aborted it. */
export async function generateRows(engine: Engine, options: SelfTextOptions): Promise<number[][] | undefined> {
  const { rows, context, seed, firstRow, shortRow, signal, onProgress } = options;
  const plan = createPlan('tq4', { ...engine.config, ropeFrequencies: engine.rope.frequencies });
  const open = (opening: () => number[], maxTokens: number) => {
    const document = opening().slice(0, maxTokens - 1);
    return { document, next: [...document], sequence: engine.openSequence(plan, maxTokens) };
  };
  const writers = Array.from({ length: rows }, (_, i) => {
    const row = firstRow + i;
    const temperature = TEMPERATURES[row % TEMPERATURES.length];
    const sampler = createSampler({ temperature, minP: MIN_P, seed: seed * 0x10001 + row });
    const longest = Math.min(row === shortRow ? SHORT_DOCUMENT_TOKENS : MAX_DOCUMENT_TOKENS, context);
    const opening = createOpenings(engine.tokenizer, row, createRandom(seed * 0x10001 + row + 0x4000));
    /** Token ids and count of finished documents, the current document, and its tokens that have not been run. */
    return { ids: [] as number[], done: 0, ...open(opening, longest), longest, sampler, opening };
  });
  type Writer = (typeof writers)[number];
  const lengthOf = ({ ids, document }: Writer) => Math.min(context, ids.length + document.length);
  const finishDocument = (writer: Writer) => {
    writer.ids.push(...addSpaces(engine.tokenizer, writer.document, writer.done++));
    writer.sequence.dispose();
    Object.assign(writer, open(writer.opening, writer.longest));
  };
  try {
    for (let active = writers; active.length > 0; active = active.filter(writer => lengthOf(writer) < context)) {
      const byChunk = new Map<Chunk, Writer>(
        active.map(writer => [{ sequence: writer.sequence, tokens: writer.next, logits: 'last' }, writer]),
      );
      const done = await step(engine, [...byChunk.keys()], {
        signal,
        onLogits(chunk, _row, logits) {
          const writer = byChunk.get(chunk)!;
          const { document, longest, sampler } = writer;
          const { id } = sampler.sample(logits);
          if (engine.tokenizer.eosIds.has(id) || document.length + 1 >= longest || isRepeating(document))
            finishDocument(writer);
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

/** Returns a function that gives the first tokens of each document in turn. */
function createOpenings(tokenizer: Tokenizer, row: number, random: Random): () => number[] {
  let documents = 0;
  return () => {
    const index = documents++;
    const between = index > 0 ? '\n\n' : '';
    const bos = index === 0 && tokenizer.addBos;
    if (index % 2 === 0)
      return tokenizer.encode(between + OPENINGS[(OPENING_STRIDE * row + index / 2) % OPENINGS.length], { bos });
    const ids = tokenizer.encode(between);
    const last = ids.length + RANDOM_TOKENS;
    while (ids.length < last) {
      const id = random.uint32() % tokenizer.vocabSize;
      // Special tokens have no bytes.
      if (tokenizer.tokenBytes(id).length > 0) ids.push(id);
    }
    return ids;
  };
}

/** The n-th document of a row: unchanged, or with spaces around its punctuation. */
function addSpaces(tokenizer: Tokenizer, document: readonly number[], n: number): readonly number[] {
  if (n % 4 < 2) return document;
  const text = tokenizer.decode(document);
  const spaced = text.replace(PUNCTUATION, (all, mark?: string) => (mark ? ` ${mark} ` : ` @${all}@ `));
  return tokenizer.encode(spaced.replace(/ +/g, ' '));
}

/** Whether the last tokens occurred before, in the same order. */
function isRepeating(ids: readonly number[]): boolean {
  const last = ids.length - REPEAT_TOKENS;
  for (let start = 0; start < last; start++) {
    let same = 0;
    while (same < REPEAT_TOKENS && ids[start + same] === ids[last + same]) same++;
    if (same === REPEAT_TOKENS) return true;
  }
  return false;
}
