/** A conversation keeps its cache between turns: each turn prefills only what is new. */

import { decodeVectors, type Vectors } from '../cache/decode-vectors.ts';
import { sharedLength } from '../cache/kv-cache.ts';
import { countOutliers } from '../cache/outliers.ts';
import { whenPrefetched } from '../cache/prefetch.ts';
import { saltOf } from '../cache/salt.ts';
import type { HeldContent } from '../cache/sequence.ts';
import { throwIfDisposed } from '../engine/engine.ts';
import { type GenerationOwner, prefill } from '../engine/generate.ts';
import type { Stream, Token } from '../engine/stream.ts';
import type { Outliers } from '../kernel/device.ts';
import { encodeChat } from '../model/chat.ts';
import type { ChatMessage } from '../model/template.ts';
import type { SessionTarget } from '../session/session-io.ts';
import { describeValue } from '../util/describe-value.ts';
import type { AsyncDisposableLike } from '../util/disposable.ts';
import { InputError } from '../util/errors.ts';
import { checkLayer } from '../util/rules.ts';
import type { AnswerDelta } from './answer.ts';
import { answerMessage } from './answer-stream.ts';
import { type AnswerContext, type Answerer, checkChat, streamDeltas, streamPrompt, streamText } from './answers.ts';
import type { ChatOptions, MessageContent, Prompt, PromptOptions } from './conversation-options.ts';
import { checkContent, checkMessages } from './options.ts';
import { reuseTokens } from './reuse-tokens.ts';
import { createTurnTaking } from './turn-taking.ts';

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
  prefetch(): Promise<void>;
  /** Outlier counts of the sealed pages, for codecs that store outliers in lists (oaken); undefined for others. */
  outliers(): Promise<Outliers | undefined>;
  /** Cancels a running answer, empties the cache, and restores the initial messages. */
  reset(): Promise<void>;
  /** Cancels a running answer and frees the cache. Can be called twice. */
  dispose(): Promise<void>;
}

/** Where conversations answer. */
export interface ConversationContext extends AnswerContext {
  /** The conversations that are answering. */
  answering: Set<Conversation>;
}

/** What a conversation starts with. */
interface ConversationStart {
  messages: readonly ChatMessage[];
  /** The messages that `reset` restores. Default: the same. */
  initialMessages?: readonly ChatMessage[];
  /** Tokens of the last prompt and answer, and their salt. */
  ids?: readonly number[];
  salt?: string;
  /** Who holds their cache. */
  owner?: GenerationOwner;
  tenant?: string;
}

