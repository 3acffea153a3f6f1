/** The public model: load it, generate text, dispose it. */

import { checkSlides } from '../cache/create-sequence.ts';
import type { CacheTiers, KvCache, KvCacheStats, NearestText } from '../cache/kv-cache.ts';
import type { PrefixNode } from '../cache/prefix-node.ts';
import { saltOf } from '../cache/salt.ts';
import type { AnswerDelta } from '../chat/answer.ts';
import { type EncodeChatOptions, encodePrompt, knowsReasoning } from '../chat/answer-stream.ts';
import { type Conversation, createConversation } from '../chat/conversation.ts';
import {
  type ChatOptions,
  type ConversationOptions,
  type Prompt,
  type PromptOptions,
  startMessages,
} from '../chat/conversation-options.ts';
import {
  checkConversationOptions,
  checkDecodeLeavesOptions,
  checkEncodeChatOptions,
  checkPrompt,
} from '../chat/options.ts';
import {
  type Engine,
  type EngineOptions,
  loadEngine,
  type ModelInput,
  openModelFile,
  throwIfDisposed,
} from '../engine/engine.ts';
import type { GenerateOptions } from '../engine/generate.ts';
import { createConstraints } from '../engine/grammar/constraint.ts';
import { createGuard, type GuardStats, guardBytes, type QualityLossAction } from '../engine/guard.ts';
import { checkLoadOptions } from '../engine/options.ts';
import { randomSeed } from '../engine/random.ts';
import { createScheduler, type SchedulerStats } from '../engine/scheduler.ts';
import type { Result, Stream, Token } from '../engine/stream.ts';
import type { EvictionPolicy } from '../eviction/eviction.ts';
import type { KvGraph } from '../eviction/graph/kv-graph.ts';
import { createPolicy, type EvictionPolicyName } from '../eviction/policies.ts';
import { defaultContext } from '../model/config.ts';
import type { ModelConfig } from '../model/model-config.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import type { KvMode, Plan, Preset } from '../plan/plan.ts';
import type { ProfileInput } from '../plan/profile-input.ts';
import { settleWithin } from '../platform/event-loop.ts';
import type { SessionSource } from '../session/session-io.ts';
import type { TiersInput } from '../store/open-tiers.ts';
import type { TierStats } from '../store/tier-chain.ts';
import { describeValue } from '../util/describe-value.ts';
import type { AsyncDisposableLike } from '../util/disposable.ts';
import { type DeviceError, InputError } from '../util/errors.ts';
import { formatCount } from '../util/units.ts';
import { type DecodedLeaf, type DecodeLeavesOptions, decodeLeaves } from './decode-leaves.ts';
import { resolvePlan } from './resolve-plan.ts';
import type { ModelTiers } from './tiers.ts';

/** Options of `loadModel`. */
export interface LoadOptions extends EngineOptions {
  /**
   * How good the cache is: `safe` (q8_0), `balanced`, or `small`. With a profile, the last two are the plans of 3 and 2 bits
   * per value that it recommends; without one, tq4 and tq3. Default: `balanced`.
   */
  quality?: Preset;
  /** Instead of `quality`: a codec spec, or `auto` (`auto:2.25` bits per value) to choose one per layer. */
  kv?: string;
  /**
   * `packed`: pages are codes. `two-tier`: pages are f16 while their conversation is used, and codes when others need the
   * room; each conversation has its own. `shadow`, for evaluation: every page is kept in f16 beside its codes; prompts read
   * the f16 pages, answers the codes (or the f16 pages, with `readExact`), and `result.divergence` compares both. The last
   * two share no prefixes. Default: `packed`.
   */
  kvMode?: KvMode;
  /** Max bytes of one sequence of `context` tokens: chooses codecs that fit. Implies `kv: 'auto'`. */
  contextMemory?: number;
  /**
   * Max bytes of the KV cache: pages, tails and sinks of all conversations, and the pages that are kept for later prompts.
   * Default: room for four full contexts, or 1 GiB if that is more, as far as the memory allows. A CPU holds about
   * 3.4 GiB.
   */
  kvMemory?: number;
  /** Max conversations and requests that run at the same time; others wait. Default: 32, on webgpu 64. */
  maxSequences?: number;
  /**
   * The part of the time that new prompts get while answers are written, above 0 and below 1: with more of it prompts are
   * read sooner, and answers come slower. Default: at most .75, and about 100 ms between two tokens of an answer.
   */
  prefillShare?: number;
  /** Tokens per page. Default: 128. */
  pageTokens?: number;
  /** Max tokens per sequence, prompt and answer. Default: the model's training context, at most 32768. */
  context?: number;
  /** The result of calibration, from which the plan is chosen. Default: searched on disk. */
  profile?: ProfileInput;
  /** What happens when the context is full: an error (default), or drop the oldest pages after the sinks. */
  overflow?: 'error' | 'slide';
  /**
   * Which pages are evicted first when the cache is full (docs/eviction.md). Default: `lru`. A graph of your own (see
   * `createKvGraph`) serves one model.
   */
  eviction?: EvictionPolicyName | KvGraph;
  /**
   * Where sealed pages are stored, so that they are found again after they were evicted or the process has ended, the
   * fastest first: `host=4GiB,disk=/dir:50GiB,redis=redis://host:6379`, or objects. Default: none.
   */
  tiers?: TiersInput;
  /**
   * What happens if the codec does not suit the model, so that attention on its codes is far from attention on f16:
   * `notice`, in the first result after it was noticed, or `error`: answers fail with a QualityError. Default: `notice`.
   */
  onQualityLoss?: QualityLossAction;
  /**
   * Guess the next tokens where the text repeats itself, and check several in one pass. The text is the same, and comes
   * faster. Not on webgpu. Default: true.
   */
  speculate?: boolean;
}

