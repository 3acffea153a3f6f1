/** What callers give to conversations: options of answers and of conversations, messages and prompts. */

import type { GenerateOptions } from '../engine/generate.ts';
import type { ChatMessage, RenderOptions } from '../model/template.ts';
import type { Tool, ToolChoice } from './answer.ts';

/** Options of `chat` and of a conversation's answers. */
export interface ChatOptions extends GenerateOptions {
  /** For the chat template: variables such as `enable_thinking`, and the time. */
  render?: RenderOptions;
  /** Functions that the model may call. */
  tools?: readonly Tool[];
  /** Default: `auto` if there are tools. */
  toolChoice?: ToolChoice;
  /** Names of the tools that this answer may call. The prompt has all `tools`, so that its prefix stays in the cache. Default: all. */
  allowedTools?: readonly string[];
  /**
   * Whether an answer may have several calls. Default: true for `auto`, otherwise false, since a model that must call
   * often does not know when to stop.
   */
  parallelToolCalls?: boolean;
  /**
   * The last message, of the assistant, is the beginning of the answer: only what follows it is generated. Not with a
   * schema or a `toolChoice` that asks for a call. Default: false.
   */
  continueAnswer?: boolean;
}

/** Options of `generate`. */
export interface PromptOptions extends GenerateOptions {
  /** Parse control tokens in the prompt's text (`<|im_start|>`). Only for trusted text. Default: false. */
  parseSpecialTokens?: boolean;
  /**
   * The text after a gap: the prompt, a text, is what comes before it, and the answer fills it. An UnsupportedError if the
   * model was not trained for it. Control tokens are not parsed.
   */
  suffix?: string;
}

/** The content of a message: text, or text parts. */
export type MessageContent = NonNullable<ChatMessage['content']>;

/** Text or token ids. */
export type Prompt = string | readonly number[];

/** Options of `model.conversation`. */
export interface ConversationOptions {
  /** The system message. */
  system?: string;
  /** Earlier messages, oldest first, to continue a conversation. */
  messages?: readonly ChatMessage[];
  /** The tenant of its answers, unless they name another one. */
  tenant?: string;
}

/** The messages that a conversation begins with. */
export const startMessages = ({ system, messages = [] }: ConversationOptions = {}): ChatMessage[] => [
  ...(system === undefined ? [] : [{ role: 'system', content: system }]),
  ...messages,
];
