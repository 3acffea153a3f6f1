/**
 * Tokens in, tokens out: prefill what the cache lacks of a prompt, then sample and run one token at a time. Where the device
 * chooses tokens, the next pass is recorded while the one before it runs, and nobody waits between two: a token goes by a
 * name until its id is known. If nothing was to follow it after all, the cache holds one token that was written more.
 */
import type { Sequence } from '../cache/sequence.ts';
import { CapacityError, InputError } from '../errors.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { formatCount } from '../units.ts';
import type { Engine } from './engine.ts';
import { createSampler, type Sampled, type SampleOptions, type Sampler } from './sample.ts';
import type { Slot } from './slot.ts';
import { type Cancellation, step } from './step.ts';
import { createStopMatcher } from './stop.ts';
import type { Result, Token } from './stream.ts';

export interface GenerateOptions extends SampleOptions {
  /** As many as the context has room for, unless given. */
  maxTokens?: number;
  /** Ends the text before the first of these. */
  stop?: string | readonly string[];
  /** Stops between two tokens, or between two chunks of the prompt; the result then says `cancelled`. */
  signal?: AbortSignal;
  /** Go on past the tokens with which the model ends. */
  ignoreEnd?: boolean;
  onPrefill?: (progress: { done: number; total: number }) => void;
}

export interface Setting {
  engine: Engine;
  slot: Slot;
  context: number;
  overflow: 'error' | 'slide';
}

/** `cancellation` is asked between passes, in place of the options' own signal, which it may include. */
export async function* generate(
  { engine, slot, context, overflow }: Setting,
  prompt: readonly number[],
  options: GenerateOptions,
  result: Result,
  cancellation: Cancellation | undefined = options.signal,
): AsyncGenerator<Token, void, void> {
  const { onPrefill, maxTokens } = options;
  checkIds(prompt, engine.config.vocab);
  const room = roomBehind(prompt.length, context, overflow);
  const most = Math.min(maxTokens ?? room, room);
  const sampler = createSampler(options, prompt);
  const write = createWriter(engine.tokenizer, options);
  const watch = stopwatch(result);
  result.seed = sampler.seed;
  result.usage.promptTokens = prompt.length;

  let ahead: Pass | undefined;
  try {
    const reused = slot.reusePrefix(prompt);
    const { sequence } = slot;
    result.usage.reusedTokens = reused;
    const run = (tokens: readonly number[], prompt: boolean, onProgress?: (rows: number) => void) =>
      begin({ engine, sequence, tokens, prompt, sampler, signal: cancellation, onProgress });
    const progress = (rows: number) => {
      result.usage.prefilledTokens = rows;
      onPrefill?.({ done: reused + rows, total: prompt.length });
    };
    let { dropped } = sequence;
    let pass = run(prompt.slice(reused), true, progress);

    for (;;) {
      const name = await pass.named;
      ahead = name !== undefined && result.ids.length + 1 < most ? run([name], false) : undefined;
      const found = await pass.ended;
      if (result.ids.length === 0) watch.prefilled();
      if (!found) break;
      const sampled = found.sample();
      slot.push(sampled.id);
      result.usage.completionTokens = result.ids.push(sampled.id);
      const { text, finish, stop } = write(sampled.id, result.ids.length === most);
      const notice = found.dropped > dropped ? slideNotice(context, found.dropped) : undefined;
      dropped = found.dropped;
      result.text += text;
      if (notice) result.notices = [notice];
      if (finish) Object.assign(result, { finish, stop });
      watch.decoded();
      yield { ...sampled, text, ...(notice && { notice }) };
      if (finish) break;
      watch.resume();
      pass = ahead ?? run([sampled.id], false);
    }
    if (result.finish === 'length' && most === room) result.notices.push(fullNotice(context, most, maxTokens));
  } catch (error) {
    await settled(ahead);
    // What a step that failed left behind is not known.
    slot.reset();
    throw error;
  } finally {
    // The text ended, or its reader left: what comes next finds nothing on its way.
    await settled(ahead);
  }
}

/** A pass on its way. */
interface Pass {
  /** What the token that it chooses goes by, as soon as another pass can be given it; undefined if it has no name. */
  named: Promise<number | undefined>;
  /** What it gives in the end, unless the signal came first: the token, and how many the cache had dropped by then. */
  ended: Promise<{ sample(): Sampled; dropped: number } | undefined>;
}

