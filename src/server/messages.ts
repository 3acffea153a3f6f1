/** POST /v1/messages and /v1/messages/count_tokens: Anthropic's API. */
import type { AnswerDelta } from '../chat/answer.ts';
import type { Result, Usage } from '../engine/stream.ts';
import { type Answer, createAnswer, parseArguments } from './answer.ts';
import { type ChatPrompt, hostedBlocks, toIgnored, toPrompt } from './anthropic-prompt.ts';
import {
  type CountTokensRequest,
  countTokensSchema,
  type MessagesRequest,
  messagesSchema,
} from './anthropic-schemas.ts';
import { cacheDifference, explainCache } from './cache-difference.ts';
import type { AnswerEvent } from './jobs.ts';
import type { Route } from './route.ts';
import { maxTokensOf, stopsOf, topPOf } from './sampling.ts';
import { formatEvent } from './sse.ts';
import { fieldOfAnswer, noteHosted, noteTools } from './tool-notices.ts';
import { anthropicWire } from './wire.ts';

export const messages: Route<MessagesRequest> = {
  method: 'post',
  path: '/v1/messages',
  summary: "Answers messages in the format of Anthropic's API. Streams with `stream: true`.",
  schema: messagesSchema,
  streams: true,
  wire: anthropicWire,
  fieldOf,
  async handle(exchange, request) {
    const { limits, jobs, tenant, signal, id, onAnswer } = exchange;
    const model = exchange.resolveModel(request.model);
    const { messages, ...prompt } = toPrompt(request);
    noteTools(exchange, prompt, request.tools?.map(toIgnored));
    noteHosted(exchange, 'messages', hostedBlocks(request));
    await explainCache(exchange, messages, encodingOf(prompt));
    const events = jobs.run<AnswerDelta>({
      ...{ tenant, signal, choices: 1, onAnswer },
      promptLength: JSON.stringify(messages).length,
      open: (service, _, stop) =>
        service.answer(messages, {
          ...prompt,
          schema: (request.output_config?.format ?? request.output_format)?.schema,
          temperature: request.temperature ?? 1,
          topP: topPOf(request.top_p),
          topK: request.top_k ?? undefined,
          stop: stopsOf(request.stop_sequences),
          maxTokens: maxTokensOf(request.max_tokens, limits),
          tenant: tenant.name,
          signal: stop,
        }),
      countTokens: ({ tokens }) => tokens.length,
    });
    const head = { id: `msg_${id}`, type: 'message', role: 'assistant', model };
    return request.stream
      ? exchange.stream(streamEvents(head, events, cacheDifference(exchange)))
      : exchange.json(await collectMessage(head, events, cacheDifference(exchange)));
  },
};

export const countTokens: Route<CountTokensRequest> = {
  method: 'post',
  path: '/v1/messages/count_tokens',
  summary: 'Tokens of a prompt in the format of /v1/messages.',
  schema: countTokensSchema,
  wire: anthropicWire,
  fieldOf,
  async handle({ jobs, json, resolveModel }, request) {
    resolveModel(request.model);
    const { messages, ...prompt } = toPrompt(request);
    const tokens = await jobs.service().tokenizeChat(messages, encodingOf(prompt));
    return json({ input_tokens: tokens.length });
  },
};

const encodingOf = ({ render, tools, toolChoice, continueAnswer }: Omit<ChatPrompt, 'messages'>) => ({
  ...render,
  tools,
  toolChoice,
  continueAnswer,
});

/** `tools[0].function.parameters` is `tools[0].input_schema`. */
function fieldOf(path: string, { tools, ...rest }: CountTokensRequest | MessagesRequest): string {
  const format = 'output_format' in rest && rest.output_format ? 'output_format' : 'output_config.format';
  const names = { schema: `${format}.schema`, variables: 'thinking', stop: 'stop_sequences' };
  return fieldOfAnswer(path, names, tools?.map(toIgnored))
    .replace(/^(tools\[\d+\])\.function\.parameters/, '$1.input_schema')
    .replace(/^(tools\[\d+\])\.function\./, '$1.');
}

