/** POST /v1/chat/completions. */
import type { AnswerDelta, Tool, ToolCallDelta } from '../chat/answer.ts';
import { endsWithBegunAnswer, mayContinueAnswer } from '../chat/begun-answer.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import type { Result } from '../engine/stream.ts';
import type { ChatMessage } from '../model/template.ts';
import type { ModelService } from '../worker/service.ts';
import { type Answer, createAnswer } from './answer.ts';
import { cacheDifference, explainCache } from './cache-difference.ts';
import { createChunks } from './chunks.ts';
import { invalidRequest } from './errors.ts';
import type { AnswerEvent } from './jobs.ts';
import type { Limits } from './limits.ts';
import { type ChatRequest, chatSchema, type OpenaiMessage, type OpenaiTool } from './openai-schemas.ts';
import { createProgressChannel, type PromptProgress } from './prompt-progress.ts';
import type { Exchange, Route } from './route.ts';
import { requestedSlot, samplingOptions, seedOf } from './sampling.ts';
import { chatLogprobs } from './token-texts.ts';
import { fieldOfAnswer, type IgnoredTool, noteTools, toolOptions } from './tool-notices.ts';
import { openaiUsage } from './usage.ts';

export const chatCompletions: Route<ChatRequest> = {
  method: 'post',
  path: '/v1/chat/completions',
  summary: 'Answers messages. Streams with `stream: true`.',
  schema: chatSchema,
  streams: true,
  fieldOf,
  async handle(exchange, request) {
    const { id, jobs } = exchange;
    const model = exchange.resolveModel(request.model);
    const prefill = request.stream && request.return_progress ? createProgressChannel() : undefined;
    const events = await runChat(exchange, request, prefill?.report);
    const head = { id: `chatcmpl-${id}`, created: Math.floor(Date.now() / 1000), model };
    const service = jobs.service();
    const usage: CountUsage = (results, answers) => usageOf(results, answers, cacheDifference(exchange));
    return request.stream
      ? exchange.stream(streamChunks(head, prefill?.merge(events) ?? events, { request, service, usage }))
      : exchange.json(await collectChoices(head, events, { request, service, usage }));
  },
};

export type ChatEvents = AsyncGenerator<AnswerEvent<AnswerDelta>, void, void>;

/** Starts the answers to a request. Other APIs that chat bring their requests into this form. */
export async function runChat(
  exchange: Exchange,
  request: ChatRequest,
  onPrefill?: ChatOptions['onPrefill'],
): Promise<ChatEvents> {
  const { limits, jobs, tenant, signal, onAnswer } = exchange;
  const choices = request.n ?? 1;
  const messages = request.messages.map(toMessage);
  const asked = chatOptions(request, limits);
  // Unless the client says, a last message of the assistant goes on if it can, as on llama.cpp's and Ollama's servers.
  const goesOn = endsWithBegunAnswer(messages) && mayContinueAnswer(asked);
  const options = { ...asked, continueAnswer: request.continue_final_message ?? goesOn };
  noteTools(exchange, options, request.tools?.map(toIgnored));
  if (request.functions?.length) exchange.notify('functions is ignored: this server takes tools only.');
  const slot = requestedSlot(request, choices);
  const cacheSalt = request.cache_salt ?? undefined;
  const { render, tools, toolChoice, continueAnswer } = options;
  await explainCache(exchange, messages, { ...render, tools, toolChoice, continueAnswer, cacheSalt });
  return jobs.run<AnswerDelta>({
    ...{ tenant, signal, choices, onAnswer },
    promptLength: JSON.stringify(messages).length,
    open: (service, index, stop) =>
      service.answer(messages, {
        ...options,
        slot,
        seed: seedOf(request.seed, index),
        tenant: tenant.name,
        cacheSalt,
        signal: stop,
        // All answers share their prompt.
        onPrefill: index === 0 ? onPrefill : undefined,
      }),
    countTokens: ({ tokens }) => tokens.length,
  });
}