/** Memory in use, in bytes. */
export interface MemoryUse {
  weights: number;
  /** Activations and codec tables. */
  scratch: number;
  /** Sealed pages of all conversations. */
  pages: number;
  /** f16 tails and sinks of all conversations. */
  tails: number;
  /** Pages and tails that are only kept for later prompts. They make room when it is needed. */
  cached: number;
  /** Everything that the device has allocated. */
  total: number;
}

/** The state of a model's cache and scheduler. */
export interface ModelStats extends KvCacheStats, SchedulerStats {
  /** What decides which pages are evicted first. */
  eviction: EvictionPolicyName;
  /** The tiers, the fastest first. */
  tiers: readonly TierStats[];
  /** How far attention on codes is from attention on f16. */
  guard: GuardStats;
}

/** The device that a model runs on. */
export interface ModelDevice {
  readonly name: string;
  readonly threads: number;
  /** Why this device was chosen. */
  readonly why: string;
}

/** A loaded model. Answers that run at the same time share passes through the model, and the prefixes that they have in common. */
export interface Model extends AsyncDisposableLike {
  readonly config: ModelConfig;
  readonly tokenizer: Tokenizer;
  /** The codec of every layer. */
  readonly plan: Plan;
  /** Max tokens per sequence. */
  readonly context: number;
  /** Max conversations and requests that run at the same time. */
  readonly maxSequences: number;
  readonly device: ModelDevice;
  /** Warnings about the model as it was loaded, such as a missing chat template. */
  readonly notices: readonly string[];
  /** Whether the chat template knows reasoning before an answer. */
  readonly thinks: boolean;
  /** Resolves if the device is lost, such as a GPU after a driver reset. Then dispose the model and load it again. */
  readonly lost: Promise<DeviceError>;
  memory(): MemoryUse;
  /** The state of the cache and of the requests. */
  stats(): ModelStats;
  /** Resolves when the device has done what it was given so far; never, if it hangs. */
  ping(): Promise<void>;
  /**
   * The text in the cache that shares the most tokens with a prompt: where they part is why not all of it is reused. With
   * `tenant` and `cacheSalt`, among theirs.
   */
  nearestText(prompt: readonly number[], options?: Pick<GenerateOptions, 'tenant' | 'cacheSalt'>): NearestText;
  /** The token ids of messages, formatted by the model's chat template: the prompt that `chat` reads. */
  encodeChat(messages: readonly ChatMessage[], options?: EncodeChatOptions): number[];
  /** Continues a text or token ids. Streams tokens. */
  generate(prompt: Prompt, options?: PromptOptions): Stream<Token>;
  /** Answers messages, formatted by the model's chat template. Streams text. */
  chat(messages: readonly ChatMessage[], options?: ChatOptions): Stream<string>;
  /** As `chat`, and streams text, reasoning and tool calls apart, with their tokens. */
  answer(messages: readonly ChatMessage[], options?: ChatOptions): Stream<AnswerDelta>;
  /**
   * The sealed pages of a text in f16, as far as the cache or its tiers have them, one after the other in one buffer. Not
   * with a recent window, nor in shadow or two-tier mode, where pages are not shared: see `conversation.decode`.
   */
  decodeLeaves(prompt: Prompt, options?: DecodeLeavesOptions): AsyncGenerator<DecodedLeaf, void, void>;
  /** `generate` for a prompt, `chat` for messages, without streaming. */
  complete(prompt: Prompt | readonly ChatMessage[], options?: ChatOptions & PromptOptions): Promise<Result>;
  /**
   * `count` answers to the same prompt or messages, each with a seed of its own: `seed`, `seed` + 1, ... They run together,
   * and the prompt is read once.
   */
  samples(
    prompt: Prompt | readonly ChatMessage[],
    count: number,
    options?: ChatOptions & PromptOptions,
  ): Promise<Result[]>;
  /** Opens a conversation whose turns share a cache. Dispose it, or open it with `await using`. */
  conversation(options?: ConversationOptions): Conversation;
  /**
   * Restores a conversation that `save` has written. The model, codec and profile must be the same; a session that is
   * damaged or does not fit is refused with an error that names the reason.
   */
  restore(source: SessionSource, options?: Pick<ConversationOptions, 'tenant'>): Promise<Conversation>;
  /** Cancels running answers, waits for them, and frees everything. Can be called twice. */
  dispose(): Promise<void>;
}