type Events = AsyncGenerator<AnswerEvent<AnswerDelta>, void, void>;

/** Tokens that were cached are not part of `input_tokens`. */
const inputUsage = ({ promptTokens, reusedTokens }: Usage) => ({
  input_tokens: promptTokens - reusedTokens,
  cache_read_input_tokens: reusedTokens,
  cache_creation_input_tokens: 0,
});

const usageOf = (usage: Usage) => ({ ...inputUsage(usage), output_tokens: usage.completionTokens });

/** Why it ended, and the stop sequence that did it. */
function endOf({ finish, stop }: Result, { toolCalls }: Answer) {
  const reason =
    finish === 'length' ? 'max_tokens' : toolCalls.length > 0 ? 'tool_use' : stop ? 'stop_sequence' : 'end_turn';
  return { stop_reason: reason, stop_sequence: (reason === 'stop_sequence' && stop) || null };
}

async function collectMessage(head: object, events: Events, difference: object): Promise<object> {
  const answer = createAnswer();
  for await (const event of events) {
    if (!('result' in event)) {
      answer.add(event.value);
      continue;
    }
    const { text, reasoning, toolCalls } = answer;
    const content = [
      ...(reasoning ? [{ type: 'thinking', thinking: reasoning, signature: '' }] : []),
      ...(text || toolCalls.length === 0 ? [{ type: 'text', text }] : []),
      ...toolCalls.map(({ id, name, arguments: args }) => ({
        type: 'tool_use',
        id,
        name,
        input: parseArguments(args),
      })),
    ];
    const usage = { ...usageOf(event.result.usage), ...difference };
    return { ...head, content, ...endOf(event.result, answer), usage };
  }
  throw new Error('kvasir bug: an answer has no end');
}

/** Blocks come one after another: each is started, added to, and stopped before the next. */
async function* streamEvents(head: object, events: Events, difference: object): AsyncGenerator<string, void, void> {
  const send = (type: string, fields: object) => formatEvent({ type, ...fields }, type);
  const answer = createAnswer();
  let index = -1;
  /** The open block: `text`, `thinking`, or the number of a tool call. */
  let open: string | number | undefined;
  const stop = () => (open === undefined ? '' : send('content_block_stop', { index }));
  const enter = (kind: string | number, block: object): string => {
    if (open === kind) return '';
    const stopped = stop();
    open = kind;
    return stopped + send('content_block_start', { index: ++index, content_block: block });
  };
  const delta = (fields: object) => send('content_block_delta', { index, delta: fields });

  for await (const event of events) {
    const usage = 'result' in event ? event.result.usage : event.partial.usage;
    if (!answer.hasBegun)
      yield send('message_start', {
        message: {
          ...head,
          content: [],
          stop_reason: null,
          stop_sequence: null,
          usage: { ...inputUsage(usage), output_tokens: 1 },
        },
      });
    answer.hasBegun = true;
    if ('result' in event) {
      // Clients expect a block, also in an empty answer.
      if (index < 0) yield enter('text', { type: 'text', text: '' });
      yield stop();
      const usage = { ...usageOf(event.result.usage), ...difference };
      yield send('message_delta', { delta: endOf(event.result, answer), usage });
      yield send('message_stop', {});
      return;
    }
    answer.add(event.value);
    const { reasoning, text, toolCalls = [] } = event.value;
    if (reasoning)
      yield enter('thinking', { type: 'thinking', thinking: '', signature: '' }) +
        delta({ type: 'thinking_delta', thinking: reasoning });
    if (text) yield enter('text', { type: 'text', text: '' }) + delta({ type: 'text_delta', text });
    for (const call of toolCalls) {
      const { id, name } = answer.toolCalls[call.index];
      const started = enter(call.index, { type: 'tool_use', id, name, input: {} });
      const added = call.arguments ? delta({ type: 'input_json_delta', partial_json: call.arguments }) : '';
      if (started || added) yield started + added;
    }
  }
}
