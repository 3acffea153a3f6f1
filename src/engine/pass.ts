/** A pass of the scheduler: chunks of the requests' tokens go in, sampled tokens go back to the requests. */

import type { Chunk } from '../model/batch.ts';
import { forward } from '../model/forward.ts';
import type { Plan } from '../plan/plan.ts';
import { CapacityError } from '../util/errors.ts';
import type { Engine } from './engine.ts';
import type { Guard } from './guard.ts';
import type { Sampled, Sampler } from './sample.ts';
import type { Piece, SampledRows } from './schedule.ts';
import { fail, type Task } from './task.ts';

/** A pass that is recorded, and whose results are not delivered yet. */
export interface RecordedPass {
  tasks: readonly Task[];
  decodeRows: number;
  draftRows: number;
  promptRows: number;
  sampledRows: SampledRows;
  /** Waits for its results, and gives them to the requests. Returns how many drafts were right. */
  deliver(): Promise<number>;
}

/** A request's part of a pass. */
interface Part {
  task: Task;
  chunk: Chunk;
  /** The task's handle before. */
  handle?: number;
  /** Each samples the token after a row. */
  samples: ((sampler: Sampler) => Sampled)[];
}

/** Undefined if the device has no memory for it: then all of its requests are as before. */
export async function recordPass(
  engine: Engine,
  plan: Plan,
  guard: Guard | undefined,
  pieces: readonly Piece<Task>[],
): Promise<RecordedPass | undefined> {
  const parts = new Map<Chunk, Part>();
  for (const { request: task, rows } of pieces) {
    const { handle } = task;
    const chunk = createChunk(engine, plan, task, rows);
    parts.set(chunk, { task, chunk, handle, samples: [] });
  }
  const chunks = [...parts.keys()];
  let isReady = false;
  const recorded = await forward(engine, chunks, {
    onReady() {
      isReady = true;
    },
    onLogits: (chunk, _row, logits) => parts.get(chunk)!.samples.push(sampler => sampler.sample(logits)),
    onToken: (chunk, id) => parts.get(chunk)!.samples.push(sampler => sampler.accept(id)),
    onHandle(chunk, handle) {
      parts.get(chunk)!.task.handle = handle;
    },
    codeCheck: guard?.check,
  }).catch(error => {
    if (isReady || !(error instanceof CapacityError)) throw error;
    for (const part of parts.values()) undoChunk(part);
  });
  if (!recorded) return undefined;
  const { delivered, longestBlockMs } = recorded;
  // It may fail before its results are waited for.
  delivered.catch(() => {});
  const rows = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const promptRows = chunks.reduce((sum, { prefill, tokens }) => sum + (prefill ? tokens.length : 0), 0);
  const draftRows = chunks.reduce((sum, { drafts = 0 }) => sum + drafts, 0);
  engine.batchSize.adapt(rows, longestBlockMs);
  const sampled = chunks.filter(({ logits }) => logits !== 'none');
  const onDevice = sampled.filter(({ sampling }) => sampling).length;
  // The next pass may change them before this one is delivered.
  const after = [...parts.values()].map(part => {
    const { length, droppedTokens } = part.chunk.sequence;
    return { part, length, droppedTokens };
  });
  return {
    tasks: pieces.map(({ request }) => request),
    ...{ promptRows, draftRows, decodeRows: rows - promptRows - draftRows },
    sampledRows: { onDevice, onHost: sampled.length - onDevice },
    async deliver() {
      await delivered;
      guard?.throwIfLost();
      for (const { part, length } of after) if (part.chunk.prefill) notePrompt(part.task, length);
      return after.reduce((sum, { part, droppedTokens }) => sum + deliverTokens(part, droppedTokens), 0);
    },
  };
}

/** The task's next tokens. */
function createChunk({ device }: Engine, plan: Plan, task: Task, rows: number): Chunk {
  const sequence = task.sequence!;
  const prefill = sequence.length < task.promptEnd;
  const end = sequence.length + rows;
  const drafted = (!prefill && task.drafter?.draft(rows - 1)) || [];
  const tokens = prefill
    ? task.tokens.slice(sequence.length, end)
    : [task.handle ?? task.tokens[sequence.length], ...drafted];
  task.handle = undefined;
  const isLast = !prefill || end === task.promptEnd;
  const drafts = drafted.length;
  if (isLast) task.sampled += 1 + drafts;
  const isSampled = isLast && device.sampleTokens;
  let sampling: Chunk['sampling'];
  const exact = prefill || task.request.readExact || plan.mode === 'two-tier';
  const logits = drafts > 0 ? 'all' : isLast ? 'last' : 'none';
  return {
    ...{ sequence, tokens, prefill, drafts, exact, logits },
    /** It draws a random number, and a chunk that finds no memory must draw none. */
    get sampling() {
      sampling ??= isSampled ? task.request.sampler.deviceSampling() : undefined;
      return sampling;
    },
  };
}

/** Leaves the task as it was before `createChunk`. */
function undoChunk({ task, chunk: { sequence, logits, drafts = 0 }, handle }: Part): void {
  task.handle = handle;
  if (logits !== 'none') task.sampled -= 1 + drafts;
  // Drops what was planned.
  sequence.crop(sequence.length);
}

/**
 * Samples after row after row, as long as the next row has the sampled token, and removes the rows that do not count.
 * Returns how many drafts were right.
 */
function deliverTokens({ task, chunk: { sequence, tokens, drafts = 0 }, samples }: Part, dropped: number): number {
  let count = 0;
  for (const sample of samples) {
    if (task.ended) break;
    deliverToken(task, sample, dropped);
    count++;
    if (task.tokens.at(-1) !== tokens[count]) break;
  }
  if (drafts === 0) return 0;
  const wrong = tokens.length - Math.max(1, count);
  sequence.crop(sequence.length - wrong);
  task.sampled -= wrong;
  task.request.onDrafts?.(drafts, drafts - wrong);
  return drafts - wrong;
}

function deliverToken(task: Task, sample: Part['samples'][number], dropped: number): void {
  const { sequence, request, tokens } = task;
  try {
    const sampled = sample(request.sampler);
    tokens.push(sampled.id);
    task.drafter?.note();
    // The pass ahead has added its handle; if this request was left out of it, the next one takes the id.
    if (sequence && sequence.length >= tokens.length) sequence.setToken(tokens.length - 1, sampled.id);
    else task.handle = undefined;
    if (!request.onToken(sampled, dropped)) task.ended = true;
  } catch (error) {
    fail([task], error);
  }
}

/** `held`: tokens in the cache after the pass. */
function notePrompt(task: Task, held: number): void {
  if (task.ended || !task.sequence) return;
  try {
    task.request.onPrefill(held);
  } catch (error) {
    fail([task], error);
  }
}
