/** The beginning of an answer as the model would have written it, in its own format: so that it goes on there. */
import { CHANNEL, END, MESSAGE, START } from '../model/channels.ts';
import type { AnswerStart } from '../model/chat.ts';
import { type ChatMessage, textOf } from '../model/message.ts';
import { THINK_TAGS, type ThinkTags } from '../model/thinking.ts';
import { optionError } from '../util/errors.ts';
import type { ChatOptions } from './conversation-options.ts';

type AnswerForm = Pick<ChatOptions, 'schema' | 'tools' | 'toolChoice'>;

interface BegunFormat {
  channels: boolean;
  /** `open`: the prompt has opened the reasoning. `optional`: the answer may. */
  reasoning?: 'open' | 'optional';
  thinking?: ThinkTags;
}

export function writeBegunAnswer(
  message: ChatMessage,
  { channels, reasoning: mode, thinking = THINK_TAGS[0] }: BegunFormat,
): AnswerStart {
  const { reasoning_content: reasoning = '' } = message;
  const text = textOf(message);
  if (channels)
    return [
      ...(reasoning ? [{ marker: `${CHANNEL}analysis${MESSAGE}` }, { text: reasoning }] : []),
      ...(reasoning && text ? [{ marker: `${END}${START}assistant` }] : []),
      ...(text ? [{ marker: `${CHANNEL}final${MESSAGE}` }, { text }] : []),
    ];
  const isOpened = mode === 'open' || (mode === 'optional' && reasoning !== '');
  return [
    ...(mode === 'optional' && reasoning ? [{ marker: `${thinking.open}\n` }] : []),
    ...(isOpened ? [{ text: reasoning }] : []),
    ...(isOpened && text ? [{ marker: `\n${thinking.close}\n\n` }] : []),
    { text },
  ];
}

/** Whether the last message may be the beginning of an answer. */
export const endsWithBegunAnswer = (messages: readonly ChatMessage[]): boolean => {
  const last = messages.at(-1);
  return last?.role === 'assistant' && !last.tool_calls?.length;
};

/** Whether an answer may go on with a text that has begun it: only free text may have any beginning. */
export const mayContinueAnswer = ({ schema, tools, toolChoice = 'auto' }: AnswerForm): boolean =>
  schema === undefined && (!tools?.length || toolChoice === 'auto' || toolChoice === 'none');

/** The messages before an answer that goes on, and its beginning. */
export function splitBegunAnswer(messages: readonly ChatMessage[]): [readonly ChatMessage[], ChatMessage] {
  const last = messages.at(-1);
  if (!last || !endsWithBegunAnswer(messages))
    throw optionError(
      'continueAnswer',
      "needs a last message with the role 'assistant', without tool calls: the beginning of the answer.",
    );
  return [messages.slice(0, -1), last];
}
