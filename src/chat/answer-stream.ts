/** One answer of a chat: the prompt that asks for it, what its tokens must follow, and its parts as they stream. */

import type { OutputFormat } from '../engine/generate.ts';
import type { Constraint, Constraints } from '../engine/grammar/constraint.ts';
import { choice, type Grammar, marker, repeat, sequence, text } from '../engine/grammar/expression.ts';
import { satisfies } from '../engine/grammar/satisfies.ts';
import { type JsonSchema, schemaGrammar, schemaText } from '../engine/grammar/schema.ts';
import { MARKERS } from '../engine/grammar/vocabulary.ts';
import { createWorkBudget, spendHalf } from '../engine/grammar/work.ts';
import type { Result, Token } from '../engine/stream.ts';
import { type CallFormat, createAnswerParser, detectAnswerFormat, type ParserOptions } from '../model/answer-format.ts';
import type { AnswerParser } from '../model/answer-parts.ts';
import { writesTexts } from '../model/call-formats.ts';
import { CHANNEL_MARKERS, createChannelParser } from '../model/channels.ts';
import { type AnswerStart, encodeChat } from '../model/chat.ts';
import { textOf } from '../model/message.ts';
import type { ChatMessage, ChatTemplate, RenderOptions, ToolCall } from '../model/template.ts';
import type { ThinkTags } from '../model/thinking.ts';
import type { ChatTokenizer } from '../model/tokenizer.ts';
import { InputError } from '../util/errors.ts';
import type { AnswerDelta, Tool, ToolCallDelta, ToolChoice } from './answer.ts';
import { splitBegunAnswer, writeBegunAnswer } from './begun-answer.ts';
import { afterAnalysis, finalMessage } from './channel-grammar.ts';
import { shortCallIds } from './short-call-ids.ts';
import { describeTools, toolsGrammar, toolsKey, unenforcedNotice } from './tools.ts';
import { typedArguments } from './typed-arguments.ts';

/** What the answer's form depends on. */
export interface AnswerRequest {
  render?: RenderOptions;
  tools?: readonly Tool[];
  toolChoice?: ToolChoice;
  allowedTools?: readonly string[];
  parallelToolCalls?: boolean;
  schema?: JsonSchema;
  continueAnswer?: boolean;
  /** Max tokens of the prompt. */
  maxPromptTokens?: number;
}

/** Options of `encodeChat`. */
export interface EncodeChatOptions extends RenderOptions {
  /** Functions that the model may call, as in `chat`: they are part of its prompt. */
  tools?: readonly Tool[];
  toolChoice?: ToolChoice;
  /** The last message, of the assistant, is the beginning of the answer: the prompt ends with its text. Default: false. */
  continueAnswer?: boolean;
  /** A prompt with more tokens is a ContextError, which is thrown before all of it has been read. Default: no limit. */
  maxTokens?: number;
}

export interface Answer {
  prompt: number[];
  output: OutputFormat;
  parser: AnswerParser;
  /** What the caller should know of the request. */
  notices: string[];
}

interface AnswerModel {
  tokenizer: ChatTokenizer;
  template: ChatTemplate;
  constraints: Constraints;
}

export function prepareAnswer(
  model: AnswerModel,
  messages: readonly ChatMessage[],
  { render, maxPromptTokens, ...request }: AnswerRequest,
): Answer {
  const { tokenizer, constraints } = model;
  const { tools, toolChoice, continueAnswer } = request;
  const { channels, thinking } = formatOf(model);
  const callFormat = callFormatOf(model, request);
  const encoding = { ...render, tools, toolChoice, continueAnswer, maxTokens: maxPromptTokens };
  const { prompt, reasoning, begun, markers } = writePrompt(model, messages, encoding);
  // A call of Llama's begins the answer: after other text there is none.
  const isText = begun !== '' && callFormat === 'llama3';
  const asked = isText ? undefined : answerGrammar(model, request);
  const unenforced = asked?.grammar.unenforced ?? [];
  const callsTools = usesTools(request);
  const parser = channels
    ? createChannelParser(callsTools ? callableTools(request).map(tool => tool.function.name) : [])
    : createAnswerParser({
        ...(callsTools && { toolCalls: callFormat, ...callRules(request) }),
        ...{ reasoning, thinking, begun, maxCalls: request.parallelToolCalls === false ? 1 : undefined },
      });
  // It has read the headers before. Not the text: what of it may become a marker would be held back, and then repeated.
  if (channels) for (const marker of markers) parser.push(marker);
  return {
    prompt,
    parser,
    output: {
      constraint:
        asked &&
        constraints.create(`${reasoning} ${asked.key}`, () => afterReasoning(asked.grammar, reasoning, thinking)),
      markers: channels
        ? markerTokens(tokenizer, CHANNEL_MARKERS)
        : callsTools || reasoning
          ? markerTokens(tokenizer, MARKERS)
          : undefined,
    },
    notices: unenforced.length > 0 ? [unenforcedNotice(unenforced)] : [],
  };
}

