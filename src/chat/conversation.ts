/** A conversation keeps its cache between turns: each turn prefills only what is new. */

import { decodeVectors, type Vectors } from '../cache/decode-vectors.ts';
import { sharedLength } from '../cache/kv-cache.ts';
import { countOutliers } from '../cache/outliers.ts';
import { saltOf } from '../cache/salt.ts';
import type { HeldContent } from '../cache/sequence.ts';
import { whenWarm } from '../cache/warming.ts';
import { type Engine, throwIfDisposed } from '../engine/engine.ts';
import {
  type GenerateOptions,
  type GenerationContext,
  type GenerationOwner,
  generate,
  maxPromptTokens,
  type OutputFormat,
  type PromptDetails,
  prefill,
} from '../engine/generate.ts';
import type { Constraints } from '../engine/grammar/constraint.ts';
import type { Cancellation } from '../engine/request.ts';
import { createStream, type Result, type Stream, type StreamBody, type Token } from '../engine/stream.ts';
import type { Outliers } from '../kernel/device.ts';
import { encodeChat } from '../model/chat.ts';
import type { ChatMessage } from '../model/template.ts';
import { saveSession } from '../session/session.ts';
import type { SessionTarget } from '../session/session-io.ts';
import { describeValue } from '../util/describe-value.ts';
import type { AsyncDisposableLike } from '../util/disposable.ts';
import { InputError, optionError } from '../util/errors.ts';
import { checkLayer, checkTokens } from '../util/rules.ts';
import type { AnswerDelta } from './answer.ts';
import {
  answerGrammar,
  answerMessage,
  constrainText,
  countSystemTokens,
  prepareAnswer,
  streamParts,
} from './answer-stream.ts';
import type { ChatOptions, MessageContent, Prompt, PromptOptions } from './conversation-options.ts';
import { checkChatOptions, checkContent, checkMessages, checkPrompt, checkPromptOptions } from './options.ts';
import { reuseTokens } from './reuse-tokens.ts';
import { createSourceOf } from './sources.ts';

/** A conversation with its own cache. It gives one answer at a time. */
export interface Conversation extends AsyncDisposableLike {
  /** All messages so far, the answers included. */
  readonly messages: readonly ChatMessage[];
  /** Tokens in the cache, after the last answer. */
  readonly length: number;
  /** Bytes of these tokens in the cache. Other conversations may share some of them. */
  readonly bytes: number;
  /** Whether an answer is being read. */
  readonly isAnswering: boolean;
  /** Sends a user message and streams the answer. Adds both to the messages; of a cancelled answer, the text so far. */
  send(content: MessageContent, options?: ChatOptions): Stream<string>;
  /** Answers the last user message again and replaces the previous answer. */
  regenerate(options?: ChatOptions): Stream<string>;
  /** Replaces message `index`, which must be a user message, removes all messages after it, and streams the answer. */
  edit(index: number, content: MessageContent, options?: ChatOptions): Stream<string>;
  /** Removes the last user message and all messages after it, also from the cache, and returns them. */
  undo(): Promise<readonly ChatMessage[]>;
  /** Answers the given messages, without adding them to `messages`. Reuses the part of the cache that they share. */
  chat(messages: readonly ChatMessage[], options?: ChatOptions): Stream<string>;
  /** As `chat`, and streams text, reasoning and tool calls apart, with their tokens. */
  answer(messages: readonly ChatMessage[], options?: ChatOptions): Stream<AnswerDelta>;
  /** Continues a text or token ids. Reuses the part of the cache that the prompt shares. */
  generate(prompt: Prompt, options?: PromptOptions): Stream<Token>;
  /** A second conversation with the same messages. Both share the cache of what they have in common. */
  fork(): Conversation;
  /** Removes tokens from the end of the cache until at most `tokens` are left, and returns how many are. */
  crop(tokens: number): Promise<number>;
  /**
   * Saves the messages and the cache to a file or stream; `model.restore` continues there without prefill. A
   * file is readable by its owner only: it holds what was said.
   */
  save(target: SessionTarget): Promise<void>;
  /**
   * Keys (after RoPE) and values of a layer as attention sees them, of the cached tokens from `from` to before `to`.
   * Default: all that are not dropped.
   */
  decode(layer: number, from?: number, to?: number): Promise<Vectors>;
  /**
   * In two-tier mode: frees the f16 pages of its cache, whose codes stay. Without it, that happens when others need the
   * room.
   */
  spill(): Promise<void>;
  /**
   * Brings its cache back ahead of the next message, as far as there is room: pages that were spilled in two-tier mode, and
   * those that the tiers have.
   */
  warm(): Promise<void>;
  /** Outlier counts of the sealed pages, for codecs that store outliers in lists (oaken); undefined for others. */
  outliers(): Promise<Outliers | undefined>;
  /** Cancels a running answer, empties the cache, and restores the initial messages. */
  reset(): Promise<void>;
  /** Cancels a running answer and frees the cache. Can be called twice. */
  dispose(): Promise<void>;
}

