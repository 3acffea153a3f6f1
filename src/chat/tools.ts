/** Tools of a chat: what the model is told of them, and the grammar of its calls. */

import {
  character,
  choice,
  complement,
  type Expression,
  type Grammar,
  marker,
  optional,
  repeat,
  sequence,
  text,
} from '../engine/grammar/expression.ts';
import { anyObject, colon, comma, jsonRules } from '../engine/grammar/json.ts';
import { addSchema, type JsonSchema, type SchemaOptions, schemaGrammar, schemaText } from '../engine/grammar/schema.ts';
import { createWorkBudget } from '../engine/grammar/work.ts';
import type { CallFormat } from '../model/answer-format.ts';
import type { ChatMessage } from '../model/template.ts';
import { describeValue, isPlainObject } from '../util/describe-value.ts';
import { InputError, optionError } from '../util/errors.ts';
import type { Tool, ToolChoice } from './answer.ts';
import { afterAnalysis, callMessage, finalMessage } from './channel-grammar.ts';

/** Names of tools, as MCP servers have them. */
export const TOOL_NAME = /^[\w.:/-]{1,128}$/;
export const TOOL_NAME_RULE = '1 to 128 letters, digits and _ . : / -';

const MAX_TOOLS = 128;
const MAX_CALLS = 16;
/** Keywords that a notice names. */
const MAX_NAMED = 8;

/** Throws an InputError that names the tool and the problem. */
export function checkTools(tools: unknown, name: string): void {
  if (!Array.isArray(tools)) refuse(name, `must be an array of tools; got ${describeValue(tools)}.`);
  if (tools.length > MAX_TOOLS) refuse(name, `has ${tools.length} tools; at most ${MAX_TOOLS} are supported.`);
  const names = new Set<string>();
  for (const [i, tool] of tools.entries()) {
    const path = `${name}[${i}]`;
    const called = isPlainObject(tool) && tool.type === 'function' ? tool.function : undefined;
    if (!isPlainObject(called))
      refuse(path, `must be { type: 'function', function: { name, parameters } }; got ${describeValue(tool)}.`);
    const must = (isValid: boolean, key: string, what: string) =>
      isValid || refuse(`${path}.function.${key}`, `must be ${what}; got ${describeValue(called[key])}.`);
    const { name: given, description, parameters } = called;
    must(typeof given === 'string' && TOOL_NAME.test(given), 'name', TOOL_NAME_RULE);
    if (names.has(given as string)) refuse(`${path}.function.name`, `is ${given}, as another tool's. Rename one.`);
    names.add(given as string);
    must(description === undefined || typeof description === 'string', 'description', 'a string');
    must(parameters === undefined || isPlainObject(parameters), 'parameters', 'a JSON Schema');
  }
}

function refuse(path: string, reason: string): never {
  throw optionError(path, reason);
}

export const isToolChoice = (value: unknown): value is ToolChoice =>
  ['auto', 'none', 'required'].includes(value as string) || (isPlainObject(value) && typeof value.name === 'string');

/** Throws an InputError if the choice asks for a tool that is not there. */
export function checkToolChoice(toolChoice: ToolChoice, tools: readonly Tool[] = []): void {
  if (toolChoice === 'auto' || toolChoice === 'none') return;
  if (tools.length === 0) refuse('toolChoice', 'asks for a tool call, but there are no tools. Pass some.');
  if (toolChoice === 'required' || tools.some(tool => tool.function.name === toolChoice.name)) return;
  const names = tools.map(tool => tool.function.name).join(', ');
  refuse('toolChoice', `names ${describeValue(toolChoice.name)}; the tools are ${names.slice(0, 300)}.`);
}

/** Throws an InputError if an answer may call a tool that is not there, or must call one that it may not. */
export function checkAllowedTools(
  allowed: readonly string[] | undefined,
  toolChoice: ToolChoice,
  tools: readonly Tool[] = [],
): void {
  const names = tools.map(tool => tool.function.name);
  const unknown = allowed?.find(name => !names.includes(name));
  const known = names.length > 0 ? `the tools are ${names.join(', ').slice(0, 300)}` : 'there are no tools';
  if (unknown !== undefined) refuse('allowedTools', `names ${describeValue(unknown)}; ${known}.`);
  if (typeof toolChoice === 'object' && allowed && !allowed.includes(toolChoice.name))
    refuse('toolChoice', `names ${describeValue(toolChoice.name)}, which is not one of allowedTools.`);
}

