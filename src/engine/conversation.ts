/** Turns that share a cache: each reuses what the last one left and prefills only what is new. */
import { countOutliers } from '../cache/outliers.ts';
import type { AsyncDisposableLike } from '../disposable.ts';
import { InputError } from '../errors.ts';
import type { Outliers } from '../kernel/device.ts';
import { encodeChat } from '../model/chat.ts';
import type { ChatMessage, RenderOptions } from '../model/template.ts';
import { refuseDisposed } from './engine.ts';
import { type GenerateOptions, generate, type Setting } from './generate.ts';
import { checkChatOptions, checkContent, checkMessages, checkPrompt, checkPromptOptions } from './options.ts';
import type { Cancellation } from './step.ts';
import { type Begin, createStream, type Result, type Stream, type Token } from './stream.ts';

export interface ChatOptions extends GenerateOptions {
  /** For the chat template: variables such as `enable_thinking`, the time. */
  render?: RenderOptions;
}

export interface PromptOptions extends GenerateOptions {
  /** Read control tokens written out in a prompt (`<|im_start|>`). Only for text that you made yourself. */
  special?: boolean;
}

/** What a user says: text, whole or in parts. */
type Content = NonNullable<ChatMessage['content']>;

/** Text, or token ids. */
export type Prompt = string | readonly number[];

export interface Conversation extends AsyncDisposableLike {
  /** What was said so far: by `send`, and before it. */
  readonly messages: readonly ChatMessage[];
  /** Tokens in the cache. */
  readonly length: number;
  /** Bytes of the cache. */
  readonly bytes: number;
  /** Says something, and streams the answer. Both join the messages, the answer as far as it came. */
  send(content: Content, options?: ChatOptions): Stream<string>;
  /** Answers the last message of the user's again, in place of the answer that it got. */
  regenerate(options?: ChatOptions): Stream<string>;
  /** Says something else in place of message `index`, which must be a user's; what came after it is forgotten. */
  edit(index: number, content: Content, options?: ChatOptions): Stream<string>;
  /** Answers messages of your own; what they share with the cache is not computed again. */
  chat(messages: readonly ChatMessage[], options?: ChatOptions): Stream<string>;
  generate(prompt: Prompt, options?: PromptOptions): Stream<Token>;
  /** Outliers in the pages that it holds, for codecs that list them (oaken); undefined for others. */
  outliers(): Promise<Outliers | undefined>;
  /** Stops the answer under way and goes back to the start: the system message and the messages it was opened with. */
  reset(): Promise<void>;
  /** Stops the answer under way and gives the memory back. Twice is harmless. */
  dispose(): Promise<void>;
}

export interface ConversationOptions {
  /** What the model is told before all else. */
  system?: string;
  /** What was said before, oldest first: a conversation that is taken up again. */
  messages?: readonly ChatMessage[];
}

/** With `once` the cache is given back after every answer. */
export function createConversation(
  setting: Setting,
  { system, messages: history = [] }: ConversationOptions = {},
  once = false,
): Conversation {
  const { engine, slot } = setting;
  const { tokenizer, template } = engine;
  const opening: ChatMessage[] = [...(system === undefined ? [] : [{ role: 'system', content: system }]), ...history];
  let messages = [...opening];
  /** The stream that is being read. */
  let running: Stream<unknown> | undefined;
  /** A reset or disposal under way: whatever comes next waits for it. */
  let clearing: Promise<void> | undefined;
  let disposed = false;

  const checkOpen = () => {
    if (disposed) throw new InputError('This conversation was disposed. Open another: model.conversation().');
    refuseDisposed(engine.disposed);
  };

  /** The one rule of owners: the pass under way is cancelled and awaited before anything is freed. */
  const clear = (): Promise<void> => {
    const before = clearing;
    const work = async () => {
      await before;
      await running?.return();
      messages = [...opening];
      slot.reset();
    };
    const cleared = work().finally(() => {
      if (clearing === cleared) clearing = undefined;
    });
    clearing = cleared;
    return cleared;
  };

  /** One answer at a time: two would write into the same cache. */
  const stream = <T>(steps: Begin<T>, signal?: AbortSignal): Stream<T> => {
    checkOpen();
    const made: Stream<T> = createStream(async function* (cancellation, result) {
      while (clearing) await clearing;
      checkOpen();
      if (running) throw new InputError('This conversation is answering already. Wait for its end, or open another.');
      running = made;
      try {
        yield* steps(cancellation, result);
      } finally {
        running = undefined;
        if (once) slot.reset();
      }
    }, signal);
    return made;
  };

  async function* textOf(
    list: readonly ChatMessage[],
    { render, ...options }: ChatOptions,
    cancellation: Cancellation,
    result: Result,
  ) {
    const ids = encodeChat(tokenizer, template, list, render);
    for await (const { text } of generate(setting, ids, options, result, cancellation)) if (text !== '') yield text;
  }

  /** Answers what `ask` makes of the messages when the stream is first read, and keeps both. */
  const turn = (ask: () => ChatMessage[], options: ChatOptions): Stream<string> => {
    checkChatOptions(options);
    return stream(async function* (cancellation, result) {
      const asked = ask();
      try {
        yield* textOf(asked, options, cancellation, result);
      } finally {
        if (result.ids.length > 0) messages = [...asked, { role: 'assistant', content: result.text }];
      }
    }, options.signal);
  };

  const dispose = () => {
    disposed = true;
    return clear();
  };

  return {
    get messages() {
      return messages;
    },
    get length() {
      return slot.length;
    },
    get bytes() {
      return slot.bytes;
    },
    send(content, options = {}) {
      checkContent(content);
      return turn(() => [...messages, { role: 'user', content }], options);
    },
    regenerate: (options = {}) =>
      turn(() => {
        const last = messages.findLastIndex(({ role }) => role === 'user');
        if (last < 0) throw new InputError('There is nothing to answer again: no user has said anything yet.');
        return messages.slice(0, last + 1);
      }, options),
    edit(index, content, options = {}) {
      checkContent(content);
      return turn(() => {
        if (messages[index]?.role !== 'user')
          throw new InputError(`Message ${index} is not a user's; ${users(messages)}.`);
        return [...messages.slice(0, index), { ...messages[index], content }];
      }, options);
    },
    chat(list, options = {}) {
      checkMessages(list);
      checkChatOptions(options);
      return stream((cancellation, result) => textOf(list, options, cancellation, result), options.signal);
    },
    generate(prompt, given = {}) {
      checkPrompt(prompt);
      checkPromptOptions(given);
      const { special, ...options } = given;
      return stream(async function* (cancellation, result) {
        const ids = typeof prompt === 'string' ? tokenizer.encode(prompt, { bos: tokenizer.addBos, special }) : prompt;
        yield* generate(setting, ids, options, result, cancellation);
      }, options.signal);
    },
    outliers: () =>
      engine.exclusive(async ({ device }) =>
        slot.length === 0 ? undefined : countOutliers(device, slot.sequence.view),
      ),
    reset: async () => {
      checkOpen();
      await clear();
    },
    dispose,
    [Symbol.asyncDispose]: dispose,
  };
}

function users(messages: readonly ChatMessage[]): string {
  const indices = messages.flatMap(({ role }, i) => (role === 'user' ? [i] : []));
  return indices.length === 0 ? 'there is none yet' : `those are ${indices.join(', ')}`;
}
