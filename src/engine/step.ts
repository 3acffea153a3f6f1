/** Runs chunks of any sequences through the model, in batches of as many rows as the scratch holds. */

import { type Chunk, isPrefill } from '../model/batch.ts';
import { forward, type Hooks } from '../model/forward.ts';
import { yieldToEventLoop } from '../platform/event-loop.ts';
import type { Engine } from './engine.ts';
import type { Cancellation } from './request.ts';

export interface StepOptions extends Pick<Hooks, 'observe' | 'resume'> {
  signal?: Cancellation;
  /** Called for each requested row of logits: its chunk, its row in the chunk, and the logits, which the callback may keep. */
  onLogits?: (chunk: Chunk, row: number, logits: Float32Array) => void;
  /** After each batch: rows done so far. */
  onProgress?: (rows: number) => void;
}

/**
 * Runs the chunks, one per sequence. Returns false if the signal aborted it between two batches; each sequence then holds
 * exactly the tokens that were run.
 */
export async function step(engine: Engine, chunks: readonly Chunk[], options: StepOptions = {}): Promise<boolean> {
  const { signal, onLogits, onProgress, observe, resume } = options;
  let rows = 0;
  for (const batch of batches(chunks, () => engine.batchSize.rows)) {
    await yieldToEventLoop();
    if (signal?.aborted) return false;
    const origin = new Map<Chunk, Piece>(batch.map(piece => [piece.part, piece]));
    const size = batch.reduce((sum, { part }) => sum + part.tokens.length, 0);
    const { delivered } = await engine.exclusive(async () => {
      const pass = await forward(engine, [...origin.keys()], {
        onLogits(part, row, logits) {
          const { chunk, start } = origin.get(part)!;
          onLogits?.(chunk, start + row, logits);
        },
        observe,
        resume,
      });
      engine.batchSize.adapt(size, pass.longestBlockMs);
      return pass;
    });
    await delivered;
    rows += size;
    onProgress?.(rows);
  }
  return true;
}

/** The part of a chunk that fits into a batch. */
interface Piece {
  chunk: Chunk;
  start: number;
  part: Chunk;
}

/** Splits lazily: `maxChunk` of a sequence depends on the batches that ran before. */
function* batches(chunks: readonly Chunk[], rows: () => number): Generator<Piece[]> {
  let batch: Piece[] = [];
  let free = rows();
  for (const chunk of chunks) {
    const { sequence, tokens } = chunk;
    for (let start = 0; start < tokens.length; ) {
      const count = Math.min(free, tokens.length - start, Math.max(1, sequence.maxChunk));
      const end = start + count;
      const logits = chunk.logits === 'last' && end < tokens.length ? 'none' : chunk.logits;
      const part = {
        ...chunk,
        tokens: Array.prototype.slice.call(tokens, start, end),
        logits,
        prefill: isPrefill(chunk),
      };
      batch.push({ chunk, start, part });
      start = end;
      free -= count;
      // The rest of a sequence needs the next batch, after this part has run.
      if (free > 0 && start === tokens.length) continue;
      yield batch;
      batch = [];
      free = rows();
    }
  }
  if (batch.length > 0) yield batch;
}