/** Where conversations answer. */
export interface ConversationContext extends GenerationContext {
  constraints: Constraints;
}

/** What a conversation starts with. */
interface ConversationStart {
  messages: readonly ChatMessage[];
  /** The messages that `reset` restores. Default: the same. */
  initialMessages?: readonly ChatMessage[];
  /** Tokens of the last prompt and answer. */
  ids?: readonly number[];
  /** Who holds their cache. */
  owner?: GenerationOwner;
  tenant?: string;
}

const ANSWERING = 'This conversation is already answering. Wait until it has finished, or open another one.';

/** `onRunning` is told when it starts and stops answering. An ephemeral conversation has one stream, and keeps nothing. */
export function createConversation(
  generation: ConversationContext,
  start: ConversationStart,
  onRunning: (conversation: Conversation, running: boolean) => void,
  ephemeral = false,
): Conversation {
  const { engine, cache, constraints } = generation;
  const { tokenizer, template } = engine;
  const { initialMessages = start.messages } = start;
  const { owner = {}, tenant } = start;
  let messages = [...start.messages];
  /** Tokens of the last prompt and its answer: the answer keeps its own tokens in later prompts. */
  let ids: readonly number[] = start.ids ?? [];
  /** The stream that is being read. */
  let running: Stream<unknown> | undefined;
  /** A reset or disposal in progress; answers wait for it. */
  let clearing: Promise<void> | undefined;
  /** A save in progress; answers wait for it. */
  let saving: Promise<void> | undefined;
  let disposed = false;

  const checkOpen = () => {
    if (disposed) throw new InputError('This conversation was disposed. Open another one: model.conversation().');
    throwIfDisposed(engine.disposed);
  };

  /** Cancels the running pass and waits for it before anything is freed. */
  const clear = (): Promise<void> => {
    const before = clearing;
    const work = async () => {
      await before;
      await running?.return();
      await saving?.catch(() => {});
      messages = [...initialMessages];
      ids = [];
      owner.warned = false;
      if (!engine.disposed) cache.forget(owner);
    };
    const cleared = work().finally(() => {
      if (clearing === cleared) clearing = undefined;
    });
    clearing = cleared;
    return cleared;
  };

  /** Waits for a reset and a save in progress. */
  const settled = async () => {
    checkOpen();
    while (clearing ?? saving) await (clearing ?? saving)?.catch(() => {});
    checkOpen();
  };

  /** Allows one answer at a time: two would write into the same cache. */
  const stream = <T>(steps: StreamBody<T>, signal?: AbortSignal): Stream<T> => {
    checkOpen();
    const created: Stream<T> = createStream(async function* (cancellation, result) {
      await settled();
      if (running) throw new InputError(ANSWERING);
      running = created;
      onRunning(conversation, true);
      try {
        yield* steps(cancellation, result);
      } finally {
        running = undefined;
        onRunning(conversation, false);
      }
    }, signal);
    return created;
  };

  async function* streamTokens(
    prompt: readonly number[],
    options: GenerateOptions,
    cancellation: Cancellation,
    result: Result,
    details?: OutputFormat & PromptDetails,
  ) {
    const reader = ephemeral ? undefined : owner;
    try {
      yield* generate(generation, prompt, { tenant, ...options }, result, cancellation, reader, details);
    } finally {
      ids = [...prompt, ...result.ids];
    }
  }

  async function* streamDeltas(
    list: readonly ChatMessage[],
    { render, tools, toolChoice, parallelToolCalls, ...options }: ChatOptions,
    cancellation: Cancellation,
    result: Result,
  ): AsyncGenerator<AnswerDelta, void, void> {
    const { schema } = options;
    const request = {
      ...{ render, tools, toolChoice, parallelToolCalls, schema },
      maxPromptTokens: maxPromptTokens(generation),
    };
    const model = { tokenizer, template, constraints: constraints.ofTenant(options.tenant ?? tenant) };
    const answer = prepareAnswer(model, list, request);
    result.notices.push(...answer.notices);
    const prompt = reuseTokens(tokenizer, ids, answer.prompt);
    const sourceOf = cache.usesSources ? createSourceOf(tokenizer, list, prompt) : undefined;
    const snapshotAt = cache.sharesSnapshots
      ? [countSystemTokens(engine, list, { ...render, tools, toolChoice }, prompt)]
      : [];
    const details = { ...answer.output, sourceOf, snapshotAt };
    yield* streamParts(streamTokens(prompt, options, cancellation, result, details), answer.parser, result);
  }

  async function* streamText(...answer: Parameters<typeof streamDeltas>): AsyncGenerator<string, void, void> {
    for await (const { text } of streamDeltas(...answer)) if (text) yield text;
  }

  const checkChat = (options: ChatOptions) => {
    checkChatOptions(options);
    answerGrammar({ template, constraints: constraints.ofTenant(options.tenant ?? tenant) }, options);
  };

  /** Answers the messages that `ask` returns when the stream is first read, and stores them with the answer. */
  const answerTurn = (ask: () => ChatMessage[], options: ChatOptions): Stream<string> => {
    checkChat(options);
    return stream(async function* (cancellation, result) {
      const turnMessages = ask();
      try {
        yield* streamText(turnMessages, options, cancellation, result);
      } finally {
        if (result.ids.length > 0) messages = [...turnMessages, answerMessage(result)];
      }
    }, options.signal);
  };

  /** Takes the sequence out of the cache while it is saved, so that it is not evicted. */
  const save = async (target: SessionTarget) => {
    // Its tail may have been evicted; then it is computed again.
    if (!cache.snapshotOf(owner) && ids.length > 0) await prefill(generation, ids, owner, tenant);
    const sequence = cache.take(owner);
    if (!sequence) throw new InputError('There is nothing to save yet. Send a message first.');
    try {
      await saveSession(engine, generation.plan, sequence, { messages, initialMessages, ids }, target);
    } finally {
      cache.keep(sequence, owner);
    }
  };

  const snapshot = () => (engine.disposed ? undefined : cache.snapshotOf(owner));

  /** Reads what the cache holds now, whatever becomes of it meanwhile; undefined if there is none. */
  const readCache = <T>(read: (engine: Engine, held: HeldContent) => Promise<T>): Promise<T> | undefined => {
    const held = snapshot()?.hold();
    return held && engine.exclusive(parts => read(parts, held)).finally(held.release);
  };

  /** Crops the cache to what it shares with `ids`. With a recent window, that may be an older snapshot. */
  const cropToIds = () => {
    for (let held = snapshot(); held; held = snapshot()) {
      if (held.crop(sharedLength(held.ids, ids)) > 0) return;
      cache.take(owner)?.dispose();
    }
  };

  const lastUserMessage = (act: string): number => {
    const last = messages.findLastIndex(({ role }) => role === 'user');
    if (last < 0) throw new InputError(`There is no user message to ${act}. Send one first.`);
    return last;
  };

  const dispose = () => {
    disposed = true;
    return clear();
  };

  const conversation: Conversation = {
    get messages() {
      return messages;
    },
    get length() {
      return snapshot()?.length ?? 0;
    },
    get bytes() {
      return snapshot()?.bytes ?? 0;
    },
    get isAnswering() {
      return running !== undefined;
    },
    send(content, options = {}) {
      checkContent(content);
      return answerTurn(() => [...messages, { role: 'user', content }], options);
    },
    regenerate: (options = {}) => answerTurn(() => messages.slice(0, lastUserMessage('answer again') + 1), options),
    edit(index, content, options = {}) {
      checkContent(content);
      return answerTurn(() => {
        if (messages[index]?.role !== 'user')
          throw new InputError(`Message ${index} is not a user message; ${listUserMessages(messages)}.`);
        return [...messages.slice(0, index), { ...messages[index], content }];
      }, options);
    },
    async undo() {
      await settled();
      if (running) throw new InputError(ANSWERING);
      const last = lastUserMessage('remove');
      const kept = messages.slice(0, last);
      const removed = messages.slice(last);
      // Some templates refuse messages without a user's.
      const prompt = kept.some(({ role }) => role === 'user')
        ? encodeChat(tokenizer, template, kept, { addGenerationPrompt: false })
        : [];
      messages = kept;
      ids = ids.slice(0, sharedLength(ids, reuseTokens(tokenizer, ids, prompt)));
      cropToIds();
      return removed;
    },
    chat(list, options = {}) {
      checkMessages(list);
      checkChat(options);
      return stream((cancellation, result) => streamText(list, options, cancellation, result), options.signal);
    },
    answer(list, options = {}) {
      checkMessages(list);
      checkChat(options);
      return stream((cancellation, result) => streamDeltas(list, options, cancellation, result), options.signal);
    },
    generate(prompt, promptOptions = {}) {
      checkPrompt(prompt);
      checkPromptOptions(promptOptions);
      const { parseSpecialTokens, suffix, ...options } = promptOptions;
      if (suffix !== undefined && typeof prompt !== 'string')
        throw optionError('suffix', 'needs a prompt that is a text; this one is token ids.');
      const constraint = constrainText(constraints.ofTenant(options.tenant ?? tenant), options.schema);
      return stream(async function* (cancellation, result) {
        const encoding = { bos: tokenizer.addBos, parseSpecialTokens, maxTokens: maxPromptTokens(generation) };
        const encode = (text: string) =>
          suffix === undefined ? tokenizer.encode(text, encoding) : tokenizer.encodeInfill(text, suffix, encoding);
        const encoded = typeof prompt === 'string' ? encode(prompt) : prompt;
        yield* streamTokens(encoded, options, cancellation, result, { constraint });
      }, options.signal);
    },
    fork() {
      checkOpen();
      return createConversation(generation, { messages, initialMessages, ids, tenant }, onRunning);
    },
    async crop(tokens) {
      checkOpen();
      if (!Number.isInteger(tokens) || tokens < 0)
        throw new InputError(`crop needs a number of tokens, 0 or more; got ${describeValue(tokens)}.`);
      if (running) throw new InputError(ANSWERING);
      ids = ids.slice(0, tokens);
      return snapshot()?.crop(tokens) ?? 0;
    },
    async save(target) {
      checkOpen();
      const before = saving;
      const work = async () => {
        await before?.catch(() => {});
        if (running) throw new InputError(ANSWERING);
        checkOpen();
        await save(target);
      };
      const saved = work().finally(() => {
        if (saving === saved) saving = undefined;
      });
      saving = saved;
      return saved;
    },
    async decode(layer, from, to) {
      checkOpen();
      const { codecs, mode } = generation.plan;
      checkLayer(layer, codecs.length);
      const read = readCache(({ device }, { view, exactView, length }) => {
        const dropped = view.firstLeaf * view.shape.pageTokens;
        const [first, end] = [from ?? dropped, to ?? length];
        checkTokens('from', first, dropped, length);
        checkTokens('to', end, first, length);
        return decodeVectors(device, view, layer, first, end, mode === 'two-tier' ? exactView : undefined);
      });
      if (!read) throw new InputError('This conversation has no cache yet, or it made room for others. Ask something.');
      return read;
    },
    async spill() {
      checkOpen();
      if (generation.plan.mode !== 'two-tier')
        throw new InputError(
          option => `spill needs a model in two-tier mode. Load it with ${option('kvMode', 'two-tier')}.`,
        );
      await engine.exclusive(async () => cache.spill(owner));
    },
    async warm() {
      checkOpen();
      // The last token of a prompt is never looked for.
      await whenWarm(onChange => cache.warm([...ids, 0], saltOf(tenant ?? ''), onChange, owner));
    },
    outliers: async () => readCache(({ device }, { view }) => countOutliers(device, view)),
    reset: async () => {
      checkOpen();
      await clear();
    },
    dispose,
    [Symbol.asyncDispose]: dispose,
  };
  return conversation;
}

function listUserMessages(messages: readonly ChatMessage[]): string {
  const indices = messages.flatMap(({ role }, i) => (role === 'user' ? [i] : []));
  return indices.length === 0 ? 'there is none yet' : `user messages are ${indices.join(', ')}`;
}