const settled = (pass?: Pass) => pass?.ended.catch(() => {});

interface PassRequest {
  signal: Cancellation | undefined;
  engine: Engine;
  sequence: Sequence;
  tokens: readonly number[];
  prompt: boolean;
  sampler: Sampler;
  onProgress?: (rows: number) => void;
}

function begin({ engine, sequence, tokens, prompt, sampler, signal, onProgress }: PassRequest): Pass {
  const choice = engine.device?.choose && sampler.choice();
  let sample: (() => Sampled) | undefined;
  let dropped = 0;
  let tell: (name?: number) => void = () => {};
  const named = new Promise<number | undefined>(resolve => {
    tell = resolve;
  });
  const stepped = step(engine, [{ sequence, tokens, prompt, logits: 'last', choice }], {
    signal,
    onProgress,
    onLogits(_chunk, _row, row) {
      dropped = sequence.dropped;
      sample = () => sampler.sample(row);
    },
    onNamed(_chunk, name) {
      dropped = sequence.dropped;
      tell(name);
    },
    onToken(_chunk, id) {
      sample = () => sampler.take(id);
    },
  });
  const ended = stepped.finally(() => tell()).then(done => (done && sample ? { sample, dropped } : undefined));
  // Whoever waits for it is told; nobody does if the pass before it failed.
  ended.catch(() => {});
  return { named, ended };
}

interface Written {
  /** What may be shown. */
  text: string;
  /** Set where it ends here. */
  finish?: 'stop' | 'length';
  stop?: string;
}

/** From tokens to text, whole characters only, and nothing of a stop string. */
function createWriter(tokenizer: Tokenizer, { stop = [], ignoreEnd = false }: GenerateOptions) {
  const words = tokenizer.createTextStream();
  const stops = createStopMatcher([stop].flat());
  return (id: number, last: boolean): Written => {
    const ended = !ignoreEnd && tokenizer.endIds.has(id);
    const shown = stops.push(ended ? '' : words.push(id));
    if (shown.stop !== undefined) return { ...shown, finish: 'stop' };
    if (!ended && !last) return shown;
    // What was held back became no stop string after all.
    const rest = stops.push(words.end());
    const finish = ended || rest.stop !== undefined ? 'stop' : 'length';
    return { text: shown.text + rest.text + stops.end(), finish, stop: rest.stop };
  };
}

const slideNotice = (context: number, dropped: number): string =>
  `The context of ${formatCount(context)} tokens was full: the oldest ${formatCount(dropped)} were dropped, sinks kept.`;

const fullNotice = (context: number, written: number, maxTokens?: number): string =>
  `The context of ${formatCount(context)} tokens is full` +
  (maxTokens !== undefined && maxTokens > written
    ? `: the answer ended after ${formatCount(written)} tokens, and maxTokens allowed ${formatCount(maxTokens)}.`
    : '.');

/** How many tokens the context has room for behind a prompt; an error where it is none. */
function roomBehind(prompt: number, context: number, overflow: string): number {
  if (overflow === 'slide') return Number.POSITIVE_INFINITY;
  if (prompt >= context)
    throw new CapacityError(
      `A prompt of ${prompt} tokens leaves no room in a context of ${context}. Shorten the prompt, load the model with ` +
        "a larger context, or use overflow: 'slide' to forget the oldest.",
    );
  return context - prompt;
}

function checkIds(ids: readonly number[], vocab: number): void {
  if (ids.length === 0) throw new InputError('The prompt is empty. Give at least one token.');
  const bad = ids.find(id => !Number.isInteger(id) || id < 0 || id >= vocab);
  if (bad !== undefined)
    throw new InputError(`Token id ${bad} is outside the vocabulary; ids go from 0 to ${vocab - 1}.`);
}

/** Times the model's work; the time that a reader takes between tokens is not the model's. */
function stopwatch({ usage, timings }: Result) {
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
      // The first token comes with the prefill's logits.
      if (decoding) {
        timings.decodeMs += lap();
        timings.decodeRate = (1000 * (usage.completionTokens - 1)) / timings.decodeMs;
      }
      decoding = true;
    },
    resume: lap,
  };
}