/** Messages for a template that does not know tools: the system message describes them, and calls are text. */
export function describeTools(messages: readonly ChatMessage[], tools: readonly Tool[]): ChatMessage[] {
  const described = [
    'You can call functions to answer. Their signatures:',
    '<tools>',
    ...tools.map(tool => JSON.stringify(tool)),
    '</tools>',
    'To call one, answer with its name and arguments as JSON:',
    '<tool_call>',
    '{"name": "<function-name>", "arguments": <arguments-as-object>}',
    '</tool_call>',
  ].join('\n');
  const [first, ...rest] = messages.map(withCallsAsText);
  if (first?.role !== 'system' && first?.role !== 'developer')
    return [{ role: 'system', content: described }, ...(first ? [first] : []), ...rest];
  return [{ ...first, content: `${contentText(first)}\n\n${described}` }, ...rest];
}

function withCallsAsText(message: ChatMessage): ChatMessage {
  const { tool_calls, ...rest } = message;
  if (message.role === 'tool')
    return { role: 'user', content: `<tool_response>\n${contentText(message)}\n</tool_response>` };
  if (!tool_calls?.length) return message;
  const calls = tool_calls.map(({ function: { name, arguments: given } }) => {
    const json = typeof given === 'string' ? given : JSON.stringify(given);
    return `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${json}}\n</tool_call>`;
  });
  return { ...rest, content: [contentText(message), ...calls].filter(part => part !== '').join('\n') };
}

const contentText = ({ content }: ChatMessage): string =>
  typeof content === 'string' ? content : (content?.map(part => part.text).join('\n') ?? '');

/** How an answer may use the tools. */
export interface ToolUse {
  toolChoice: ToolChoice;
  /** Names of those that may be called. Default: all. */
  allowedTools?: readonly string[];
  /** Whether an answer may have several calls. Never with a named tool. */
  isParallel: boolean;
  /** One whose arguments are JSON. */
  format: CallFormat;
  /** What an answer without a call must satisfy. Default: it is any text. */
  schema?: JsonSchema;
}

/** What identifies the grammar of these tools. */
export const toolsKey = (tools: readonly Tool[], use: ToolUse): string =>
  JSON.stringify([
    { ...use, schema: use.schema && schemaText(use.schema, 'schema') },
    tools.map(({ function: { name, strict } }, i) => [name, strict === true, parametersText(tools, i)]),
  ]);

const parametersPath = (i: number): string => `tools[${i}].function.parameters`;

/**
 * The JSON Schema of a tool's arguments, as text. Too large: an InputError if the tool is strict, otherwise undefined, and
 * its arguments are any object.
 */
function parametersText(tools: readonly Tool[], i: number): string | undefined {
  const { parameters = { type: 'object', additionalProperties: false }, strict } = tools[i].function;
  try {
    return schemaText(parameters, parametersPath(i));
  } catch (error) {
    if (strict || !(error instanceof InputError)) throw error;
    return undefined;
  }
}

/** Keywords in the parameters of tools that calls need not satisfy, by their paths. Of strict tools, an InputError. */
export function unenforcedKeywords(tools: readonly Tool[]): string[] {
  const [unenforced, budget] = [new Set<string>(), createWorkBudget()];
  for (const i of tools.keys()) argumentsOf(tools, i, { rules: new Map(), unenforced, budget });
  return [...unenforced];
}

/** What a caller is told of keywords that are not enforced. */
export function unenforcedNotice(paths: readonly string[]): string {
  const more = paths.length > MAX_NAMED ? ` and ${paths.length - MAX_NAMED} more` : '';
  return `Calls need not satisfy ${paths.slice(0, MAX_NAMED).join(', ')}${more}: check their arguments.`;
}

/** The expression of a tool's arguments. Any object, if the schema cannot be followed. */
function argumentsOf(
  tools: readonly Tool[],
  i: number,
  { unenforced, ...options }: Required<Omit<SchemaOptions, 'name'>>,
): Expression {
  const name = parametersPath(i);
  const { strict } = tools[i].function;
  const json = parametersText(tools, i);
  try {
    if (json !== undefined)
      return addSchema(
        { ...JSON.parse(json), type: 'object' },
        { ...options, name, unenforced: strict ? undefined : unenforced },
      );
  } catch (error) {
    if (strict || !(error instanceof InputError)) throw error;
  }
  unenforced.add(name);
  return anyObject;
}

