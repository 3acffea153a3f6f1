/** Requests of the Responses API as chat requests: items become messages. */
import { ApiError, invalidRequest } from './errors.ts';
import type { ChatRequest, OpenaiMessage } from './openai-schemas.ts';
import type { OutputItem } from './response-output.ts';
import { type HostedItem, type InputItem, isHosted, type ResponsesRequest } from './response-schemas.ts';
import type { Exchange } from './route.ts';

/** Items of tools that ran on other servers are left out. */
type OwnItem = Exclude<InputItem, HostedItem>;
const isOwn = (item: InputItem): item is OwnItem => !isHosted(item);

/** The conversation so far, without `instructions`: they are those of one request. */
export function conversationOf({ responses, tenant }: Exchange, request: ResponsesRequest): OpenaiMessage[] {
  const { previous_response_id: previous, input } = request;
  const before = previous ? responses.get(tenant.name, previous) : undefined;
  if (previous && !before)
    throw new ApiError(400, `The response "${previous}" is not stored here (any more). Send the whole conversation.`, {
      code: 'previous_response_not_found',
      param: 'previous_response_id',
    });
  const resolve = (item: OwnItem): Exclude<OwnItem, { type: 'item_reference' }> | OutputItem => {
    if (item.type !== 'item_reference') return item;
    const found = responses.findItem(tenant.name, item.id);
    if (!found) throw invalidRequest(`The item "${item.id}" is not stored here (any more). Send the item.`, 'input');
    return found;
  };
  const items =
    typeof input === 'string' ? [{ role: 'user' as const, content: input }] : input.filter(isOwn).map(resolve);
  return [...(before?.messages ?? []), ...toMessages(items)];
}

export function toChatRequest(request: ResponsesRequest, conversation: readonly OpenaiMessage[]): ChatRequest {
  const { tools, tool_choice: choice, text, reasoning, instructions, include } = request;
  const wantsLogprobs = request.top_logprobs != null || include?.includes('message.output_text.logprobs');
  return {
    messages: joinSystemMessages([
      ...(instructions ? [{ role: 'system', content: instructions }] : []),
      ...conversation,
    ]),
    max_completion_tokens: request.max_output_tokens,
    temperature: request.temperature,
    top_p: request.top_p,
    ...(wantsLogprobs && { logprobs: true, top_logprobs: request.top_logprobs ?? 0 }),
    tools: tools?.map(toChatTool),
    tool_choice: toChatChoice(choice),
    parallel_tool_calls: request.parallel_tool_calls,
    response_format: responseFormat(text?.format),
    // An item of the assistant is whole: OpenAI's API answers it with another one.
    continue_final_message: false,
    cache_salt: request.cache_salt,
    reasoning_effort: reasoning?.effort,
    chat_template_kwargs: request.chat_template_kwargs,
  };
}

const toChatTool = <T extends object>({ type, name, ...called }: T & { type: string; name?: string | null }) => ({
  type,
  ...(name != null && { function: { name, ...called } }),
});

function toChatChoice(choice: ResponsesRequest['tool_choice']): ChatRequest['tool_choice'] {
  if (choice == null || typeof choice === 'string') return choice;
  if (choice.type === 'function') return { type: 'function', function: choice };
  if (choice.type !== 'allowed_tools') return undefined;
  const { type, mode, tools } = choice;
  return { type, allowed_tools: { mode, tools: tools.map(toChatTool) } };
}

function responseFormat(format: NonNullable<ResponsesRequest['text']>['format']): ChatRequest['response_format'] {
  if (format?.type !== 'json_schema') return format;
  const { name, schema, strict } = format;
  return { type: 'json_schema', json_schema: { name, schema, strict } };
}

/** Many templates take one system message, at the beginning. */
function joinSystemMessages(messages: readonly OpenaiMessage[]): OpenaiMessage[] {
  const first = messages.findIndex(({ role }) => role !== 'system' && role !== 'developer');
  const count = first < 0 ? messages.length : first;
  if (count < 2) return [...messages];
  const content = messages.slice(0, count).map(one => one.content);
  return [{ role: 'system', content: content.join('\n\n') }, ...messages.slice(count)];
}

/** Reasoning, text and calls in a row are one answer. */
function toMessages(items: readonly (Exclude<OwnItem, { type: 'item_reference' }> | OutputItem)[]): OpenaiMessage[] {
  const messages: OpenaiMessage[] = [];
  /** The answer that is being put together. */
  let answer: OpenaiMessage | undefined;
  const answerWith = (isFull: (answer: OpenaiMessage) => boolean): OpenaiMessage => {
    if (answer && !isFull(answer)) return answer;
    answer = { role: 'assistant', content: null };
    messages.push(answer);
    return answer;
  };
  const hasText = ({ content, tool_calls: calls }: OpenaiMessage) => content != null || calls != null;
  for (const item of items)
    switch (item.type) {
      case 'reasoning': {
        const text = (item.content ?? []).map(part => part.text).join('\n');
        if (text) answerWith(hasText).reasoning_content = text;
        break;
      }
      case 'function_call': {
        const { call_id: id, name, arguments: args } = item;
        const current = answerWith(() => false);
        current.tool_calls = [
          ...(current.tool_calls ?? []),
          { id, type: 'function', function: { name, arguments: args } },
        ];
        break;
      }
      case 'function_call_output':
        answer = undefined;
        messages.push({ role: 'tool', tool_call_id: item.call_id, content: textOf(item.output) });
        break;
      default:
        if (item.role === 'assistant') answerWith(hasText).content = textOf(item.content);
        else {
          answer = undefined;
          messages.push({ role: item.role === 'developer' ? 'system' : item.role, content: textOf(item.content) });
        }
    }
  return messages;
}

type Content = Extract<InputItem, { role: unknown }>['content'] | Extract<OutputItem, { role: unknown }>['content'];

const textOf = (content: Content): string =>
  typeof content === 'string'
    ? content
    : content.map(part => (part.type === 'refusal' ? part.refusal : part.text)).join('\n');
