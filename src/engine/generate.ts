/**
 * Token generation: prefill the part of the prompt that is not in the cache, then sample and decode one token at a time.
 *
 * If the device samples, the next pass is recorded while the current one runs: its input is a handle of the sampled token,
 * whose id the host has not read yet. If generation ends with that token, the cache holds one token too many.
 */
import type { Sequence } from '../cache/sequence.ts';
import { CapacityError, InputError } from '../errors.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import type { Plan } from '../plan/plan.ts';
import { formatCount } from '../units.ts';
import type { Engine } from './engine.ts';
import { measureQuality, unfamiliarNotice } from './quality.ts';
import { createSampler, type Sampled, type SampleOptions, type Sampler } from './sample.ts';
import type { Slot } from './slot.ts';
import { type Cancellation, step } from './step.ts';
import { createStopMatcher } from './stop.ts';
import type { Result, Token } from './stream.ts';

/** How tokens are generated and when generation ends. */
export interface GenerateOptions extends SampleOptions {
  /** Max tokens to generate. Default: the rest of the context. */
  maxTokens?: number;
  /** Stop strings: the text ends before the first of them. Default: none. */
  stop?: string | readonly string[];
  /** Cancels between two tokens or two chunks of the prompt. The result's `finish` is then `cancelled`. */
  signal?: AbortSignal;
  /** Continue after end-of-sequence tokens. Default: false. */
  ignoreEos?: boolean;
  /** Called after each chunk of the prompt, with tokens done and in total. */
  onPrefill?: (progress: { done: number; total: number }) => void;
}

/** Where tokens are generated: the model, and the cache of one sequence. */
export interface GenerationContext {
  engine: Engine;
  slot: Slot;
  plan: Plan;
  context: number;
  overflow: 'error' | 'slide';
}

/** Writes `result` while it runs. `cancellation` is checked between passes, instead of `options.signal`. */
export async function* generate(
  { engine, slot, plan, context, overflow }: GenerationContext,
  prompt: readonly number[],
  options: GenerateOptions,
  result: Result,
  cancellation: Cancellation | undefined = options.signal,
): AsyncGenerator<Token, void, void> {
  const { onPrefill, maxTokens } = options;
  checkTokenIds(prompt, engine.config.vocab);
  const remaining = remainingContext(prompt.length, context, overflow);
  const maxNew = Math.min(maxTokens ?? remaining, remaining);
  const sampler = createSampler(options, prompt);
  const write = createTextWriter(engine.tokenizer, options);
  const timer = createTimer(result);
  result.seed = sampler.seed;
  if (options.logprobs !== undefined) result.logprobs = [];
  result.usage.promptTokens = prompt.length;

  let nextPass: Pass | undefined;
  try {
    const reused = slot.reusePrefix(prompt);
    const { sequence } = slot;
    result.usage.reusedTokens = reused;
    const run = (tokens: readonly number[], prefill: boolean, onProgress?: (rows: number) => void) =>
      startPass({ engine, sequence, tokens, prefill, sampler, signal: cancellation, onProgress });
    const progress = (rows: number) => {
      result.usage.prefilledTokens = rows;
      onPrefill?.({ done: reused + rows, total: prompt.length });
    };
    let { droppedTokens: dropped } = sequence;
    let pass = run(prompt.slice(reused), true, progress);

    for (;;) {
      const handle = await pass.handle;
      nextPass = handle !== undefined && result.ids.length + 1 < maxNew ? run([handle], false) : undefined;
      const outcome = await pass.outcome;
      if (result.ids.length === 0) timer.prefilled();
      if (!outcome) break;
      const sampled = outcome.sample();
      slot.push(sampled.id);
      result.usage.completionTokens = result.ids.push(sampled.id);
      const { id, logprob, top } = sampled;
      if (logprob !== undefined && top) result.logprobs?.push({ id, logprob, top });
      const { text, finish, stop } = write(sampled.id, result.ids.length === maxNew);
      const notice = outcome.dropped > dropped ? slideNotice(context, outcome.dropped) : undefined;
      dropped = outcome.dropped;
      result.text += text;
      if (notice) result.notices = [notice];
      if (finish) Object.assign(result, { finish, stop });
      timer.decoded();
      yield { ...sampled, text, ...(notice && { notice }) };
      if (finish) break;
      timer.resume();
      pass = nextPass ?? run([sampled.id], false);
    }
    if (result.finish === 'length' && maxNew === remaining) result.notices.push(fullNotice(context, maxNew, maxTokens));
    await waitForPass(nextPass);
    result.quality = await measureQuality(engine, sequence, plan);
    const notice = result.quality && unfamiliarNotice(result.quality, plan);
    if (notice && slot.warnOnce()) result.notices.push(notice);
  } catch (error) {
    await waitForPass(nextPass);
    // A failed step leaves the cache in an unknown state.
    slot.reset();
    throw error;
  } finally {
    // No pass may be running when the stream ends.
    await waitForPass(nextPass);
  }
}

