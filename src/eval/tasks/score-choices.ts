/**
 * Log probabilities of given endings. The context of an item is read once, and its sequence is forked for each ending; what
 * items have in common, such as examples before the question, is found in the cache.
 */
import type { KvCache } from '../../cache/kv-cache.ts';
import type { Sequence } from '../../cache/sequence.ts';
import type { Engine } from '../../engine/engine.ts';
import { logSoftmax } from '../../engine/log-probs.ts';
import { step } from '../../engine/step.ts';
import type { Chunk } from '../../model/batch.ts';
import { CapacityError } from '../../util/errors.ts';
import type { ItemResult } from './results-file.ts';
import type { Choice } from './task.ts';

/** Items whose endings are read in one pass: enough rows for a GPU. */
const ITEMS_AT_ONCE = 8;

export interface ScoreOptions {
  signal?: AbortSignal;
  /** `length`: tokens of the context and the longest ending. */
  onResult(choice: Choice, result: ItemResult, length: number): Promise<void>;
}

/** The tokens of an item. */
interface EncodedChoice {
  choice: Choice;
  /** Tokens that all endings share, with the context. */
  shared: number[];
  /** The rest of each ending. */
  endings: number[][];
}

export function encodeChoice({ tokenizer }: Pick<Engine, 'tokenizer'>, choice: Choice): EncodedChoice {
  const { context, endings } = choice;
  // Context and ending are encoded as one text: a token may not end where the ending begins.
  const texts = endings.map(ending => tokenizer.encode(context + ending, { bos: tokenizer.addBos }));
  const max = Math.min(...texts.map(ids => ids.length)) - 1;
  let length = 0;
  while (length < max && texts.every(ids => ids[length] === texts[0][length])) length++;
  return { choice, shared: texts[0].slice(0, length), endings: texts.map(ids => ids.slice(length)) };
}

export const choiceTokens = (encoded: EncodedChoice): number =>
  encoded.shared.length + Math.max(...encoded.endings.map(ids => ids.length));

/** If the signal aborts it, the items that were not read completely have no result. */
export async function scoreChoices(
  engine: Engine,
  cache: KvCache,
  items: readonly EncodedChoice[],
  { signal, onResult }: ScoreOptions,
): Promise<void> {
  for (let first = 0; first < items.length; first += ITEMS_AT_ONCE) {
    const group = items.slice(first, first + ITEMS_AT_ONCE);
    const logProbs = await endingLogProbs(engine, cache, group, signal);
    if (!logProbs) return;
    for (const [i, item] of group.entries()) {
      const { choice, shared, endings } = item;
      const tokens = endings.reduce((sum, ids) => sum + ids.length, shared.length);
      await onResult(choice, resultOf(choice, logProbs[i], tokens), choiceTokens(item));
    }
  }
}

/** Tokens to add to a sequence, and who gets the log probabilities after each row. */
interface Reading {
  chunk: Chunk;
  onLogProbs(row: number, logProbs: Float32Array): void;
}

/** Log probabilities of the tokens of each ending of each item; undefined if the signal aborted it. */
export async function endingLogProbs(
  engine: Engine,
  cache: KvCache,
  group: readonly EncodedChoice[],
  signal?: AbortSignal,
): Promise<number[][][] | undefined> {
  const opened: Sequence[] = [];
  const logProbs = group.map(({ endings }) => endings.map((): number[] => []));
  try {
    const contexts: Reading[] = [];
    for (const [i, { shared, endings }] of group.entries()) {
      const sequence = await engine.exclusive(async pause => cache.open(pause, shared));
      opened.push(sequence);
      contexts.push({
        chunk: { sequence, tokens: shared.slice(sequence.length), logits: 'last' },
        onLogProbs(_row, after) {
          for (const [e, ids] of endings.entries()) logProbs[i][e].push(after[ids[0]]);
        },
      });
    }
    if (!(await readAll(engine, cache, contexts, signal))) return undefined;

    const endings = group.flatMap((item, i) =>
      item.endings.flatMap((ids, e): Reading[] => {
        if (ids.length === 1) return [];
        const sequence = contexts[i].chunk.sequence.fork();
        opened.push(sequence);
        return [
          {
            chunk: { sequence, tokens: ids.slice(0, -1), logits: 'all' },
            onLogProbs: (row, after) => logProbs[i][e].push(after[ids[row + 1]]),
          },
        ];
      }),
    );
    return (await readAll(engine, cache, endings, signal)) ? logProbs : undefined;
  } finally {
    for (const sequence of opened) sequence.dispose();
  }
}

async function readAll(
  engine: Engine,
  cache: KvCache,
  readings: readonly Reading[],
  signal?: AbortSignal,
): Promise<boolean> {
  const bytes = readings.reduce((sum, { chunk }) => sum + chunk.sequence.bytesFor(chunk.tokens.length), 0);
  if (!cache.makeRoom(bytes))
    throw new CapacityError(
      option => `The cache has no room for ${readings.length} texts at once. Raise ${option('memoryLimit')}.`,
    );
  const listeners = new Map(readings.map(({ chunk, onLogProbs }) => [chunk, onLogProbs]));
  return step(engine, [...listeners.keys()], {
    signal,
    onLogits: (chunk, row, logits) => listeners.get(chunk)!(row, logSoftmax(logits)),
  });
}

const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
const indexOfMax = (values: readonly number[]) => values.indexOf(Math.max(...values));

function resultOf({ id, group, correct }: Choice, logProbs: readonly number[][], tokens: number): ItemResult {
  const preferred = indexOfMax(logProbs.map(values => sum(values) / values.length));
  return {
    id,
    ...(group !== undefined && { group }),
    said: [String(preferred)],
    scores: [preferred === correct ? 1 : 0],
    unnormalized: indexOfMax(logProbs.map(sum)) === correct ? 1 : 0,
    tokens,
  };
}
