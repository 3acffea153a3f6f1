/**
 * One generation: a request to the scheduler, and the tokens and text that its reader gets. The scheduler prefills the part
 * of the prompt that is not in the cache, then decodes one token per pass.
 */
import type { KvCache, Owner } from '../cache/kv-cache.ts';
import { saltOf, tenantOf } from '../cache/salt.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { maxTokensIn, type Plan } from '../plan/plan.ts';
import { ContextError, InputError } from '../util/errors.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import type { Engine } from './engine.ts';
import type { Constraint } from './grammar/constraint.ts';
import type { JsonSchema } from './grammar/schema.ts';
import { describeLoss, type Guard } from './guard.ts';
import { measureLiveDivergence } from './live-divergence.ts';
import { createLoopDetector } from './loop.ts';
import { createOutputQueue } from './output-queue.ts';
import { measureQuality, unfamiliarNotice } from './quality.ts';
import type { Cancellation } from './request.ts';
import { createSampler, type Sampled, type SampleOptions } from './sample.ts';
import type { Scheduler } from './scheduler.ts';
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
  /**
   * End an answer that repeats itself: the same 20 tokens three times, or a longer run. Its `finish` is then `length`, and
   * a notice says so. Default: false.
   */
  stopLoops?: boolean;
  /**
   * The output is JSON that satisfies this JSON Schema; `true`: any JSON object. A keyword that is not enforced is an
   * InputError.
   */
  schema?: JsonSchema;
  /** Called after each chunk of the prompt, with tokens done and in total. */
  onPrefill?: (progress: { done: number; total: number }) => void;
  /** Requests of one tenant share the prefixes that they have in common, and tenants take turns. Default: one tenant. */
  tenant?: string;
  /** Prefixes are shared only by requests of the tenant with the same salt. Default: none. */
  cacheSalt?: string;
  /** In shadow mode: answers read the f16 pages, as prompts do, instead of the codes. Default: false. */
  readExact?: boolean;
}

/** Where tokens are generated: the model, and its cache. */
export interface GenerationContext {
  engine: Engine;
  cache: KvCache;
  scheduler: Scheduler;
  guard?: Guard;
  plan: Plan;
  context: number;
  overflow: 'error' | 'slide';
}

/** A reader that warns once. */
export interface GenerationOwner extends Owner {
  warned?: boolean;
}

/** What the output looks like. */
export interface OutputFormat {
  constraint?: Constraint;
  /** Control tokens that the text includes: markers of the answer's format. */
  markers?: ReadonlyMap<number, string>;
}

