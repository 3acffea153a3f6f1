/** The output of generation: a stream of tokens or text, and a result at the end. */

import type { ToolCall } from '../model/template.ts';
import type { AsyncDisposableLike } from '../util/disposable.ts';
import type { QualityLoss } from './guard.ts';
import type { LiveDivergence } from './live-divergence.ts';
import type { Quality } from './quality.ts';
import type { Cancellation } from './request.ts';
import type { Sampled, TokenLogprobs } from './sample.ts';

/** One generated token. */
export interface Token extends Sampled {
  /** New text that is final; '' while a character or a possible stop string is incomplete. */
  text: string;
  /** A warning, such as dropped tokens when the context slides. */
  notice?: string;
}

/**
 * Why generation ended. `stop`: an end-of-sequence token or a stop string. `length`: `maxTokens`, a full context, or a loop.
 * `tool_calls`: as `stop`, and the answer calls tools. `cancelled`: the signal, or the reader left the stream.
 */
export type Finish = 'stop' | 'length' | 'tool_calls' | 'cancelled';

/** Token counts. */
export interface Usage {
  promptTokens: number;
  /** Prompt tokens that were already in the cache. */
  reusedTokens: number;
  /** Prompt tokens that were computed: all others, unless prefill was cancelled. */
  prefilledTokens: number;
  /** Generated tokens. */
  completionTokens: number;
  /** Tokens that were guessed (see `speculate`), and those of them that were right. */
  draftedTokens: number;
  acceptedTokens: number;
}

/** Times in milliseconds and rates in tokens per second; 0 if nothing was measured. */
export interface Timings {
  prefillMs: number;
  decodeMs: number;
  prefillRate: number;
  decodeRate: number;
}

/** The result of a generation, complete when its stream has ended. */
export interface Result {
  /** The generated text, without stop strings; of a chat, without reasoning and tool calls. */
  text: string;
  /** The model's reasoning before its answer, if there is any. */
  reasoning?: string;
  /** Tools that the answer calls. */
  toolCalls?: ToolCall[];
  /** All generated tokens, including the end-of-sequence token. */
  ids: number[];
  /** One entry per generated token, in the order of `ids`; only with the option `logprobs`. */
  logprobs?: TokenLogprobs[];
  finish: Finish;
  /** The stop string that ended the text. */
  stop?: string;
  /** Whether `stopLoops` ended it. */
  isLoop?: boolean;
  /** The seed in use: pass it again to get the same tokens. */
  seed: number;
  usage: Usage;
  timings: Timings;
  /** With a calibrated codec, how well it fits the text in the cache, if the stream was read to its end. */
  quality?: Quality;
  /** In shadow mode: the measured divergence of the newest tokens, if the stream was read to its end. */
  divergence?: LiveDivergence;
  /** If the codec does not suit the model: in the first result after that was noticed. */
  qualityLoss?: QualityLoss;
  /** Warnings, such as a full context. */
  notices: string[];
}

/**
 * Read it with `for await`, or call `result()`. Nothing is computed before the first read. To end it early, use `break`,
 * `return()` or `await using`: the running pass is cancelled and awaited.
 */
export interface Stream<T> extends AsyncGenerator<T, Result, void>, AsyncDisposableLike<AsyncGenerator> {
  /** The result so far: grows with every value read, including `logprobs`. */
  readonly partial: Readonly<Result>;
  /** Ends the stream early, as `break` does. */
  return(): Promise<IteratorResult<T, Result>>;
  /** Reads the rest of the stream and returns the result. */
  result(): Promise<Result>;
}

export function emptyResult(): Result {
  return {
    text: '',
    ids: [],
    finish: 'cancelled',
    seed: 0,
    usage: {
      ...{ promptTokens: 0, reusedTokens: 0, prefilledTokens: 0, completionTokens: 0 },
      ...{ draftedTokens: 0, acceptedTokens: 0 },
    },
    timings: { prefillMs: 0, decodeMs: 0, prefillRate: 0, decodeRate: 0 },
    notices: [],
  };
}

/** The generator behind a stream. It updates the result as it runs, so that the result is right if the reader leaves early. */
export type StreamBody<T> = (cancellation: Cancellation, result: Result) => AsyncGenerator<T, void, void>;

/** Creates a stream that ends between two passes when its reader leaves or the signal aborts. */
export function createStream<T>(body: StreamBody<T>, signal?: AbortSignal): Stream<T> {
  const result = emptyResult();
  let left = false;
  let error: unknown;
  let noteLeft = () => {};
  const leave = () => {
    left = true;
    noteLeft();
  };
  const cancellation: Cancellation = {
    get aborted() {
      return left || signal?.aborted === true;
    },
    onAbort(listener) {
      noteLeft = listener;
    },
  };
  const steps = body(cancellation, result);
  const stream: Stream<T> = {
    partial: result,
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
      // A pending read ends with the running pass, not with the whole prompt.
      leave();
      await steps.return();
      return { done: true, value: result };
    },
    async throw(cause) {
      leave();
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