/** An ephemeral conversation has one stream, and keeps nothing. */
export function createConversation(
  context: ConversationContext,
  start: ConversationStart,
  ephemeral = false,
): Conversation {
  const { engine, cache, plan } = context;
  const { tokenizer, template } = engine;
  const { initialMessages = start.messages, owner = {}, tenant } = start;
  const { ids = [], salt = saltOf(tenant ?? '') } = start;
  const answerer: Answerer = { context, tenant, reader: ephemeral ? undefined : owner, ids, salt };
  let messages = [...start.messages];
  let disposed = false;

  const checkOpen = () => {
    if (disposed) throw new InputError('This conversation was disposed. Open another one: model.conversation().');
    throwIfDisposed(engine.disposed);
  };
  const turns = createTurnTaking(checkOpen, isAnswering => {
    if (isAnswering) context.answering.add(conversation);
    else context.answering.delete(conversation);
  });

  /** Cancels the running pass and waits for it before anything is freed. */
  const clear = () =>
    turns.run(async () => {
      await turns.stopAnswer();
      messages = [...initialMessages];
      answerer.ids = [];
      owner.warned = false;
      if (!engine.disposed) cache.forget(owner);
    });

  /** Answers the messages that `ask` returns when the stream is first read, and stores them with the answer. */
  const answerTurn = (ask: () => ChatMessage[], options: ChatOptions): Stream<string> => {
    checkChat(answerer, options);
    return turns.stream(async function* (cancellation, result) {
      const turnMessages = ask();
      try {
        yield* streamText(answerer, turnMessages, options)(cancellation, result);
      } finally {
        if (result.ids.length > 0) messages = [...turnMessages, answerMessage(result)];
      }
    }, options.signal);
  };

  /** Takes the sequence out of the cache while it is saved, so that it is not evicted. */
  const save = async (target: SessionTarget) => {
    // A page loads it when something is saved.
    const { saveSession } = await import('../session/session.ts');
    const { ids, salt } = answerer;
    // Its tail may have been evicted; then it is computed again.
    if (!cache.idleOf(owner) && ids.length > 0) await prefill(context, ids, owner, salt);
    const sequence = cache.take(owner);
    if (!sequence) throw new InputError('There is nothing to save yet. Send a message first.');
    try {
      await saveSession(engine, plan, sequence, { messages, initialMessages, ids }, target);
    } finally {
      cache.keep(sequence, owner);
    }
  };

  const idle = () => (engine.disposed ? undefined : cache.idleOf(owner));

  const removeLastTurn = () => {
    turns.checkIdle();
    const last = lastUserMessage(messages, 'remove');
    const [kept, removed] = [messages.slice(0, last), messages.slice(last)];
    // Some templates refuse messages without a user's.
    const prompt = kept.some(({ role }) => role === 'user')
      ? encodeChat(tokenizer, template, kept, { addGenerationPrompt: false })
      : [];
    messages = kept;
    const { ids } = answerer;
    answerer.ids = ids.slice(0, sharedLength(ids, reuseTokens(tokenizer, ids, prompt)));
    const held = idle();
    if (held?.crop(sharedLength(held.ids, answerer.ids)) === 0) cache.forget(owner);
    return removed;
  };

  /** Reads what the cache holds now, whatever becomes of it meanwhile; undefined if there is none. */
  const readCache = async <T>(read: (held: HeldContent) => Promise<T>): Promise<T | undefined> => {
    const held = await turns.afterWork(() => idle()?.hold());
    return held && engine.exclusive(() => read(held)).finally(held.release);
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
      return idle()?.length ?? 0;
    },
    get bytes() {
      return idle()?.bytes ?? 0;
    },
    get isAnswering() {
      return turns.isAnswering;
    },
    send(content, options = {}) {
      checkContent(content);
      return answerTurn(() => [...messages, { role: 'user', content }], options);
    },
    regenerate: (options = {}) =>
      answerTurn(() => messages.slice(0, lastUserMessage(messages, 'answer again') + 1), options),
    edit(index, content, options = {}) {
      checkContent(content);
      return answerTurn(() => {
        if (messages[index]?.role !== 'user')
          throw new InputError(`Message ${index} is not a user message; ${listUserMessages(messages)}.`);
        return [...messages.slice(0, index), { ...messages[index], content }];
      }, options);
    },
    undo: () => turns.afterWork(removeLastTurn),
    chat(list, options = {}) {
      checkMessages(list);
      checkChat(answerer, options);
      return turns.stream(streamText(answerer, list, options), options.signal);
    },
    answer(list, options = {}) {
      checkMessages(list);
      checkChat(answerer, options);
      return turns.stream(streamDeltas(answerer, list, options), options.signal);
    },
    generate: (prompt, options = {}) => turns.stream(streamPrompt(answerer, prompt, options), options.signal),
    fork() {
      checkOpen();
      const { ids, salt } = answerer;
      return createConversation(context, { messages, initialMessages, ids, salt, tenant });
    },
    async crop(tokens) {
      checkOpen();
      if (!Number.isInteger(tokens) || tokens < 0)
        throw new InputError(`crop needs a number of tokens, 0 or more; got ${describeValue(tokens)}.`);
      return turns.afterWork(() => {
        turns.checkIdle();
        answerer.ids = answerer.ids.slice(0, tokens);
        return idle()?.crop(tokens) ?? 0;
      });
    },
    async save(target) {
      checkOpen();
      return turns.run(async () => {
        turns.checkIdle();
        checkOpen();
        await save(target);
      });
    },
    async decode(layer, from, to) {
      checkOpen();
      checkLayer(layer, plan.codecs.length);
      const read = await readCache(({ view, exactView, length }) => {
        const held = { view, exactView: plan.mode === 'two-tier' ? exactView : undefined, length };
        return decodeVectors(engine.device, held, [layer], from, to);
      });
      if (!read) throw new InputError('This conversation has no cache yet, or it made room for others. Ask something.');
      return read[0];
    },
    async spill() {
      checkOpen();
      if (plan.mode !== 'two-tier')
        throw new InputError(
          option => `spill needs a model in two-tier mode. Load it with ${option('kvMode', 'two-tier')}.`,
        );
      await engine.exclusive(async () => cache.spill(owner));
    },
    async prefetch() {
      checkOpen();
      // The last token of a prompt is never looked for.
      await whenPrefetched(onChange => cache.prefetch([...answerer.ids, 0], answerer.salt, onChange, owner));
    },
    outliers: async () => readCache(({ view }) => countOutliers(engine.device, view)),
    reset: async () => {
      checkOpen();
      await clear();
    },
    dispose,
    [Symbol.asyncDispose]: dispose,
  };
  return conversation;
}

/** `act`: what it is wanted for. */
function lastUserMessage(messages: readonly ChatMessage[], act: string): number {
  const last = messages.findLastIndex(({ role }) => role === 'user');
  if (last < 0) throw new InputError(`There is no user message to ${act}. Send one first.`);
  return last;
}

function listUserMessages(messages: readonly ChatMessage[]): string {
  const indices = messages.flatMap(({ role }, i) => (role === 'user' ? [i] : []));
  return indices.length === 0 ? 'there is none yet' : `user messages are ${indices.join(', ')}`;
}
