/** POST /api/chat and /api/generate: Ollama's API, on the chats and completions of the others. */
import type { AnswerDelta } from '../chat/answer.ts';
import type { Result, Token } from '../engine/stream.ts';
import { createAnswer, parseArguments } from './answer.ts';
import { type ChatEvents, runChat, toIgnored } from './chat-completions.ts';
import { runCompletions } from './completions.ts';
import { invalidRequest } from './errors.ts';
import type { AnswerEvent } from './jobs.ts';
import { resolveOllamaModel } from './ollama-models.ts';
import {
  type OllamaChatRequest,
  type OllamaGenerateRequest,
  ollamaChatSchema,
  ollamaGenerateSchema,
} from './ollama-schemas.ts';
import type { ChatRequest, OpenaiMessage } from './openai-schemas.ts';
import type { Exchange, Route } from './route.ts';
import { chatLogprobs } from './token-texts.ts';
import { fieldOfAnswer } from './tool-notices.ts';
import { formatLine, ollamaWire } from './wire.ts';

export const ollamaChat: Route<OllamaChatRequest> = {
  method: 'post',
  path: '/api/chat',
  summary: "Answers messages in the format of Ollama's API. Streams lines unless `stream` is false.",
  schema: ollamaChatSchema,
  streams: true,
  wire: ollamaWire({ message: { role: 'assistant', content: '' } }),
  fieldOf,
  async handle(exchange, request) {
    resolveOllamaModel(exchange, request.model);
    const messages = (request.messages ?? []).map(toOpenaiMessage);
    if (messages.length === 0) return loaded(exchange, request, chatPart);
    const events = await runChat(exchange, { ...chatOptions(request), messages, tools: request.tools });
    return respond(exchange, request, events, chatPart);
  },
};

export const ollamaGenerate: Route<OllamaGenerateRequest> = {
  method: 'post',
  path: '/api/generate',
  summary: "Answers a prompt in the format of Ollama's API. Streams lines unless `stream` is false.",
  schema: ollamaGenerateSchema,
  streams: true,
  wire: ollamaWire({ response: '' }),
  promptField: 'prompt',
  fieldOf,
  async handle(exchange, request) {
    resolveOllamaModel(exchange, request.model);
    const { prompt, suffix, raw } = request;
    if (!prompt && !suffix) return loaded(exchange, request, generatePart);
    const events = raw || suffix ? continuePrompt(exchange, request) : await answerPrompt(exchange, request);
    return respond(exchange, request, events, generatePart);
  },
};

const FIELDS = {
  schema: 'format',
  variables: 'think',
  maxTokens: 'options.num_predict',
  repetitionPenalty: 'options.repeat_penalty',
  seed: 'options.seed',
  stop: 'options.stop',
};

function fieldOf(path: string, request: OllamaRequest): string {
  return fieldOfAnswer(path, FIELDS, 'tools' in request ? request.tools?.map(toIgnored) : undefined);
}

type OllamaRequest = OllamaChatRequest | OllamaGenerateRequest;

interface Content {
  text?: string;
  reasoning?: string;
  calls?: object[];
}

/** What differs between the two routes: where an answer's content goes. */
type Part = (content: Content) => object;

const chatPart: Part = ({ text = '', reasoning, calls }) => ({
  message: {
    ...{ role: 'assistant', content: text },
    ...(reasoning && { thinking: reasoning }),
    ...(calls?.length && { tool_calls: calls }),
  },
});

const generatePart: Part = ({ text = '', reasoning }) => ({
  response: text,
  ...(reasoning && { thinking: reasoning }),
});

function answerPrompt(exchange: Exchange, request: OllamaGenerateRequest): Promise<ChatEvents> {
  const { system, prompt } = request;
  const messages = [...(system ? [{ role: 'system', content: system }] : []), { role: 'user', content: prompt ?? '' }];
  return runChat(exchange, { ...chatOptions(request), messages });
}

/** Without the template: what follows the prompt, or fills the gap before the suffix. */
async function* continuePrompt(exchange: Exchange, request: OllamaGenerateRequest): ChatEvents {
  if (request.format) throw invalidRequest('format needs the template. Leave out raw and suffix.', 'format');
  if (request.system) throw invalidRequest('system needs the template. Leave out raw and suffix.', 'system');
  const { logprobs, top_logprobs, max_completion_tokens: max_tokens, ...options } = chatOptions(request);
  const events: AsyncGenerator<AnswerEvent<Token>, void, void> = await runCompletions(exchange, {
    ...options,
    prompt: request.prompt ?? '',
    suffix: request.suffix,
    max_tokens: max_tokens ?? exchange.limits.output,
    ...(logprobs && { logprobs: top_logprobs ?? 0 }),
  });
  for await (const event of events) {
    if ('result' in event) yield event;
    else yield { ...event, value: { text: event.value.text, tokens: [event.value] } satisfies AnswerDelta };
  }
}