/** Free text may have calls that the grammar does not know: they must satisfy what it would enforce. */
function callRules(request: AnswerRequest) {
  const { toolChoice = 'auto', parallelToolCalls = true, schema } = request;
  const called = new Map(callableTools(request).map(tool => [tool.function.name, tool.function]));
  const spend = spendHalf(createWorkBudget(), () => {
    throw new InputError('The arguments of a call take too much work to check.');
  });
  const acceptCall: ParserOptions['acceptCall'] = ({ name, arguments: given }, before) => {
    if (before > 0 && !parallelToolCalls) return false;
    const { parameters = {}, strict: isStrict = false } = called.get(name) ?? {};
    return unlessTooMuch(() => satisfies(given, parameters, { isStrict, spend }), !isStrict);
  };
  const typed: ParserOptions['typed'] = (name, values) =>
    unlessTooMuch(() => typedArguments(request.tools ?? [], name, values, spend), Object.fromEntries(values));
  const names = [...called.keys()];
  return { names, typed, ...(toolChoice === 'auto' && schema === undefined && { acceptCall }) };
}

function unlessTooMuch<T>(check: () => T, otherwise: T): T {
  try {
    return check();
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    return otherwise;
  }
}

const callableTools = ({ tools = [], allowedTools }: AnswerRequest): readonly Tool[] =>
  allowedTools ? tools.filter(tool => allowedTools.includes(tool.function.name)) : tools;

const usesTools = ({ tools, toolChoice }: Pick<AnswerRequest, 'tools' | 'toolChoice'>): boolean =>
  tools !== undefined && tools.length > 0 && toolChoice !== 'none';

/** Tools that the template does not know are called as Hermes does. */
function formatOf({ template }: Pick<AnswerModel, 'template'>) {
  const { takesTools, thinking, channels, toolCalls } = detectAnswerFormat(template.source);
  const callFormat: CallFormat = channels ? 'channels' : takesTools ? toolCalls : 'hermes';
  return { takesTools, thinking, channels, callFormat };
}

/**
 * In formats that write texts, free answers have their calls. Where a grammar must hold, calls are Hermes', whose arguments
 * are JSON.
 */
function callFormatOf(model: Pick<AnswerModel, 'template'>, request: AnswerRequest): CallFormat {
  const { callFormat } = formatOf(model);
  const { tools = [], toolChoice = 'auto', schema } = request;
  const isFree = toolChoice === 'auto' && schema === undefined && !tools.some(tool => tool.function.strict);
  return writesTexts(callFormat) && !isFree ? 'hermes' : callFormat;
}

/** Whether answers may have reasoning. */
export function knowsReasoning(template: ChatTemplate): boolean {
  const { thinking, channels } = detectAnswerFormat(template.source);
  return thinking !== undefined || channels;
}

type PromptModel = Pick<AnswerModel, 'tokenizer' | 'template'>;

/** The prompt that asks for an answer, or for the rest of one that has begun. */
export const encodePrompt = (
  model: PromptModel,
  messages: readonly ChatMessage[],
  options: EncodeChatOptions = {},
): number[] => writePrompt(model, messages, options).prompt;

/** The prompt, and where in its format the answer goes on. */
function writePrompt(
  model: PromptModel,
  messages: readonly ChatMessage[],
  { continueAnswer, ...options }: EncodeChatOptions,
) {
  const { thinking, channels } = formatOf(model);
  const [before, message] = continueAnswer ? splitBegunAnswer(messages) : [messages];
  const prompt = encodeMessages(model, before, options);
  const reasoning = thinking && (endsWith(model.tokenizer, prompt, thinking.open) ? 'open' : 'optional');
  if (!message) return { prompt, reasoning, begun: '', markers: [] } as const;
  const answerStart = writeBegunAnswer(message, { channels, reasoning, thinking });
  const [text, thought] = [textOf(message), message.reasoning_content ?? ''];
  return {
    prompt: encodeMessages(model, before, { ...options, answerStart }),
    // Text is not followed by reasoning.
    reasoning: text ? undefined : thought && thinking ? 'open' : reasoning,
    begun: text || (thinking ? thought : ''),
    markers: answerStart.flatMap(part => ('marker' in part ? [part.marker] : [])),
  } as const;
}

/** Tools that the template does not know are described in the system message. */
function encodeMessages(
  model: PromptModel,
  messages: readonly ChatMessage[],
  { tools = [], toolChoice, ...render }: EncodeChatOptions & { answerStart?: AnswerStart },
): number[] {
  const encode = (list: readonly ChatMessage[], options: typeof render) =>
    encodeChat(model.tokenizer, model.template, shortCallIds(model.template, list), options);
  if (!usesTools({ tools, toolChoice })) return encode(messages, render);
  if (!formatOf(model).takesTools) return encode(describeTools(messages, tools), render);
  return encode(messages, { ...render, variables: { ...render.variables, tools } });
}

