/** Anthropic's messages and tools as those that chat templates know. */
import type { Tool, ToolChoice } from '../chat/answer.ts';
import { endsWithBegunAnswer, mayContinueAnswer } from '../chat/begun-answer.ts';
import type { ChatMessage, RenderOptions, ToolCall } from '../model/template.ts';
import { type AnthropicMessage, type CountTokensRequest, isCustom, isHosted } from './anthropic-schemas.ts';
import { invalidRequest } from './errors.ts';
import { type IgnoredTool, toolOptions } from './tool-notices.ts';

export interface ChatPrompt {
  messages: ChatMessage[];
  render: RenderOptions;
  tools?: readonly Tool[];
  toolChoice?: ToolChoice;
  parallelToolCalls?: boolean;
  /** Whether the last message is the beginning of the answer. */
  continueAnswer: boolean;
}

export function toPrompt(request: CountTokensRequest): ChatPrompt {
  const { system, tools, tool_choice: choice, thinking } = request;
  const messages = request.messages.flatMap(toMessages);
  const callable = tools?.length && {
    ...toolOptions(tools.filter(isCustom).map(toTool), toToolChoice(choice), tools.map(toIgnored)),
    parallelToolCalls: toParallelToolCalls(choice),
  };
  const continueAnswer = endsWithBegunAnswer(messages);
  if (continueAnswer && callable && !mayContinueAnswer(callable))
    throw invalidRequest(
      'tool_choice asks for a call, but the last message is the beginning of an answer, which goes on as text. ' +
        'Send tool_choice "auto", or end with a message of the user.',
      'tool_choice',
    );
  return {
    messages: [...(system?.length ? [{ role: 'system', content: textOf(system) }] : []), ...messages],
    continueAnswer,
    // Without the field, Anthropic's models do not think.
    render: { variables: { enable_thinking: thinking != null && thinking.type !== 'disabled' } },
    ...callable,
  };
}

/** What was done by tools of Anthropic's servers. It is left out. */
export const hostedBlocks = ({ messages }: CountTokensRequest) =>
  messages.flatMap(({ content }) => (typeof content === 'string' ? [] : content.filter(isHosted)));

type AnthropicTool = NonNullable<CountTokensRequest['tools']>[number];

const toTool = ({ name, description, input_schema, strict }: AnthropicTool): Tool => ({
  type: 'function',
  function: {
    name: name ?? '',
    ...(description != null && { description }),
    ...(input_schema && { parameters: input_schema }),
    ...(strict != null && { strict }),
  },
});

/** A tool of Anthropic's servers; undefined if it can be called. */
export const toIgnored = (tool: AnthropicTool): IgnoredTool | undefined =>
  isCustom(tool) ? undefined : { type: tool.type ?? '', name: tool.name };

function toToolChoice(choice: CountTokensRequest['tool_choice']): ToolChoice | undefined {
  if (choice == null) return undefined;
  if (choice.type === 'tool') return { name: choice.name };
  return choice.type === 'any' ? 'required' : choice.type;
}

function toParallelToolCalls(choice: CountTokensRequest['tool_choice']): boolean | undefined {
  const disabled = choice && 'disable_parallel_tool_use' in choice ? choice.disable_parallel_tool_use : undefined;
  return disabled == null ? undefined : !disabled;
}

const textOf = (content: string | readonly { text: string }[]): string =>
  typeof content === 'string' ? content : content.map(({ text }) => text).join('\n');

/** Results of tools are messages of their own, before the user's text. */
function toMessages({ role, content }: AnthropicMessage): ChatMessage[] {
  if (typeof content === 'string') return [{ role, content }];
  if (content.length > 0 && content.every(isHosted)) return [];
  const messages: ChatMessage[] = [];
  const texts: string[] = [];
  const reasoning: string[] = [];
  const calls: ToolCall[] = [];
  for (const block of content) {
    if (block.type === 'text') texts.push(block.text);
    else if (block.type === 'thinking') reasoning.push(block.thinking);
    else if (block.type === 'tool_use')
      calls.push({ id: block.id, type: 'function', function: { name: block.name, arguments: block.input } });
    else if (block.type === 'tool_result') {
      const text = textOf(block.content ?? '');
      messages.push({
        role: 'tool',
        tool_call_id: block.tool_use_id,
        content: block.is_error ? `Error: ${text}` : text,
      });
    }
  }
  if (texts.length > 0 || calls.length > 0 || messages.length === 0)
    messages.push({
      role,
      content: texts.length > 0 || calls.length === 0 ? texts.join('\n') : null,
      ...(reasoning.length > 0 && { reasoning_content: reasoning.join('\n') }),
      ...(calls.length > 0 && { tool_calls: calls }),
    });
  return messages;
}