/** The grammar of an answer with these tools. */
export function toolsGrammar(tools: readonly Tool[], use: ToolUse): Grammar {
  const { toolChoice, allowedTools, isParallel, format, schema } = use;
  const rules = new Map(jsonRules);
  const [unenforced, budget] = [new Set<string>(), createWorkBudget()];
  const isNamed = typeof toolChoice === 'object';
  const calls = tools.map((tool, i): Expression | undefined => {
    const { name } = tool.function;
    const content = argumentsOf(tools, i, { rules, unenforced, budget });
    const isAllowed = isNamed ? toolChoice.name === name : (allowedTools?.includes(name) ?? true);
    if (!isAllowed) return undefined;
    if (format === 'channels') return callMessage(name, content);
    return format === 'mistral' ? mistralCall(name, content) : callObject(name, content, format);
  });
  const call = choice(...calls.filter(expression => expression !== undefined));
  const maxCalls = isParallel && !isNamed ? MAX_CALLS : 1;
  const answer = answers[format];
  const root = answer(call, maxCalls, toolChoice === 'auto' && schema === undefined);
  const inFormat = (root: Expression) => ({
    root: format === 'channels' ? afterAnalysis(root) : root,
    rules,
    unenforced: [...unenforced],
  });
  if (toolChoice !== 'auto' || schema === undefined) return inFormat(root);
  const instead = schemaGrammar(schema, 'schema', budget);
  for (const [key, expression] of instead.rules) rules.set(key, expression);
  return inFormat(choice(root, format === 'channels' ? finalMessage(instead.root) : instead.root));
}

const callObject = (name: string, content: Expression, format: CallFormat): Expression =>
  sequence(
    ...[text('{"name"'), colon, text(JSON.stringify(name)), comma],
    ...[text(format === 'llama3' ? '"parameters"' : '"arguments"'), colon, content, text('}')],
  );

/** `name[ARGS]{...}`, with an id in some versions. */
function mistralCall(name: string, content: Expression): Expression {
  const id = sequence(marker('[CALL_ID]'), repeat(character([48, 57], [65, 90], [97, 122]), 9, 9));
  return sequence(text(name), optional(id), marker('[ARGS]'), content);
}

const anyText = repeat(character(...complement([])), 0);

const channelsAnswer = (call: Expression, _: number, mayTalk: boolean): Expression =>
  mayTalk ? choice(call, finalMessage(anyText)) : call;

const newline = optional(text('\n'));

function hermesAnswer(call: Expression, maxCalls: number, mayTalk: boolean): Expression {
  const body = sequence(newline, call, newline, marker('</tool_call>'));
  if (mayTalk) return { kind: 'freeText', marker: '<tool_call>', after: body, once: maxCalls === 1 };
  const whole = sequence(marker('<tool_call>'), body);
  return sequence(whole, repeat(sequence(newline, whole), 0, maxCalls - 1));
}

function llamaAnswer(call: Expression, maxCalls: number, mayTalk: boolean): Expression {
  const tagged = sequence(optional(marker('<|python_tag|>')), call);
  const calls = sequence(tagged, repeat(sequence(text('; '), call), 0, maxCalls - 1));
  if (!mayTalk) return calls;
  const brace = '{'.charCodeAt(0);
  // An answer that begins with a brace is a call.
  const plain = sequence(character(...complement([[brace, brace]])), anyText);
  return choice(calls, optional(plain));
}

function mistralAnswer(call: Expression, maxCalls: number, mayTalk: boolean): Expression {
  if (mayTalk) return { kind: 'freeText', marker: '[TOOL_CALLS]', after: call, once: maxCalls === 1 };
  return repeat(sequence(marker('[TOOL_CALLS]'), call), 1, maxCalls);
}

function mistralListAnswer(call: Expression, maxCalls: number, mayTalk: boolean): Expression {
  const list = sequence(text('['), call, repeat(sequence(comma, call), 0, maxCalls - 1), text(']'));
  if (mayTalk) return { kind: 'freeText', marker: '[TOOL_CALLS]', after: list, once: true };
  return sequence(marker('[TOOL_CALLS]'), list);
}

const answers: Record<CallFormat, (call: Expression, maxCalls: number, mayTalk: boolean) => Expression> = {
  ...{ llama3: llamaAnswer, hermes: hermesAnswer, channels: channelsAnswer },
  ...{ mistral: mistralAnswer, 'mistral-list': mistralListAnswer },
  // Free, without a grammar.
  ...{ 'seed-oss': hermesAnswer, 'qwen3-coder': hermesAnswer, glm: hermesAnswer },
};
