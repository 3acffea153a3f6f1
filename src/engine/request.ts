/** A request to the scheduler. */

import type { Owner } from '../cache/kv-cache.ts';
import type { Sequence } from '../cache/sequence.ts';
import type { Sampled, Sampler } from './sample.ts';

/** Checked between two passes; an AbortSignal is one. */
export interface Cancellation {
  readonly aborted: boolean;
  /** A scheduler that waits must be woken. AbortSignals have events for that. */
  onAbort?(listener: () => void): void;
}

/** A prompt to continue, and who is told about it. */
export interface Request {
  readonly prompt: readonly number[];
  /** Tenants get equal shares of the device. */
  readonly tenant: string;
  /** Requests with the same salt share prefixes. */
  readonly salt: string;
  /** Who continues the sequence afterwards, exactly where it ended; undefined: nobody. */
  readonly owner?: Owner;
  readonly sampler: Sampler;
  readonly maxTokens: number;
  /** In shadow mode, whether decoding reads the f16 pages too, as prompts do. */
  readonly readExact?: boolean;
  readonly cancellation?: Cancellation;
  /** Whether the reader has fallen behind: then it gets no further tokens for now. */
  isParked(): boolean;
  /** When it is first admitted: how many tokens of the prompt were known. */
  onStart(reusedTokens: number): void;
  /** After each chunk of the prompt: tokens in the cache. */
  onPrefill(tokens: number): void;
  /** Returns false to end. `dropped`: tokens that the sequence has dropped by sliding. */
  onToken(sampled: Sampled, dropped: number): boolean;
  /** After a pass with guessed tokens: how many there were, and how many of them were right. */
  onDrafts?(drafted: number, accepted: number): void;
  /** Before the sequence is released; no pass is running on it. Not called after an error. */
  onEnd?(sequence: Sequence): void | Promise<void>;
}
