/** A call of the AI SDK, as messages and options of `model.answer`. */
import type {
  LanguageModelV3CallOptions,
  LanguageModelV3Message,
  LanguageModelV3ToolResultOutput,
  SharedV3Warning,
} from '@ai-sdk/provider';
import type { Tool, ToolChoice } from '../chat/answer.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import { unenforcedKeywords, unenforcedNotice } from '../chat/tools.ts';
import type { ChatMessage } from '../model/message.ts';
import { UnsupportedError } from '../util/errors.ts';

/** `ai` 7 also says how much to reason. */
export type Call = LanguageModelV3CallOptions & { reasoning?: string };

export interface AnswerCall {
  messages: ChatMessage[];
  options: ChatOptions;
  /** Settings that have no effect here. */
  warnings: SharedV3Warning[];
}

export function convertCall(call: Call, defaults: ChatOptions): AnswerCall {
  const warnings: SharedV3Warning[] = [];
  const tools = (call.tools ?? []).flatMap((tool): Tool[] => {
    if (tool.type === 'function') {
      const { name, description, inputSchema, strict } = tool;
      return [{ type: 'function', function: { name, description, parameters: { ...inputSchema }, strict } }];
    }
    warnings.push({ type: 'unsupported', feature: `tool ${tool.id}`, details: 'Only functions can be called.' });
    return [];
  });
  const unenforced = unenforcedKeywords(tools);
  if (unenforced.length > 0) warnings.push({ type: 'other', message: unenforcedNotice(unenforced) });
  const { responseFormat: format, reasoning = 'provider-default' } = call;
  if (reasoning !== 'provider-default' && reasoning !== 'none')
    warnings.push({ type: 'unsupported', feature: 'reasoning', details: 'Reasoning has no levels; it can be off.' });
  const options: ChatOptions = {
    maxTokens: call.maxOutputTokens,
    temperature: call.temperature,
    topP: call.topP,
    topK: call.topK,
    presencePenalty: call.presencePenalty,
    frequencyPenalty: call.frequencyPenalty,
    stop: call.stopSequences,
    seed: call.seed,
    signal: call.abortSignal,
    ...(tools.length > 0 && { tools, toolChoice: convertChoice(call.toolChoice) }),
    ...(format?.type === 'json' && { schema: format.schema ? { ...format.schema } : true }),
    ...(reasoning === 'none' && { render: { variables: { enable_thinking: false } } }),
  };
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  return { messages: call.prompt.flatMap(convertMessage), options: { ...defaults, ...given }, warnings };
}

function convertChoice(choice: LanguageModelV3CallOptions['toolChoice']): ToolChoice | undefined {
  return choice?.type === 'tool' ? { name: choice.toolName } : choice?.type;
}

function convertMessage(message: LanguageModelV3Message): ChatMessage[] {
  switch (message.role) {
    case 'system':
      return [{ role: 'system', content: message.content }];
    case 'user':
      return [{ role: 'user', content: message.content.map(part => ({ type: 'text', text: textOf(part) })) }];
    case 'assistant':
      return [convertAnswer(message.content)];
    case 'tool':
      return message.content.map(part => {
        if (part.type !== 'tool-result') throw unsupported(part.type);
        const { toolCallId, toolName, output } = part;
        return { role: 'tool', tool_call_id: toolCallId, name: toolName, content: resultText(output) };
      });
  }
}

function convertAnswer(parts: Extract<LanguageModelV3Message, { role: 'assistant' }>['content']): ChatMessage {
  const answer: ChatMessage = { role: 'assistant', content: null };
  for (const part of parts)
    if (part.type === 'reasoning') answer.reasoning_content = (answer.reasoning_content ?? '') + part.text;
    else if (part.type === 'tool-call') {
      const { toolCallId: id, toolName: name, input } = part;
      const call = { id, type: 'function', function: { name, arguments: JSON.stringify(input ?? {}) } };
      answer.tool_calls = [...(answer.tool_calls ?? []), call];
    } else answer.content = `${answer.content ?? ''}${textOf(part)}`;
  return answer.tool_calls ? answer : { ...answer, content: answer.content ?? '' };
}

function textOf(part: { type: string; text?: string }): string {
  if (part.type !== 'text') throw unsupported(part.type);
  return part.text ?? '';
}

function resultText(output: LanguageModelV3ToolResultOutput): string {
  switch (output.type) {
    case 'text':
    case 'error-text':
      return output.value;
    case 'json':
    case 'error-json':
      return JSON.stringify(output.value);
    case 'execution-denied':
      return output.reason ?? 'The call was denied.';
    case 'content':
      return output.value.map(textOf).join('\n');
  }
}

const unsupported = (type: string) =>
  new UnsupportedError(`A message has a part of type "${type}". Models run on text, reasoning and tool calls only.`);