/** A request without a prompt loads the model; here it always is. */
const loaded = ({ json }: Exchange, { model, keep_alive: keepAlive }: OllamaRequest, part: Part): Response =>
  json({ ...stamp(model), ...part({}), done: true, done_reason: isZero(keepAlive) ? 'unload' : 'load' });

const isZero = (duration: number | string | null | undefined): boolean =>
  duration != null && Number.parseFloat(String(duration)) === 0;

const stamp = (model: string) => ({ model, created_at: new Date().toISOString() });

/** The options with Ollama's defaults. */
function chatOptions({ options, format, think, logprobs, top_logprobs }: OllamaRequest): Omit<ChatRequest, 'messages'> {
  const { num_predict: length, seed, repeat_penalty, temperature, top_k, top_p, ...sampling } = options ?? {};
  return {
    ...sampling,
    temperature: temperature ?? 0.8,
    top_k: top_k ?? 40,
    top_p: top_p ?? 0.9,
    repetition_penalty: repeat_penalty,
    seed: seed != null && seed >= 0 ? seed : undefined,
    max_completion_tokens: length != null && length > 0 ? length : undefined,
    ...(logprobs && { logprobs, top_logprobs }),
    ...(format && { response_format: responseFormat(format) }),
    ...(think != null && {
      chat_template_kwargs: {
        enable_thinking: think !== false,
        ...(typeof think === 'string' && { reasoning_effort: think }),
      },
    }),
  };
}

const responseFormat = (format: 'json' | Record<string, unknown>): ChatRequest['response_format'] =>
  format === 'json' ? { type: 'json_object' } : { type: 'json_schema', json_schema: { schema: format } };

function toOpenaiMessage(message: NonNullable<OllamaChatRequest['messages']>[number]): OpenaiMessage {
  const { role, content, thinking, tool_calls: calls, tool_name: name, tool_call_id: id } = message;
  return {
    role: role.toLowerCase(),
    content: content || !calls?.length ? (content ?? '') : null,
    reasoning_content: thinking || undefined,
    name,
    tool_call_id: id,
    tool_calls: calls?.length
      ? calls.map((call, i) => ({
          id: call.id ?? `call_${i}`,
          type: 'function',
          function: { name: call.function.name, arguments: call.function.arguments ?? {} },
        }))
      : undefined,
  };
}

async function respond(exchange: Exchange, request: OllamaRequest, events: ChatEvents, part: Part): Promise<Response> {
  const parts = answerParts(exchange, request, events, part);
  if (request.stream !== false) return exchange.stream(formatLines(parts));
  let last: object = {};
  for await (const one of parts) last = one;
  return exchange.json(last);
}

async function* formatLines(parts: AsyncGenerator<object, void, void>): AsyncGenerator<string, void, void> {
  for await (const part of parts) yield formatLine(part);
}

/** Streams have parts as they come, and calls when they are whole; otherwise one part has everything. */
async function* answerParts(
  { jobs }: Exchange,
  { model, stream, logprobs: wantsLogprobs }: OllamaRequest,
  events: ChatEvents,
  part: Part,
): AsyncGenerator<object, void, void> {
  const streams = stream !== false;
  const started = performance.now();
  const service = jobs.service();
  const answer = createAnswer();
  const logprobsOf = async (tokens: readonly Token[]) =>
    wantsLogprobs && tokens.length > 0 ? { logprobs: await chatLogprobs(service, tokens) } : {};
  for await (const event of events) {
    if ('result' in event) {
      const calls = answer.toolCalls.map(({ id, name, arguments: args }, index) => ({
        id,
        function: { index, name, arguments: parseArguments(args) },
      }));
      if (streams && calls.length > 0) yield { ...stamp(model), ...part({ calls }), done: false };
      const { text, reasoning, tokens } = answer;
      yield {
        ...stamp(model),
        ...(streams ? part({}) : { ...part({ text, reasoning, calls }), ...(await logprobsOf(tokens)) }),
        ...{ done: true, done_reason: event.result.finish === 'length' ? 'length' : 'stop' },
        ...durations(event.result, performance.now() - started),
      };
      return;
    }
    answer.add(event.value);
    const { text, reasoning, tokens } = event.value;
    if (streams && (text || reasoning))
      yield { ...stamp(model), ...part({ text, reasoning }), done: false, ...(await logprobsOf(tokens)) };
  }
}

/** Durations are in nanoseconds. */
function durations({ usage, timings }: Result, totalMs: number): object {
  const nanoseconds = (ms: number) => Math.round(ms * 1e6);
  return {
    total_duration: nanoseconds(totalMs),
    load_duration: 0,
    prompt_eval_count: usage.promptTokens,
    prompt_eval_duration: nanoseconds(timings.prefillMs),
    eval_count: usage.completionTokens,
    eval_duration: nanoseconds(timings.decodeMs),
  };
}