/** A model is disposed after this time even if a store has not taken all pages. */
const STORE_TIME_LIMIT_MS = 10_000;

/**
 * Loads a GGUF model: a path, a hub name (`org/repo:Q4_K_M`, after `kvasir pull`), a URL, or the bytes.
 * Dispose it, or load it with `await using`.
 */
export async function loadModel(input: ModelInput, options: LoadOptions = {}): Promise<Model> {
  checkLoadOptions(options);
  const { overflow = 'error', kvMemory = 'auto' } = options;
  const file = await openModelFile(input, options);
  const { config, template } = file;
  const context = options.context ?? defaultContext(config);
  const choose = async () => {
    const chosen = await resolvePlan(file, { ...options, context });
    const { plan } = chosen;
    if (overflow === 'slide') checkSlides(context, { pageTokens: plan.pageTokens, recent: plan.window.recent });
    return chosen;
  };
  const chosen = await choose().catch(async error => {
    await file.gguf.close();
    throw error;
  });
  const { plan } = chosen;
  const engine = await loadEngine(file, { plan, context, kvMemory, guard: guardBytes(config, plan) }, options);
  const { tiers, notice: tiersNotice } = await openTiersIfAny(engine, plan, options.tiers, overflow);
  const notices = [
    engine.notice,
    template.note,
    chosen.notice,
    plan.notice,
    context > config.context && longContextNotice(context, config),
    tiersNotice,
  ].filter(note => !!note) as string[];
  const policy = await openPolicy(options.eviction);
  const model = createModel({ engine, plan, context, overflow, notices, tiers, policy }, options);
  if (!options.signal?.aborted) return model;
  await model.dispose();
  throw options.signal.reason;
}

async function openTiersIfAny(
  engine: Engine,
  plan: Plan,
  tiers: TiersInput | undefined,
  overflow: 'error' | 'slide',
): Promise<ModelTiers> {
  if (!tiers?.length) return {};
  try {
    const { openModelTiers } = await import('./tiers.ts');
    return await openModelTiers(engine, plan, tiers, overflow);
  } catch (error) {
    await engine.dispose();
    throw error;
  }
}

/** `graph` is a new graph. A page loads it only then. */
async function openPolicy(eviction: EvictionPolicyName | KvGraph = 'lru'): Promise<EvictionPolicy<PrefixNode>> {
  if (eviction !== 'graph') return createPolicy(eviction);
  const { createKvGraph } = await import('../eviction/graph/kv-graph.ts');
  return createPolicy(createKvGraph());
}

/** Attention on floats is slower than on codes, and rounds otherwise. */
const unpackedNote = ({ device }: Engine, { leaf }: Plan): string =>
  leaf.layers.some(layer => device.unpacks?.(layer)) ? '; attention unpacks pages to floats' : '';

const longContextNotice = (context: number, config: ModelConfig): string =>
  `The model was trained for ${formatCount(config.context)} tokens; beyond them, up to ${formatCount(context)}, its output may be poor.`;

interface ModelParts {
  engine: Engine;
  plan: Plan;
  context: number;
  overflow: 'error' | 'slide';
  notices: readonly string[];
  tiers?: CacheTiers;
  policy: EvictionPolicy<PrefixNode>;
}