/** Writes `result` while it runs. `cancellation` is checked between passes, instead of `options.signal`. */
export async function* generate(
  generation: GenerationContext,
  prompt: readonly number[],
  options: GenerateOptions,
  result: Result,
  cancellation: Cancellation | undefined = options.signal,
  owner?: GenerationOwner,
  { constraint, markers }: OutputFormat = {},
): AsyncGenerator<Token, void, void> {
  const { engine, scheduler, guard, plan, context } = generation;
  const { onPrefill, maxTokens, signal, tenant = '', cacheSalt, readExact } = options;
  if (readExact && plan.mode !== 'shadow')
    throw new InputError(
      option => `${option('readExact')} needs a model in shadow mode. Load it with ${option('kvMode', 'shadow')}.`,
      { option: 'readExact' },
    );
  checkTokenIds(prompt, engine.config.vocab);
  const remaining = remainingTokens(prompt.length, generation);
  const maxNew = Math.min(maxTokens ?? remaining, remaining);
  const sampler = createSampler(options, prompt, constraint);
  const write = createTextWriter(engine.tokenizer, options, markers);
  const endsLoop = options.stopLoops ? createLoopDetector() : () => false;
  const timer = createTimer(result);
  const notices = [...result.notices];
  const outputs = createOutputQueue<Output>(() => {
    timer.resume();
    scheduler.wake();
  });
  result.seed = sampler.seed;
  if (options.logprobs !== undefined) result.logprobs = [];
  result.usage.promptTokens = prompt.length;
  let isLeaving = false;
  let isComplete = false;
  let count = 0;
  let dropped = 0;

  const onToken = (sampled: Sampled, droppedNow: number): boolean => {
    const isLoop = endsLoop(sampled.id);
    const { text, finish, stop } = write(sampled.id, ++count === maxNew || isLoop);
    const notice = droppedNow > dropped ? slideNotice(context, droppedNow) : undefined;
    dropped = droppedNow;
    timer.decoded(count);
    outputs.push({ token: { ...sampled, text, ...(notice && { notice }) }, finish, stop, isLoop });
    isComplete = finish !== undefined;
    return !isComplete;
  };

  /** The result has what was read: a reader that leaves early has not seen the rest. */
  const noteRead = ({ token: { id, logprob, top, text, notice }, finish, stop, isLoop }: Output) => {
    result.usage.completionTokens = result.ids.push(id);
    if (logprob !== undefined && top) result.logprobs?.push({ id, logprob, top });
    result.text += text;
    // The newest counts all that were dropped.
    if (notice) result.notices = [...notices, notice];
    if (finish) Object.assign(result, { finish, stop, ...(isLoop && finish === 'length' && { isLoop }) });
  };

  const ended = scheduler.submit({
    ...{ prompt, tenant, salt: saltOf(tenant, cacheSalt), owner, sampler, onToken, readExact },
    maxTokens: maxNew,
    cancellation: {
      get aborted() {
        return isLeaving || cancellation?.aborted === true;
      },
    },
    isParked: () => outputs.isFull,
    onStart(reused) {
      result.usage.reusedTokens = reused;
      dropped = 0;
      timer.resume();
    },
    onPrefill(held) {
      if (held > prompt.length || count > 0) return;
      result.usage.prefilledTokens = held - result.usage.reusedTokens;
      timer.prefilled();
      onPrefill?.({ done: held, total: prompt.length });
    },
    onDrafts(drafted, accepted) {
      result.usage.draftedTokens += drafted;
      result.usage.acceptedTokens += accepted;
    },
    async onEnd(sequence) {
      if (!isComplete) return;
      result.quality = await measureQuality(engine, sequence, plan);
      if (plan.mode === 'shadow') result.divergence = await measureLiveDivergence(engine, sequence);
    },
  });
  const settled = ended.then(
    () => outputs.end(),
    error => outputs.end(error),
  );
  const wake = () => scheduler.wake();
  signal?.addEventListener('abort', wake);
  cancellation?.onAbort?.(wake);
  try {
    for await (const output of outputs) {
      noteRead(output);
      yield output.token;
    }
    if (result.isLoop) result.notices.push(loopNotice(count));
    else if (result.finish === 'length' && maxNew === remaining)
      result.notices.push(fullNotice(generation, maxNew, maxTokens));
    const notice = result.quality && unfamiliarNotice(result.quality, plan);
    if (notice && !owner?.warned) result.notices.push(notice);
    if (notice && owner) owner.warned = true;
    const loss = guard?.takeLoss();
    if (loss) {
      result.qualityLoss = loss;
      result.notices.push(describeLoss(loss));
    }
  } finally {
    // No pass may be running when the stream ends.
    isLeaving = true;
    wake();
    signal?.removeEventListener('abort', wake);
    await settled;
  }
}

/** Computes the cache of these tokens, for their owner. */
export async function prefill(
  { scheduler }: GenerationContext,
  ids: readonly number[],
  owner: Owner,
  salt: string,
): Promise<void> {
  await scheduler.submit({
    ...{ prompt: ids, tenant: tenantOf(salt), salt, owner, maxTokens: 1, sampler: createSampler({ temperature: 0 }) },
    isParked: () => false,
    onStart() {},
    onPrefill() {},
    onToken: () => false,
  });
}

interface WriteResult {
  /** Text that is final. */
  text: string;
  /** Set on the last token. */
  finish?: 'stop' | 'length';
  stop?: string;
}

