/** The engine's one move: chunks of any sequences go through the network, as many rows at once as the scratch holds. */

import { eventLoop } from '../event-loop.ts';
import { type Chunk, forward, type Hooks, isPrompt } from '../model/forward.ts';
import type { Engine } from './engine.ts';

/** What is asked between two passes; an AbortSignal is one. */
export interface Cancellation {
  readonly aborted: boolean;
}

export interface StepOptions extends Pick<Hooks, 'observe' | 'resume'> {
  signal?: Cancellation;
  /** Each wanted row of logits: its chunk, its row there, and the logits, which are the receiver's to keep. */
  onLogits?: (chunk: Chunk, row: number, logits: Float32Array) => void;
  /** For chunks with a choice, where the device can choose: the token in place of the last row of logits. */
  onToken?: (chunk: Chunk, id: number | undefined) => void;
  /** A name for that token, which a chunk of another step may have in its place before this step has ended. */
  onNamed?: (chunk: Chunk, name: number) => void;
  /** After each batch: rows done so far. */
  onProgress?: (rows: number) => void;
}

/**
 * Runs the chunks, each of its own sequence, and says whether all of it was done: false if the signal came first,
 * between two batches. Every sequence then holds the tokens that were run, and nothing else.
 */
export async function step(engine: Engine, chunks: readonly Chunk[], options: StepOptions = {}): Promise<boolean> {
  const { signal, onLogits, onToken, onNamed, onProgress, observe, resume } = options;
  let rows = 0;
  for (const batch of batches(chunks, () => engine.passRows.rows)) {
    await eventLoop();
    if (signal?.aborted) return false;
    const origin = new Map<Chunk, Piece>(batch.map(piece => [piece.part, piece]));
    const size = batch.reduce((sum, { part }) => sum + part.tokens.length, 0);
    const { delivered } = await engine.exclusive(async ({ device, config, weights, rope, scratch, passRows }) => {
      const pass = await forward(device, config, weights, rope, scratch, [...origin.keys()], {
        onLogits(part, row, logits) {
          const { chunk, start } = origin.get(part)!;
          onLogits?.(chunk, start + row, logits);
        },
        observe,
        resume,
        onToken: onToken && ((part, id) => onToken(origin.get(part)!.chunk, id)),
        onNamed: onNamed && ((part, name) => onNamed(origin.get(part)!.chunk, name)),
      });
      passRows.adapt(size, pass.longestWait);
      return pass;
    });
    await delivered;
    rows += size;
    onProgress?.(rows);
  }
  return true;
}

/** A part of a chunk that fits into a batch. */
interface Piece {
  chunk: Chunk;
  start: number;
  part: Chunk;
}

/** Cuts lazily: how much of a chunk fits is asked of its sequence when all before it has been run. */
function* batches(chunks: readonly Chunk[], rows: () => number): Generator<Piece[]> {
  let batch: Piece[] = [];
  let free = rows();
  for (const chunk of chunks) {
    const { sequence, tokens } = chunk;
    for (let start = 0; start < tokens.length; ) {
      const count = Math.min(free, tokens.length - start, Math.max(1, sequence.room));
      const end = start + count;
      const logits = chunk.logits === 'last' && end < tokens.length ? 'none' : chunk.logits;
      const part = {
        ...chunk,
        tokens: Array.prototype.slice.call(tokens, start, end),
        logits,
        prompt: isPrompt(chunk),
      };
      batch.push({ chunk, start, part });
      start = end;
      free -= count;
      // The rest of a sequence must wait for what came before it.
      if (free > 0 && start === tokens.length) continue;
      yield batch;
      batch = [];
      free = rows();
    }
  }
  if (batch.length > 0) yield batch;
}
