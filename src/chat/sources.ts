/** Who wrote the tokens of a chat: the eviction policy learns from it. */
import type { LeafSource } from '../eviction/eviction.ts';
import type { ChatMessage } from '../model/message.ts';
import { messageEnds } from '../model/message-ends.ts';
import type { Tokenizer } from '../model/tokenizer.ts';

const SOURCE_OF_ROLE: Readonly<Record<string, LeafSource>> = {
  ...{ system: 'system', developer: 'system', user: 'user', assistant: 'assistant' },
  ...{ tool: 'tool', function: 'tool', ipython: 'tool', observation: 'tool' },
};

/** The source of the token at a position. What follows the last message is the model's answer. */
export function createSourceOf(
  tokenizer: Pick<Tokenizer, 'tokenBytes'>,
  messages: readonly ChatMessage[],
  prompt: readonly number[],
): (position: number) => LeafSource {
  const ends = messageEnds(tokenizer, messages, prompt);
  return position => {
    const index = ends.findIndex(end => position < end);
    return index < 0 ? 'generation' : (SOURCE_OF_ROLE[messages[index].role] ?? 'unknown');
  };
}
