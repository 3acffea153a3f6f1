/** A pass of the scheduler: chunks of the requests' tokens go in, sampled tokens go back to the requests. */
import { type Chunk, forward } from '../model/forward.ts';
import type { Plan } from '../plan/plan.ts';
import type { Engine } from './engine.ts';
import type { Guard } from './guard.ts';
import type { Sampled, Sampler } from './sample.ts';
import type { Piece, SampledRows } from './schedule.ts';
import { fail, type Task } from './task.ts';

/** A pass that is recorded, and whose results are not delivered yet. */
export interface RecordedPass {
  tasks: readonly Task[];
  decodeRows: number;
  promptRows: number;
  sampledRows: SampledRows;
  /** Waits for its results, and gives them to the requests. */
  deliver(): Promise<void>;
}

export async function recordPass(
  engine: Engine,
  plan: Plan,
  guard: Guard | undefined,
  pieces: readonly Piece<Task>[],
): Promise<RecordedPass> {
  const tasks = pieces.map(({ request }) => request);
  const chunks = pieces.map(({ request: task, rows }) => createChunk(engine, plan, task, rows));
  const taskOf = new Map<Chunk, Task>(chunks.map((chunk, i) => [chunk, tasks[i]]));
  const results: (() => void)[] = [];
  const addResult = (chunk: Chunk, sample: (sampler: Sampler) => Sampled) => {
    const task = taskOf.get(chunk)!;
    const dropped = chunk.sequence.droppedTokens;
    results.push(() => deliverToken(task, sample, dropped));
  };
  const { delivered, longestBlockMs } = await forward(engine, chunks, {
    onLogits: (chunk, _row, logits) => addResult(chunk, sampler => sampler.sample(logits)),
    onToken: (chunk, id) => addResult(chunk, sampler => sampler.accept(id)),
    onHandle(chunk, handle) {
      taskOf.get(chunk)!.handle = handle;
    },
    codeCheck: guard?.check,
  });
  // It may fail before its results are waited for.
  delivered.catch(() => {});
  const rows = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const prompts = chunks.filter(({ prefill }) => prefill).map(chunk => ({ chunk, held: chunk.sequence.length }));
  const promptRows = prompts.reduce((sum, { chunk }) => sum + chunk.tokens.length, 0);
  engine.batchSize.adapt(rows, longestBlockMs);
  const sampled = chunks.filter(({ logits }) => logits !== 'none');
  const onDevice = sampled.filter(({ sampling }) => sampling).length;
  return {
    ...{ tasks, promptRows, decodeRows: rows - promptRows },
    sampledRows: { onDevice, onHost: sampled.length - onDevice },
    async deliver() {
      await delivered;
      guard?.throwIfLost();
      for (const { chunk, held } of prompts) notePrompt(taskOf.get(chunk)!, held);
      for (const deliverResult of results) deliverResult();
    },
  };
}

/** The task's next tokens. */
function createChunk({ device }: Engine, plan: Plan, task: Task, rows: number): Chunk {
  const sequence = task.sequence!;
  const prefill = sequence.length < task.promptEnd;
  const end = sequence.length + rows;
  const tokens = prefill ? task.tokens.slice(sequence.length, end) : [task.handle ?? task.tokens[sequence.length]];
  task.handle = undefined;
  const isLast = !prefill || end === task.promptEnd;
  if (isLast) task.sampled++;
  const sampling = isLast && device.sampleTokens ? task.request.sampler.deviceSampling() : undefined;
  const exact = prefill || task.request.readExact || plan.mode === 'two-tier';
  return { sequence, tokens, prefill, exact, logits: isLast ? 'last' : 'none', sampling };
}

function deliverToken(task: Task, sample: (sampler: Sampler) => Sampled, dropped: number): void {
  if (task.ended) return;
  const { sequence, request, tokens } = task;
  try {
    const sampled = sample(request.sampler);
    tokens.push(sampled.id);
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
