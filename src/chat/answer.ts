/** Answers of a chat as they stream: text, reasoning and tool calls apart. */
import type { Token } from '../engine/stream.ts';

/** A function that the model may call, in OpenAI's format. */
export interface Tool {
  type: 'function';
  function: {
    name: string;
    description?: string;
    /** JSON Schema of the arguments. Default: an object without properties. */
    parameters?: Record<string, unknown>;
    strict?: boolean;
  };
}

/** Whether the model may call a tool (`auto`), must not (`none`), must (`required`), or must call this one. */
export type ToolChoice = 'auto' | 'none' | 'required' | { name: string };

/** A tool call as it streams. The first delta of a call has its id and name; each may have more of its arguments. */
export interface ToolCallDelta {
  /** Counts the calls of an answer, from 0. */
  index: number;
  id?: string;
  name?: string;
  /** More of the arguments' JSON text. */
  arguments?: string;
}

/** New parts of an answer. */
export interface AnswerDelta {
  /** Text for the user. */
  text?: string;
  /** Text of the model's reasoning before its answer. */
  reasoning?: string;
  toolCalls?: readonly ToolCallDelta[];
  /** The tokens behind these parts, and those before them that had no part of their own. */
  tokens: readonly Token[];
}
