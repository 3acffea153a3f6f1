/** A request in the scheduler, and its state. */
import type { KnownPath } from '../cache/kv-cache.ts';
import type { Prefetch } from '../cache/prefetch.ts';
import type { Sequence } from '../cache/sequence.ts';
import type { Drafter } from './drafter.ts';
import type { Request } from './request.ts';
import type { Candidate, Drafting } from './schedule.ts';

export interface Task extends Candidate, Drafting {
  request: Request;
  lastTurn: number;
  /** The prompt and the tokens so far. */
  tokens: number[];
  /** Where its tokens were found in the cache last. */
  readonly path: KnownPath;
  /** While it waits: tokens that it shares with the prompts of others. They are compared once. */
  sharedWith: WeakMap<Task, number>;
  /** While it is running. */
  sequence?: Sequence;
  /** While it waits: pages that come from the tiers. */
  prefetch?: Prefetch;
  /** Whether these were looked for again, since there was no room or they were evicted. */
  isPrefetchedAgain: boolean;
  /** Tokens before this are prompt rows. */
  promptEnd: number;
  /** While tokens are decoded, if some are guessed. */
  drafter?: Drafter;
  /** The next token, sampled on the device and not read yet. */
  handle?: number;
  /** Tokens that are sampled, or are being sampled. */
  sampled: number;
  /** Passes that it takes part in. */
  passes: number;
  started: boolean;
  ended: boolean;
  error?: unknown;
  /** Tells who has submitted it that it has ended. */
  settle(): void;
}

export function createTask(request: Request, arrival: number, settle: () => void): Task {
  return {
    request,
    arrival,
    tenant: request.tenant,
    tokens: [...request.prompt],
    path: [],
    sharedWith: new WeakMap(),
    isPrefetchedAgain: false,
    promptEnd: request.prompt.length,
    sampled: 0,
    passes: 0,
    lastTurn: -1,
    started: false,
    ended: false,
    get promptRows() {
      const held = this.sequence?.length ?? 0;
      if (held >= this.promptEnd) return 0;
      return Math.min(this.promptEnd - held, this.sequence?.maxChunk ?? this.promptEnd);
    },
    get ready() {
      if (!this.sequence || this.sampled >= request.maxTokens || request.isParked()) return false;
      return this.handle !== undefined || this.sequence.length < this.tokens.length;
    },
    draftProbabilities() {
      const max = Math.min(this.sequence?.maxDrafts ?? 0, request.maxTokens - this.sampled - 1);
      return this.drafter?.probabilities().slice(0, Math.max(0, max)) ?? [];
    },
    settle,
  };
}

/** Ends tasks with an error; the first one counts. */
export function fail(tasks: Iterable<Task>, error: unknown): void {
  for (const task of tasks) {
    task.error ??= error ?? new Error('unknown');
    task.ended = true;
  }
}
