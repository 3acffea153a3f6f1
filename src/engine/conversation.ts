/** Turns that share a cache: each reuses what the last one left and prefills only what is new. */
import { InputError } from '../errors.ts';
import { encodeChat } from '../model/chat.ts';
import type { ChatMessage, RenderOptions } from '../model/template.ts';
import { type GenerateOptions, generate, type Setting } from './generate.ts';
import { checkChatOptions, checkContent, checkMessages, checkPrompt, checkPromptOptions } from './options.ts';
import { createStream, emptyResult, type Result, type Stream, type Token } from './stream.ts';

export interface ChatOptions extends GenerateOptions {
  /** For the chat template: variables such as `enable_thinking`, the time. */
  render?: RenderOptions;
}

export interface PromptOptions extends GenerateOptions {
  /** Read control tokens written out in a prompt (`<|im_start|>`). Only for text that you made yourself. */
  special?: boolean;
}

/** Text, or token ids. */
export type Prompt = string | readonly number[];

export interface Conversation {
  /** What was said so far, by `send`. */
  readonly messages: readonly ChatMessage[];
  /** Tokens in the cache. */
  readonly length: number;
  /** Bytes of the cache. */
  readonly bytes: number;
  /** Says something, and streams the answer. Both join the messages, the answer as far as it came. */
  send(content: string, options?: ChatOptions): Stream<string>;
  /** Answers messages of your own; what they share with the cache is not computed again. */
  chat(messages: readonly ChatMessage[], options?: ChatOptions): Stream<string>;
  generate(prompt: Prompt, options?: PromptOptions): Stream<Token>;
  /** Back to the start: the system message alone. */
  reset(): void;
  dispose(): void;
}

export interface ConversationOptions {
  /** What the model is told before all else. */
  system?: string;
  /** Give the cache back after one answer. */
  once?: boolean;
}

export function createConversation(setting: Setting, { system, once }: ConversationOptions = {}): Conversation {
  const { engine, slot } = setting;
  const { tokenizer, template } = engine;
  const opening: ChatMessage[] = system === undefined ? [] : [{ role: 'system', content: system }];
  let messages = [...opening];
  let busy = false;

  /** One at a time: two would write into the same cache. */
  async function* alone<T>(steps: AsyncGenerator<T, void, void>): AsyncGenerator<T, void, void> {
    if (busy) throw new InputError('This conversation is answering already. Wait for its end, or open another.');
    busy = true;
    try {
      yield* steps;
    } finally {
      busy = false;
      if (once) slot.reset();
    }
  }

  /** Ids are made when the stream is first read, as everything else is. */
  async function* tokensOf(prompt: () => readonly number[], options: GenerateOptions, result: Result) {
    yield* generate(setting, prompt(), options, result);
  }

  async function* textOf(list: readonly ChatMessage[], { render, ...options }: ChatOptions, result: Result) {
    for await (const { text } of tokensOf(() => encodeChat(tokenizer, template, list, render), options, result))
      if (text !== '') yield text;
  }

  async function* turn(content: string, options: ChatOptions, result: Result) {
    const asked = [...messages, { role: 'user', content }];
    try {
      yield* textOf(asked, options, result);
    } finally {
      if (result.ids.length > 0) messages = [...asked, { role: 'assistant', content: result.text }];
    }
  }

  const stream = <T>(make: (result: Result) => AsyncGenerator<T, void, void>): Stream<T> => {
    const result = emptyResult();
    return createStream(result, alone(make(result)));
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
      checkChatOptions(options);
      return stream(result => turn(content, options, result));
    },
    chat(list, options = {}) {
      checkMessages(list);
      checkChatOptions(options);
      return stream(result => textOf(list, options, result));
    },
    generate(prompt, given = {}) {
      checkPrompt(prompt);
      checkPromptOptions(given);
      const { special, ...options } = given;
      return stream(result =>
        tokensOf(
          () => (typeof prompt === 'string' ? tokenizer.encode(prompt, { bos: tokenizer.addBos, special }) : prompt),
          options,
          result,
        ),
      );
    },
    reset() {
      messages = [...opening];
      slot.reset();
    },
    dispose: slot.reset,
  };
}
