/** Ids of tool calls as Mistral's templates want them: 9 letters and digits. They refuse others, such as OpenAI's. */
import type { ChatMessage, ChatTemplate } from '../model/template.ts';
import { hashValue } from '../util/hash-value.ts';

const LENGTH = 9;
const isShort = (id: string) => id.length === LENGTH && /^[a-zA-Z0-9]+$/.test(id);

/** Equal ids become equal ones, so that results find their calls. */
const shorten = (id: string): string =>
  isShort(id)
    ? id
    : hashValue(id)
        .replace(/[^a-zA-Z0-9]/g, '')
        .slice(0, LENGTH);

export function shortCallIds({ source = '' }: ChatTemplate, messages: readonly ChatMessage[]): readonly ChatMessage[] {
  if (!/length\s*!=\s*9/.test(source)) return messages;
  return messages.map(({ tool_call_id, tool_calls, ...message }) => ({
    ...message,
    ...(tool_call_id !== undefined && { tool_call_id: shorten(tool_call_id) }),
    ...(tool_calls && {
      tool_calls: tool_calls.map((call, i) => ({ ...call, id: shorten(call.id ?? `${i} ${call.function.name}`) })),
    }),
  }));
}