/** The grammar that a request asks for, and its key. Throws an InputError if it cannot be enforced. */
export function answerGrammar(
  model: Pick<AnswerModel, 'template' | 'constraints'>,
  request: AnswerRequest,
): { key: string; grammar: Grammar } | undefined {
  const { tools = [], toolChoice = 'auto', allowedTools, parallelToolCalls, schema } = request;
  const { constraints } = model;
  const { channels } = formatOf(model);
  const format = callFormatOf(model, request);
  if (usesTools({ tools, toolChoice })) {
    // Free text, and calls by name: the parser takes them from any channel.
    const isStrict = tools.some(tool => tool.function.strict);
    if ((channels && toolChoice === 'auto' && schema === undefined && !isStrict) || writesTexts(format))
      return undefined;
    const isParallel = parallelToolCalls ?? toolChoice === 'auto';
    const use = { toolChoice, allowedTools, isParallel, format, schema };
    const key = toolsKey(tools, use);
    return { key, grammar: constraints.grammar(key, () => toolsGrammar(tools, use)) };
  }
  if (schema === undefined) return undefined;
  const key = schemaText(schema, 'schema');
  if (!channels) return { key, grammar: constraints.grammar(key, () => schemaGrammar(schema)) };
  const inFinalChannel = () => {
    const { root, ...rest } = schemaGrammar(schema);
    return { root: afterAnalysis(finalMessage(root)), ...rest };
  };
  return { key: `channels ${key}`, grammar: constraints.grammar(`channels ${key}`, inFinalChannel) };
}

/** The constraint of a text without a chat. */
export const constrainText = (constraints: Constraints, schema: JsonSchema | undefined): Constraint | undefined =>
  schema && constraints.create(schemaText(schema, 'schema'), () => schemaGrammar(schema));

/** Whether the prompt ends with `<think>`: the template has opened the reasoning. */
const endsWith = (tokenizer: ChatTokenizer, prompt: readonly number[], open: string): boolean =>
  tokenizer.decode(prompt.slice(-8), { includeSpecialTokens: true }).trimEnd().endsWith(open);

/** Reasoning is free text; what follows it is not. */
function afterReasoning(
  { root, rules }: Grammar,
  reasoning: ParserOptions['reasoning'],
  thinking?: ThinkTags,
): Grammar {
  if (!reasoning || !thinking) return { root, rules };
  const thought = sequence({ kind: 'until', marker: thinking.close }, repeat(text('\n'), 0, 2), root);
  return { root: reasoning === 'open' ? thought : choice(sequence(marker(thinking.open), thought), root), rules };
}

/** The markers that are control tokens, which have no text of their own. */
function markerTokens(tokenizer: ChatTokenizer, names: readonly string[]): ReadonlyMap<number, string> {
  return new Map(
    names.flatMap((name): [number, string][] => {
      const [id, ...more] = tokenizer.encode(name, { parseSpecialTokens: true });
      return more.length === 0 && tokenizer.tokenBytes(id).length === 0 ? [[id, name]] : [];
    }),
  );
}

/** Takes the answer apart, and keeps `result` up to date with its parts. */
export async function* streamParts(
  stream: AsyncIterable<Token>,
  parser: AnswerParser,
  result: Result,
): AsyncGenerator<AnswerDelta, void, void> {
  let tokens: Token[] = [];
  const answer = { text: '', reasoning: '', toolCalls: [] as (ToolCall & { function: { arguments: string } })[] };

  const add = (part: ReturnType<AnswerParser['end']>): AnswerDelta | undefined => {
    answer.text += part.text;
    answer.reasoning += part.reasoning;
    const toolCalls = part.calls.map(({ index, name, arguments: more = '' }): ToolCallDelta => {
      if (name === undefined) answer.toolCalls[index].function.arguments += more;
      else answer.toolCalls[index] = { id: callId(), type: 'function', function: { name, arguments: more } };
      return {
        index,
        ...(name !== undefined && { id: answer.toolCalls[index].id, name }),
        ...(more && { arguments: more }),
      };
    });
    result.text = answer.text;
    if (answer.reasoning) result.reasoning = answer.reasoning;
    if (answer.toolCalls.length > 0) result.toolCalls = answer.toolCalls;
    if (!part.text && !part.reasoning && toolCalls.length === 0) return undefined;
    const delta = {
      ...(part.text && { text: part.text }),
      ...(part.reasoning && { reasoning: part.reasoning }),
      ...(toolCalls.length > 0 && { toolCalls }),
      tokens,
    };
    tokens = [];
    return delta;
  };

  for await (const token of stream) {
    tokens.push(token);
    const delta = add(parser.push(token.text));
    if (delta) yield delta;
  }
  const last = add(parser.end());
  if (result.toolCalls && result.finish === 'stop') result.finish = 'tool_calls';
  if (last ?? tokens.length > 0) yield last ?? { tokens };
}

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

/** The id of a tool call, as OpenAI's API writes them. */
const callId = (): string =>
  `call_${Array.from(crypto.getRandomValues(new Uint8Array(24)), byte => LETTERS[byte % LETTERS.length]).join('')}`;

/** An answer as a message of the conversation. */
export function answerMessage({ text, reasoning, toolCalls }: Result): ChatMessage {
  return {
    role: 'assistant',
    content: toolCalls && text === '' ? null : text,
    ...(reasoning && { reasoning_content: reasoning }),
    ...(toolCalls && { tool_calls: toolCalls }),
  };
}