/** A running forward pass. */
interface Pass {
  /** The handle of the token that the device samples; undefined if the host samples. */
  handle: Promise<number | undefined>;
  /** The sampled token and the number of tokens dropped from the cache; undefined if the pass was cancelled. */
  outcome: Promise<{ sample(): Sampled; dropped: number } | undefined>;
}

const waitForPass = (pass?: Pass) => pass?.outcome.catch(() => {});

interface PassRequest {
  signal: Cancellation | undefined;
  engine: Engine;
  sequence: Sequence;
  tokens: readonly number[];
  prefill: boolean;
  sampler: Sampler;
  onProgress?: (rows: number) => void;
}

function startPass({ engine, sequence, tokens, prefill, sampler, signal, onProgress }: PassRequest): Pass {
  const sampling = engine.device?.sampleTokens && sampler.deviceSampling();
  let sample: (() => Sampled) | undefined;
  let dropped = 0;
  let resolveHandle: (handle?: number) => void = () => {};
  const handle = new Promise<number | undefined>(resolve => {
    resolveHandle = resolve;
  });
  const stepped = step(engine, [{ sequence, tokens, prefill, logits: 'last', sampling }], {
    signal,
    onProgress,
    onLogits(_chunk, _row, row) {
      dropped = sequence.droppedTokens;
      sample = () => sampler.sample(row);
    },
    onHandle(_chunk, handle) {
      dropped = sequence.droppedTokens;
      resolveHandle(handle);
    },
    onToken(_chunk, id) {
      sample = () => sampler.accept(id);
    },
  });
  const outcome = stepped
    .finally(() => resolveHandle())
    .then(done => (done && sample ? { sample, dropped } : undefined));
  // Nobody awaits this pass if the previous one failed.
  outcome.catch(() => {});
  return { handle, outcome };
}

interface WriteResult {
  /** Text that is final. */
  text: string;
  /** Set on the last token. */
  finish?: 'stop' | 'length';
  stop?: string;
}

/** Decodes tokens to text: whole characters only, and no part of a stop string. */
function createTextWriter(tokenizer: Tokenizer, { stop = [], ignoreEos = false }: GenerateOptions) {
  const decoder = tokenizer.createTextStream();
  const stops = createStopMatcher([stop].flat());
  return (id: number, last: boolean): WriteResult => {
    const ended = !ignoreEos && tokenizer.eosIds.has(id);
    const next = stops.push(ended ? '' : decoder.push(id));
    if (next.stop !== undefined) return { ...next, finish: 'stop' };
    if (!ended && !last) return next;
    // Release text that was held back as the possible start of a stop string.
    const rest = stops.push(decoder.end());
    const finish = ended || rest.stop !== undefined ? 'stop' : 'length';
    return { text: next.text + rest.text + stops.end(), finish, stop: rest.stop };
  };
}

const slideNotice = (context: number, dropped: number): string =>
  `The context of ${formatCount(context)} tokens was full: the oldest ${formatCount(dropped)} were dropped, except the sinks.`;

const fullNotice = (context: number, written: number, maxTokens?: number): string =>
  `The context of ${formatCount(context)} tokens is full` +
  (maxTokens !== undefined && maxTokens > written
    ? `: the answer ended after ${formatCount(written)} tokens, and maxTokens allowed ${formatCount(maxTokens)}.`
    : '.');

/** Tokens that fit in the context after the prompt; throws if there are none. */
function remainingContext(prompt: number, context: number, overflow: string): number {
  if (overflow === 'slide') return Number.POSITIVE_INFINITY;
  if (prompt >= context)
    throw new CapacityError(
      `A prompt of ${prompt} tokens leaves no room in a context of ${context}. Shorten the prompt, load the model with ` +
        "a larger context, or use overflow: 'slide' to drop the oldest tokens.",
    );
  return context - prompt;
}

function checkTokenIds(ids: readonly number[], vocab: number): void {
  if (ids.length === 0) throw new InputError('The prompt is empty. It must have at least one token.');
  const bad = ids.find(id => !Number.isInteger(id) || id < 0 || id >= vocab);
  if (bad !== undefined) throw new InputError(`Token id ${bad} is outside the vocabulary: ids are 0 to ${vocab - 1}.`);
}

/** Measures the model's time, without the time that the reader takes between tokens. */
function createTimer({ usage, timings }: Result) {
  let since = performance.now();
  let decoding = false;
  const lap = () => {
    const now = performance.now();
    const time = now - since;
    since = now;
    return time;
  };
  return {
    prefilled() {
      timings.prefillMs = lap();
      timings.prefillRate = (1000 * usage.prefilledTokens) / timings.prefillMs;
    },
    decoded() {
      // The first token comes from the prefill's logits.
      if (decoding) {
        timings.decodeMs += lap();
        timings.decodeRate = (1000 * (usage.completionTokens - 1)) / timings.decodeMs;
      }
      decoding = true;
    },
    resume: lap,
  };
}
