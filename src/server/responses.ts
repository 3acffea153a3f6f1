/** /v1/responses: OpenAI's Responses API. */
import type { Result } from '../engine/stream.ts';
import { type Answer, createAnswer } from './answer.ts';
import { cacheDifference } from './cache-difference.ts';
import { answerMessage, type ChatEvents, runChat, toIgnored } from './chat-completions.ts';
import { ApiError } from './errors.ts';
import { conversationOf, toChatRequest } from './response-input.ts';
import { createOutput, type ResponseEvent, type ResponseObject } from './response-output.ts';
import { isHosted, type ResponsesRequest, responsesSchema } from './response-schemas.ts';
import type { Exchange, Route } from './route.ts';
import { formatEvent } from './sse.ts';
import { chatLogprobs } from './token-texts.ts';
import { fieldOfAnswer, noteHosted } from './tool-notices.ts';

export const responses: Route<ResponsesRequest> = {
  method: 'post',
  path: '/v1/responses',
  summary: "Answers in the format of OpenAI's Responses API. Streams with `stream: true`.",
  schema: responsesSchema,
  streams: true,
  promptField: 'input',
  fieldOf,
  async handle(exchange, request) {
    const model = exchange.resolveModel(request.model);
    if (typeof request.input !== 'string') noteHosted(exchange, 'input', request.input.filter(isHosted));
    const conversation = conversationOf(exchange, request);
    const chat = toChatRequest(request, conversation);
    const response = describeRequest(`resp_${exchange.id}`, model, request);
    const store = (answer: Answer, stored: ResponseObject) =>
      request.store !== false &&
      exchange.responses.add(exchange.tenant.name, {
        response: stored,
        messages: [...conversation, answerMessage(answer)],
      });
    const answers = await runChat(exchange, chat);
    const events = answerEvents(exchange, response, answers, chat.logprobs === true, store);
    if (request.stream) return exchange.stream(formatEvents(exchange, response, events));
    let last: ResponseEvent | undefined;
    for await (const event of events) last = event;
    return exchange.json(last?.response as ResponseObject);
  },
};

export const storedResponse: Route = {
  method: 'get',
  path: '/v1/responses/:id',
  summary: 'A stored response.',
  handle: exchange => {
    const id = exchange.param('id');
    const stored = exchange.responses.get(exchange.tenant.name, id);
    if (!stored) throw notStored(id);
    return exchange.json(stored.response);
  },
};

export const deleteResponse: Route = {
  method: 'delete',
  path: '/v1/responses/:id',
  summary: 'Deletes a stored response.',
  handle: exchange => {
    const id = exchange.param('id');
    if (!exchange.responses.delete(exchange.tenant.name, id)) throw notStored(id);
    return exchange.json({ id, object: 'response', deleted: true });
  },
};

const FIELDS = {
  schema: 'text.format.schema',
  variables: 'chat_template_kwargs',
  allowedTools: 'tool_choice.tools',
  maxTokens: 'max_output_tokens',
  logprobs: 'top_logprobs',
};

function fieldOf(path: string, { tools }: ResponsesRequest): string {
  return fieldOfAnswer(path, FIELDS, tools?.map(toIgnored)).replace('.function.', '.');
}

const notStored = (id: string): ApiError =>
  new ApiError(404, `There is no stored response "${id.slice(0, 200)}" (any more).`, { code: 'response_not_found' });

/** The response before its answer. */
function describeRequest(id: string, model: string, request: ResponsesRequest): ResponseObject {
  const { tools, text, reasoning } = request;
  return {
    ...{ id, object: 'response', created_at: Math.floor(Date.now() / 1000), status: 'in_progress', model },
    ...{ background: false, error: null, incomplete_details: null },
    instructions: request.instructions ?? null,
    max_output_tokens: request.max_output_tokens ?? null,
    output: [],
    parallel_tool_calls: request.parallel_tool_calls ?? true,
    previous_response_id: request.previous_response_id ?? null,
    reasoning: { effort: reasoning?.effort ?? null, summary: null },
    temperature: request.temperature ?? 1,
    text: { format: text?.format ?? { type: 'text' } },
    tool_choice: request.tool_choice ?? 'auto',
    tools: (tools ?? [])
      .filter(({ type }) => type === 'function')
      .map(tool => ({ ...tool, parameters: tool.parameters ?? null, strict: tool.strict ?? null })),
    top_p: request.top_p ?? 1,
    truncation: 'disabled',
    metadata: request.metadata ?? {},
  };
}

/** All events of an answer; the last one has the whole response. */
async function* answerEvents(
  exchange: Exchange,
  response: ResponseObject,
  events: ChatEvents,
  wantsLogprobs: boolean,
  store: (answer: Answer, response: ResponseObject) => void,
): AsyncGenerator<ResponseEvent, void, void> {
  const service = exchange.jobs.service();
  const output = createOutput(exchange.id);
  const answer = createAnswer();
  for await (const event of events) {
    if (!answer.hasBegun) {
      yield { type: 'response.created', response };
      yield { type: 'response.in_progress', response };
    }
    answer.hasBegun = true;
    if ('result' in event) {
      const status = event.result.finish === 'length' ? 'incomplete' : 'completed';
      yield* output.end(status);
      const whole = { ...response, status, output: output.items, ...endOf(event.result, answer, exchange) } as const;
      store(answer, whole);
      yield { type: `response.${status}`, response: whole };
      return;
    }
    answer.add(event.value);
    yield* output.add(event.value, wantsLogprobs ? await chatLogprobs(service, event.value.tokens) : []);
  }
}

function endOf({ finish, usage }: Result, { reasoningTokens }: Answer, exchange: Exchange): object {
  const { promptTokens, reusedTokens, prefilledTokens, completionTokens } = usage;
  return {
    ...(finish === 'length' && { incomplete_details: { reason: 'max_output_tokens' } }),
    usage: {
      input_tokens: promptTokens,
      input_tokens_details: {
        ...{ cached_tokens: reusedTokens, cache_write_tokens: prefilledTokens },
        ...cacheDifference(exchange),
      },
      output_tokens: completionTokens,
      output_tokens_details: { reasoning_tokens: reasoningTokens },
      total_tokens: promptTokens + completionTokens,
    },
  };
}

/** An error before the first event is thrown; a later one is the last event. */
async function* formatEvents(
  { toError }: Exchange,
  response: ResponseObject,
  events: AsyncGenerator<ResponseEvent, void, void>,
): AsyncGenerator<string, void, void> {
  let number = 0;
  const format = (event: ResponseEvent) => formatEvent({ ...event, sequence_number: number++ }, event.type);
  try {
    for await (const event of events) yield format(event);
  } catch (error) {
    if (number === 0) throw error;
    const { message } = toError(error);
    yield format({
      type: 'response.failed',
      response: { ...response, status: 'failed', error: { code: 'server_error', message } },
    });
  }
}