function createModel(parts: ModelParts, options: LoadOptions): Model {
  const { engine, plan, context, overflow, notices, tiers, policy } = parts;
  const {
    maxSequences = engine.device.name === 'webgpu' ? 64 : 32,
    prefillShare,
    onQualityLoss = 'notice',
    eviction = 'lru',
    speculate = true,
  } = options;
  const capacity = engine.kvMemory;
  const cache = engine.openCache(plan, { context, overflow, capacity, policy, tiers });
  const guard = createGuard(engine, plan, onQualityLoss);
  const scheduler = createScheduler(engine, cache, plan, { maxSequences, prefillShare, guard, speculate });
  const constraints = createConstraints(engine.tokenizer);
  const answering = new Set<Conversation>();
  const generation = { engine, cache, scheduler, guard, plan, context, overflow, constraints, answering };
  let disposal: Promise<void> | undefined;
  const checkOpen = () => throwIfDisposed(disposal !== undefined);
  const open = (options?: ConversationOptions, ephemeral?: boolean): Conversation => {
    checkOpen();
    return createConversation(generation, { messages: startMessages(options), tenant: options?.tenant }, ephemeral);
  };
  const ephemeral = () => open({}, true);
  const complete: Model['complete'] = async (prompt, options) =>
    isChat(prompt) ? ephemeral().chat(prompt, options).result() : ephemeral().generate(prompt, options).result();
  const dispose = () => {
    disposal ??= (async () => {
      const stopAnswers = () => Promise.all([...answering].map(one => one.dispose()));
      await stopAnswers();
      await settleWithin(cache.settle(), STORE_TIME_LIMIT_MS);
      // Conversations may have gone on meanwhile.
      await stopAnswers();
      cache.dispose();
      guard.dispose();
      await engine.dispose();
      await tiers?.chain.close();
    })();
    return disposal;
  };

  return {
    config: engine.config,
    tokenizer: engine.tokenizer,
    thinks: knowsReasoning(engine.template),
    plan,
    context,
    maxSequences,
    device: { name: engine.device.name, threads: engine.device.threads, why: engine.why + unpackedNote(engine, plan) },
    notices,
    lost: engine.device.lost ?? new Promise(() => {}),
    memory: () =>
      disposal ? { weights: 0, scratch: 0, pages: 0, tails: 0, cached: 0, total: 0 } : memoryUse(engine, plan, cache),
    stats: () => ({
      ...cache.stats,
      ...scheduler.stats,
      eviction: typeof eviction === 'string' ? eviction : 'graph',
      tiers: tiers?.chain.stats ?? [],
      guard: guard.stats,
    }),
    ping: () =>
      engine.exclusive(async () => {
        // A read waits for all operations before it.
        await engine.device.readRows(engine.scratch.outputRows, 0, 1);
      }),
    nearestText(prompt, { tenant = '', cacheSalt } = {}) {
      checkOpen();
      checkPrompt(prompt);
      return cache.nearest(prompt, saltOf(tenant, cacheSalt));
    },
    encodeChat(messages, options) {
      checkEncodeChatOptions(options);
      return encodePrompt(engine, messages, options);
    },
    generate: (prompt, options) => ephemeral().generate(prompt, options),
    chat: (messages, options) => ephemeral().chat(messages, options),
    answer: (messages, options) => ephemeral().answer(messages, options),
    decodeLeaves(prompt, options = {}) {
      checkOpen();
      checkPrompt(prompt);
      checkDecodeLeavesOptions(options);
      const { tokenizer } = engine;
      const ids = typeof prompt === 'string' ? tokenizer.encode(prompt, { bos: tokenizer.addBos }) : prompt;
      return decodeLeaves(generation, ids, options);
    },
    complete,
    async samples(prompt, count, options = {}) {
      if (!Number.isInteger(count) || count < 1)
        throw new InputError(`samples needs a number of answers, 1 or more; got ${describeValue(count)}.`);
      const { seed = randomSeed() } = options;
      return Promise.all(Array.from({ length: count }, (_, i) => complete(prompt, { ...options, seed: seed + i })));
    },
    conversation(options) {
      checkConversationOptions(options);
      return open(options);
    },
    async restore(source, options = {}) {
      checkOpen();
      checkConversationOptions(options);
      const { tenant } = options;
      const owner = {};
      const { restoreSession } = await import('../session/session.ts');
      const saved = await restoreSession(generation, source, owner, tenant);
      checkOpen();
      return createConversation(generation, { ...saved, owner, tenant });
    },
    dispose,
    [Symbol.asyncDispose]: dispose,
  };
}

function memoryUse({ bytes, config, device }: Engine, plan: Plan, { stats }: KvCache): MemoryUse {
  const { used, sharedBytes: pages, cachedBytes: cached } = stats;
  const scratch = bytes.scratch + guardBytes(config, plan);
  return { weights: bytes.weights, scratch, pages, tails: used - pages - cached, cached, total: device.allocatedBytes };
}

const isChat = (prompt: Prompt | readonly ChatMessage[]): prompt is readonly ChatMessage[] =>
  Array.isArray(prompt) && typeof prompt[0] === 'object';
