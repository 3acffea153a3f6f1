/** What a generation gives: pieces as they come, and a result in the end. */
import type { AsyncDisposableLike } from '../disposable.ts';
import type { Sampled } from './sample.ts';
import type { Cancellation } from './step.ts';

export interface Token extends Sampled {
  /** The text that is certain by now; '' where a character or a stop string may be unfinished. */
  text: string;
  /** Something the user should know: old tokens were dropped. */
  notice?: string;
}

export interface Result {
  text: string;
  /** All tokens that were generated, the end token included. */
  ids: number[];
  /** The model or a stop string ended it; maxTokens or the context was reached; the signal or the reader stopped it. */
  finish: 'stop' | 'length' | 'cancelled';
  /** The stop string that ended it. */
  stop?: string;
  /** Give it again to get the same tokens again. */
  seed: number;
  usage: {
    promptTokens: number;
    /** Of these, found in the cache. */
    reusedTokens: number;
    /** Of these, read: all that were not found, unless reading was cancelled. */
    prefilledTokens: number;
    completionTokens: number;
  };
  timings: {
    prefillMs: number;
    decodeMs: number;
    /** Tokens a second; 0 where nothing was measured. */
    prefillRate: number;
    decodeRate: number;
  };
  notices: string[];
}

/**
 * Read it with `for await`; `result()` reads what is left and gives the result. Nothing is computed before it is first
 * read. Leave it by `break`, `return()` or `await using`: the pass under way is cancelled and awaited.
 */
export interface Stream<T> extends AsyncGenerator<T, Result, void>, AsyncDisposableLike<AsyncGenerator> {
  /** Ends it early, as `break` does. */
  return(): Promise<IteratorResult<T, Result>>;
  result(): Promise<Result>;
}

export function emptyResult(): Result {
  return {
    text: '',
    ids: [],
    finish: 'cancelled',
    seed: 0,
    usage: { promptTokens: 0, reusedTokens: 0, prefilledTokens: 0, completionTokens: 0 },
    timings: { prefillMs: 0, decodeMs: 0, prefillRate: 0, decodeRate: 0 },
    notices: [],
  };
}

/** Makes the steps of a stream. They write the result as they run, so that it is right even if the reader leaves early. */
export type Begin<T> = (cancellation: Cancellation, result: Result) => AsyncGenerator<T, void, void>;

/** A stream that ends between two passes when its reader leaves or the signal comes. */
export function createStream<T>(begin: Begin<T>, signal?: AbortSignal): Stream<T> {
  const result = emptyResult();
  let left = false;
  let error: unknown;
  const cancellation = {
    get aborted() {
      return left || signal?.aborted === true;
    },
  };
  const steps = begin(cancellation, result);
  const stream: Stream<T> = {
    async next() {
      try {
        const { done, value } = await steps.next();
        return done ? { done, value: result } : { done: false, value };
      } catch (cause) {
        error = cause;
        throw cause;
      }
    },
    async return() {
      // A read that is still waiting for the prompt ends with the pass under way, not with the whole prompt.
      left = true;
      await steps.return();
      return { done: true, value: result };
    },
    async throw(cause) {
      left = true;
      await steps.throw(cause);
      return { done: true, value: result };
    },
    async result() {
      while (!(await stream.next()).done);
      if (error) throw error;
      return result;
    },
    [Symbol.asyncIterator]: () => stream,
    async [Symbol.asyncDispose]() {
      await stream.return();
    },
  };
  return stream;
}