type ProgressEvents = AsyncGenerator<AnswerEvent<AnswerDelta> | { progress: PromptProgress }, void, void>;

type CountUsage = (results: readonly Result[], answers: readonly Answer[]) => object;

interface ChatContext {
  request: ChatRequest;
  service: ModelService;
  usage: CountUsage;
}

interface Head {
  id: string;
  created: number;
  model: string;
}

/** Unknown fields of a message are not passed on to the template. */
export function toMessage({ content, ...fields }: OpenaiMessage): ChatMessage {
  const known = Object.fromEntries(Object.entries(fields).filter(([, value]) => value != null));
  const isEmpty = content == null && fields.role === 'assistant' && !fields.tool_calls?.length;
  return { ...known, content: isEmpty ? '' : (content ?? null) } as ChatMessage;
}

function chatOptions(request: ChatRequest, limits: Limits): ChatOptions {
  const variables = { ...effortVariables(request.reasoning_effort), ...request.chat_template_kwargs };
  if (request.top_logprobs != null && !request.logprobs)
    throw invalidRequest('top_logprobs needs logprobs: true.', 'top_logprobs');
  const { toolChoice, allowedTools } = toToolChoice(request.tool_choice);
  return {
    ...samplingOptions(request, request.max_completion_tokens ?? request.max_tokens, limits),
    ...(request.logprobs && { logprobs: request.top_logprobs ?? 0 }),
    render: { variables },
    ...toolOptions(toTools(request.tools), toolChoice, request.tools?.map(toIgnored)),
    allowedTools,
    parallelToolCalls: request.parallel_tool_calls ?? undefined,
    schema: schemaOf(request.response_format),
  };
}

export const toTools = (tools: readonly OpenaiTool[] | null | undefined): Tool[] =>
  (tools ?? []).flatMap(({ type, function: called }): Tool[] => {
    if (type !== 'function' || !called) return [];
    const { name, description, parameters, strict } = called;
    const given = Object.entries({ description, parameters, strict }).filter(([, value]) => value != null);
    return [{ type: 'function', function: { name, ...Object.fromEntries(given) } }];
  });

/** A tool of another type; undefined if it is a function. */
export const toIgnored = ({ type }: Pick<OpenaiTool, 'type'>): IgnoredTool | undefined =>
  type === 'function' ? undefined : { type };

/** As templates know it: of Qwen3 and others whether it thinks, of gpt-oss how much. */
const effortVariables = (effort: ChatRequest['reasoning_effort']) =>
  effort == null ? {} : { enable_thinking: effort !== 'none', reasoning_effort: effort };

type CallOptions = Pick<ChatOptions, 'toolChoice' | 'allowedTools'>;

function toToolChoice(choice: ChatRequest['tool_choice']): CallOptions {
  if (choice == null) return {};
  if (typeof choice === 'string') return { toolChoice: choice };
  if (choice.type === 'function') return { toolChoice: { name: choice.function.name } };
  const { mode, tools } = choice.allowed_tools;
  const allowedTools = tools.flatMap(({ type, function: called }) => (type === 'function' && called?.name) || []);
  // Tools of other types are ignored: none is left to call.
  return allowedTools.length > 0 ? { toolChoice: mode, allowedTools } : { toolChoice: 'none' };
}

/** The JSON Schema that the answer must satisfy; `true`: any JSON object. */
function schemaOf(format: ChatRequest['response_format']): ChatOptions['schema'] {
  if (format?.type === 'json_schema') return format.json_schema.schema;
  return format?.type === 'json_object' ? (format.schema ?? true) : undefined;
}

function fieldOf(path: string, { tools, response_format: format }: ChatRequest): string {
  const names = {
    schema: format?.type === 'json_schema' ? 'response_format.json_schema.schema' : 'response_format.schema',
    variables: 'chat_template_kwargs',
    allowedTools: 'tool_choice.allowed_tools.tools',
    continueAnswer: 'continue_final_message',
  };
  return fieldOfAnswer(path, names, tools?.map(toIgnored));
}