/** A token on its way to the reader. */
interface Output extends Omit<WriteResult, 'text'> {
  token: Token;
  isLoop: boolean;
}

/** Decodes tokens to text: whole characters only, and no part of a stop string. */
function createTextWriter(
  tokenizer: Tokenizer,
  { stop = [], ignoreEos = false }: GenerateOptions,
  markers?: ReadonlyMap<number, string>,
) {
  const decoder = tokenizer.createTextStream();
  const stops = createStopMatcher([stop].flat());
  return (id: number, last: boolean): WriteResult => {
    const ended = !ignoreEos && tokenizer.eosIds.has(id);
    const next = stops.push(ended ? '' : (markers?.get(id) ?? decoder.push(id)));
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

const loopNotice = (written: number): string =>
  `The answer was ended after ${formatCount(written)} tokens: it repeated itself.`;

const fullNotice = (generation: GenerationContext, written: number, maxTokens?: number): string =>
  `${describeLimit(generation)} is full` +
  (maxTokens !== undefined && maxTokens > written
    ? `: the answer ended after ${formatCount(written)} tokens, and the limit was ${formatCount(maxTokens)}.`
    : '.');

function describeLimit(generation: GenerationContext): string {
  const { cache, context } = generation;
  const limit = tokenLimit(generation);
  return limit < context
    ? `The KV cache of ${formatBytes(cache.stats.capacity)}, which holds ${formatCount(limit)} tokens,`
    : `The context of ${formatCount(context)} tokens`;
}

/** Counting this many takes no time. */
const MIN_COUNTED_TOKENS = 10_000;

/**
 * Tokens up to which a prompt is read at all. Twice what fits: those that are a little too long are counted, for the
 * message, and the rest of a far longer one does not hold up others.
 */
export const maxPromptTokens = (generation: GenerationContext): number =>
  Math.max(MIN_COUNTED_TOKENS, 2 * tokenLimit(generation));

/** Tokens that fit into the context and the cache. */
function tokenLimit({ cache, context, overflow, plan }: GenerationContext): number {
  const fitting = maxTokensIn(plan, cache.stats.capacity);
  return overflow === 'slide' && fitting >= context ? Number.POSITIVE_INFINITY : Math.min(context, fitting);
}

/** Tokens that fit after the prompt; throws if there are none. */
function remainingTokens(prompt: number, generation: GenerationContext): number {
  const { cache, context, plan } = generation;
  const limit = tokenLimit(generation);
  if (prompt < limit) return limit - prompt;
  if (limit === context)
    throw new ContextError(
      option =>
        `A prompt of ${prompt} tokens leaves no room in a context of ${context}. Shorten the prompt, load the model with ` +
        `a larger ${option('context')}, or use ${option('overflow', 'slide')} to drop the oldest tokens.`,
    );
  throw new ContextError(
    option =>
      `A prompt of ${prompt} tokens leaves no room in a KV cache of ${formatBytes(cache.stats.capacity)}, which holds ` +
      `${formatCount(limit)} tokens of ${plan.spec}. Shorten the prompt, raise ${option('kvMemory')}, or use a codec ` +
      'with fewer bits.',
  );
}

function checkTokenIds(ids: readonly number[], vocab: number): void {
  if (ids.length === 0) throw new InputError('The prompt is empty. It must have at least one token.');
  const bad = ids.find(id => !Number.isInteger(id) || id < 0 || id >= vocab);
  if (bad !== undefined)
    throw new InputError(`Token id ${bad} is outside the vocabulary: ids are 0 to ${vocab - 1}.`, { option: 'prompt' });
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
      timings.prefillMs += lap();
      timings.prefillRate = (1000 * usage.prefilledTokens) / timings.prefillMs;
    },
    decoded(count: number) {
      // The first token comes from the prefill's logits.
      if (decoding) {
        timings.decodeMs += lap();
        timings.decodeRate = (1000 * (count - 1)) / timings.decodeMs;
      }
      decoding = true;
    },
    resume: lap,
  };
}
