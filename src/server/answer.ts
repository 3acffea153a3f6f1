/** An answer that is put together from its parts. */
import type { AnswerDelta } from '../chat/answer.ts';
import type { Token } from '../engine/stream.ts';

export interface Answer {
  text: string;
  reasoning: string;
  toolCalls: { id: string; name: string; arguments: string }[];
  tokens: Token[];
  /** Tokens of the reasoning. */
  reasoningTokens: number;
  /** Whether the client has been told of it. */
  hasBegun: boolean;
  add(delta: AnswerDelta): void;
}

export const createAnswer = (): Answer => ({
  text: '',
  reasoning: '',
  toolCalls: [],
  tokens: [],
  reasoningTokens: 0,
  hasBegun: false,
  add({ text = '', reasoning = '', toolCalls = [], tokens }) {
    this.text += text;
    this.reasoning += reasoning;
    if (reasoning) this.reasoningTokens += tokens.length;
    this.tokens.push(...tokens);
    for (const { index, id = '', name = '', arguments: args = '' } of toolCalls) {
      this.toolCalls[index] ??= { id, name, arguments: '' };
      this.toolCalls[index].arguments += args;
    }
  },
});

/** The arguments of a call as an object; a call that was cut by its length is not JSON, and has none. */
export function parseArguments(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