async function collectChoices(head: Head, events: ChatEvents, { request, service, usage }: ChatContext) {
  const answers = Array.from({ length: request.n ?? 1 }, createAnswer);
  const results: Result[] = [];
  for await (const event of events) {
    if ('result' in event) results[event.index] = event.result;
    else answers[event.index].add(event.value);
  }
  const choice = async (answer: Answer, index: number) => ({
    index,
    message: { ...answerMessage(answer), refusal: null },
    logprobs: request.logprobs ? { content: await chatLogprobs(service, answer.tokens), refusal: null } : null,
    finish_reason: finishReason(results[index], answer),
    ...stopReason(results[index]),
  });
  return {
    ...head,
    object: 'chat.completion',
    choices: await Promise.all(answers.map(choice)),
    usage: usage(results, answers),
  };
}

export const answerMessage = ({ text, reasoning, toolCalls }: Answer) => ({
  role: 'assistant',
  content: text || toolCalls.length === 0 ? text : null,
  ...(reasoning && { reasoning_content: reasoning }),
  ...(toolCalls.length > 0 && { tool_calls: toolCalls.map(openaiToolCall) }),
});

const openaiToolCall = ({ id, name, arguments: args }: Answer['toolCalls'][number]) => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});

const finishReason = ({ finish }: Result, { toolCalls }: Answer): string =>
  finish === 'length' ? 'length' : toolCalls.length > 0 ? 'tool_calls' : 'stop';

/** In vLLM's field: only of what OpenAI's reasons do not tell apart. */
const stopReason = ({ isLoop }: Result) => isLoop && { stop_reason: 'loop' };

/** All answers share their prompt: what was cached before is what the first one found. */
function usageOf(results: readonly Result[], answers: readonly Answer[], difference: { cache_difference?: object }) {
  return openaiUsage({
    promptTokens: results[0].usage.promptTokens,
    cachedTokens: Math.min(...results.map(({ usage }) => usage.reusedTokens)),
    completionTokens: results.reduce((sum, { usage }) => sum + usage.completionTokens, 0),
    reasoningTokens: answers.reduce((sum, answer) => sum + answer.reasoningTokens, 0),
    ...difference,
  });
}

async function* streamChunks(
  head: Head,
  events: ChatEvents | ProgressEvents,
  { request, service, usage }: ChatContext,
) {
  const { part, finish, progress, end } = createChunks({ ...head, object: 'chat.completion.chunk' }, request);
  const answers = Array.from({ length: request.n ?? 1 }, createAnswer);
  const results: Result[] = [];
  for await (const event of events) {
    if ('progress' in event) {
      yield progress(event.progress);
      continue;
    }
    const { index } = event;
    const answer = answers[index];
    if (!answer.hasBegun) yield part(index, { delta: { role: 'assistant', content: '' } });
    answer.hasBegun = true;
    if ('result' in event) {
      results[index] = event.result;
      yield finish(index, { delta: {}, ...stopReason(event.result) }, finishReason(event.result, answer));
      continue;
    }
    const { text, reasoning, toolCalls, tokens } = event.value;
    answer.add(event.value);
    const logprobs = request.logprobs ? { content: await chatLogprobs(service, tokens), refusal: null } : null;
    if (!text && !reasoning && !toolCalls?.length && !logprobs) continue;
    const delta = {
      ...(text && { content: text }),
      ...(reasoning && { reasoning_content: reasoning }),
      ...(toolCalls?.length && { tool_calls: toolCalls.map(toolCallDelta) }),
    };
    yield part(index, { delta }, logprobs);
  }
  yield end(usage(results, answers));
}

const toolCallDelta = ({ index, id, name, arguments: args }: ToolCallDelta) => ({
  index,
  ...(id !== undefined && { id, type: 'function' }),
  function: { ...(name !== undefined && { name }), arguments: args ?? '' },
});
