/** A model as most people use one: load it, ask it, close it. */
import type { AsyncDisposableLike } from '../disposable.ts';
import type { DeviceError } from '../errors.ts';
import type { ModelConfig } from '../model/config.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { choosePlan } from '../plan/auto.ts';
import type { Plan } from '../plan/plan.ts';
import { formatCount } from '../units.ts';
import {
  type ChatOptions,
  type Conversation,
  type ConversationOptions,
  createConversation,
  type Prompt,
  type PromptOptions,
} from './conversation.ts';
import {
  type Engine,
  type EngineOptions,
  loadEngine,
  type ModelInput,
  openModelFile,
  planShape,
  refuseDisposed,
} from './engine.ts';
import { checkConversationOptions, checkLoadOptions } from './options.ts';
import { type ProfileInput, profileFor } from './profile.ts';
import { createSlot, type Slot } from './slot.ts';
import type { Result, Stream, Token } from './stream.ts';

export interface LoadOptions extends EngineOptions {
  /** How the cache is stored: a codec spec, or `auto` (`auto:2.25` bits) to let a plan choose. `tq4` unless given. */
  kv?: string;
  /** Most bytes of a whole context's cache: the plan chooses what fits. */
  kvMemory?: number;
  /** Tokens a page: 128 unless given. */
  pageTokens?: number;
  /** Most tokens of a sequence: what the model was made for, up to 32768, unless given. */
  context?: number;
  /** What `kvasir calibrate` learned, for codecs that need it: a file, or one that was read. Found unless given. */
  profile?: ProfileInput;
  /** At the end of the context: an error (unless given), or the oldest pages behind the sinks are dropped. */
  overflow?: 'error' | 'slide';
}

export interface MemoryUse {
  weights: number;
  /** Activations, and the tables of codecs. */
  scratch: number;
  /** Sealed pages of all open sequences. */
  pages: number;
  /** Their f16 tails and sinks. */
  tails: number;
  /** All that the device holds. */
  total: number;
}

export interface Model extends AsyncDisposableLike {
  readonly config: ModelConfig;
  readonly tokenizer: Tokenizer;
  readonly plan: Plan;
  readonly context: number;
  readonly device: { readonly name: string; readonly threads: number; readonly why: string };
  /** What one should know of this model as it was loaded. */
  readonly notices: readonly string[];
  /** Resolves if the device goes away by itself, a GPU most often. Then dispose the model and load it again. */
  readonly lost: Promise<DeviceError>;
  memory(): MemoryUse;
  /** Goes on from a text, or from token ids. */
  generate(prompt: Prompt, options?: PromptOptions): Stream<Token>;
  /** Answers messages, by the model's own chat template. */
  chat(messages: readonly ChatMessage[], options?: ChatOptions): Stream<string>;
  /** Either of the two, all at once. */
  complete(prompt: Prompt | readonly ChatMessage[], options?: ChatOptions & PromptOptions): Promise<Result>;
  /** Turns that share a cache. Dispose it in the end, or open it by `await using`. */
  conversation(options?: ConversationOptions): Conversation;
  /** Cancels what still runs, awaits it, and frees everything. Twice is harmless. */
  dispose(): Promise<void>;
}

const LARGEST_DEFAULT = 32768;

export async function loadModel(input: ModelInput, options: LoadOptions = {}): Promise<Model> {
  checkLoadOptions(options);
  const { kvMemory, overflow = 'error', pageTokens } = options;
  const kv = options.kv ?? (kvMemory === undefined ? 'tq4' : 'auto');
  const file = await openModelFile(input, options);
  const { config, template } = file;
  let plan: Plan;
  const context = options.context ?? Math.min(config.context, LARGEST_DEFAULT);
  try {
    const profile = await profileFor(file, [kv], options.profile);
    plan = choosePlan(kv, planShape(file, pageTokens), profile, { kvMemory, context });
  } catch (error) {
    await file.gguf.close();
    throw error;
  }
  const engine = await loadEngine(file, { plan, context }, options);
  const notices = [template.note, plan.notice, context > config.context && beyond(context, config)].filter(
    note => !!note,
  );
  return createModel({ engine, plan, context, overflow, notices: notices as string[] });
}

const beyond = (context: number, config: ModelConfig): string =>
  `The model was made for ${formatCount(config.context)} tokens; past those, of ${formatCount(context)}, its text may fall apart.`;

interface Parts {
  engine: Engine;
  plan: Plan;
  context: number;
  overflow: 'error' | 'slide';
  notices: string[];
}

function createModel({ engine, plan, context, overflow, notices }: Parts): Model {
  /** Whoever holds a cache. */
  const holders = new Map<Slot, Conversation>();
  let disposal: Promise<void> | undefined;
  const checkOpen = () => refuseDisposed(disposal !== undefined);
  const conversation = (options?: ConversationOptions, once?: boolean): Conversation => {
    checkOpen();
    const slot: Slot = createSlot(
      () => {
        checkOpen();
        const sequence = engine.openSequence(plan, context, overflow);
        holders.set(slot, holder);
        return sequence;
      },
      () => holders.delete(slot),
    );
    const holder = createConversation({ engine, slot, context, overflow }, options, once);
    return holder;
  };
  const once = () => conversation({}, true);
  const dispose = () => {
    disposal ??= (async () => {
      await Promise.all([...holders.values()].map(holder => holder.dispose()));
      await engine.dispose();
    })();
    return disposal;
  };

  return {
    config: engine.config,
    tokenizer: engine.tokenizer,
    plan,
    context,
    device: { name: engine.device.name, threads: engine.device.threads, why: engine.why },
    notices,
    lost: engine.device.lost ?? new Promise(() => {}),
    memory() {
      if (disposal) return { weights: 0, scratch: 0, pages: 0, tails: 0, total: 0 };
      const slots = [...holders.keys()];
      const pages = slots.reduce((sum, slot) => sum + slot.pageBytes, 0);
      const all = slots.reduce((sum, slot) => sum + slot.bytes, 0);
      return { ...engine.bytes, pages, tails: all - pages, total: engine.device.bytes };
    },
    generate: (prompt, options) => once().generate(prompt, options),
    chat: (messages, options) => once().chat(messages, options),
    complete: async (prompt, options) =>
      isChat(prompt) ? once().chat(prompt, options).result() : once().generate(prompt, options).result(),
    conversation(options) {
      checkConversationOptions(options);
      return conversation(options);
    },
    dispose,
    [Symbol.asyncDispose]: dispose,
  };
}

const isChat = (prompt: Prompt | readonly ChatMessage[]): prompt is readonly ChatMessage[] =>
  Array.isArray(prompt) && typeof prompt[0] === 'object';
