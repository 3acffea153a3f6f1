/** Tools of a chat: what the model is told of them, and the grammar of its calls. */
import { describeValue, isPlainObject } from '../describe-value.ts';
import { InputError } from '../errors.ts';
import type { CallFormat } from '../model/answer-format.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Tool, ToolChoice } from './answer.ts';
import {
  character,
  choice,
  complement,
  type Expression,
  type Grammar,
  isSatisfiable,
  marker,
  optional,
  repeat,
  sequence,
  text,
} from './grammar/expression.ts';
import { colon, comma, jsonRules } from './grammar/json.ts';
import { addSchema, schemaText } from './grammar/schema.ts';

const MAX_TOOLS = 128;
const MAX_CALLS = 16;

/** Throws an InputError that names the tool and the problem. */
export function checkTools(tools: unknown, name: string): void {
  if (!Array.isArray(tools)) throw new InputError(`${name} must be an array of tools; got ${describeValue(tools)}.`);
  if (tools.length > MAX_TOOLS)
    throw new InputError(`${name} has ${tools.length} tools; at most ${MAX_TOOLS} are supported.`);
  const names = new Set<string>();
  tools.forEach((tool: unknown, i) => {
    const path = `${name}[${i}]`;
    const called = isPlainObject(tool) && tool.type === 'function' ? tool.function : undefined;
    if (!isPlainObject(called))
      throw new InputError(
        `${path} must be { type: 'function', function: { name, parameters } }; got ${describeValue(tool)}.`,
      );
    if (typeof called.name !== 'string' || !/^[\w.:-]{1,128}$/.test(called.name))
      throw new InputError(
        `${path}.function.name must be 1 to 128 letters, digits and _ . : -; got ${describeValue(called.name)}.`,
      );
    if (names.has(called.name)) throw new InputError(`${name} has two tools named ${called.name}. Rename one.`);
    names.add(called.name);
    if (called.description !== undefined && typeof called.description !== 'string')
      throw new InputError(`${path}.function.description must be a string; got ${describeValue(called.description)}.`);
    if (called.parameters !== undefined && !isPlainObject(called.parameters))
      throw new InputError(
        `${path}.function.parameters must be a JSON Schema; got ${describeValue(called.parameters)}.`,
      );
  });
}

export const isToolChoice = (value: unknown): value is ToolChoice =>
  ['auto', 'none', 'required'].includes(value as string) || (isPlainObject(value) && typeof value.name === 'string');

/** Throws an InputError if the choice asks for a tool that is not there. */
export function checkToolChoice(toolChoice: ToolChoice, tools: readonly Tool[] = []): void {
  if (toolChoice === 'auto' || toolChoice === 'none') return;
  if (tools.length === 0) throw new InputError('toolChoice asks for a tool call, but there are no tools. Pass some.');
  if (toolChoice === 'required' || tools.some(tool => tool.function.name === toolChoice.name)) return;
  const names = tools.map(tool => tool.function.name).join(', ');
  throw new InputError(`toolChoice names ${describeValue(toolChoice.name)}; the tools are ${names.slice(0, 300)}.`);
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
  if (first?.role !== 'system') return [{ role: 'system', content: described }, ...(first ? [first] : []), ...rest];
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
  /** Whether an answer may have several calls. Never with a named tool. */
  isParallel: boolean;
  format: CallFormat;
}

/** What identifies the grammar of these tools. */
export const toolsKey = (tools: readonly Tool[], use: ToolUse): string =>
  JSON.stringify([use, tools.map(({ function: { name } }, i) => [name, parametersText(tools, i)])]);

const parametersPath = (i: number): string => `tools[${i}].function.parameters`;

/** The JSON Schema of a tool's arguments, as text. Throws an InputError if it is too large, or not JSON. */
const parametersText = (tools: readonly Tool[], i: number): string =>
  schemaText(tools[i].function.parameters ?? { type: 'object', additionalProperties: false }, parametersPath(i));

/** The grammar of an answer with these tools. */
export function toolsGrammar(tools: readonly Tool[], { toolChoice, isParallel, format }: ToolUse): Grammar {
  const rules = new Map(jsonRules);
  const isNamed = typeof toolChoice === 'object';
  const calls = tools.map((tool, i): Expression | undefined => {
    const { name } = tool.function;
    const schema = { type: 'object', ...JSON.parse(parametersText(tools, i)) };
    const content = addSchema(schema, parametersPath(i), `${i}`, rules);
    return isNamed && toolChoice.name !== name ? undefined : callObject(name, content, format);
  });
  const call = choice(...calls.filter(expression => expression !== undefined));
  const maxCalls = isParallel && !isNamed ? MAX_CALLS : 1;
  const answer = format === 'llama3' ? llamaAnswer : hermesAnswer;
  const root = answer(call, maxCalls, toolChoice === 'auto');
  const grammar = { root, rules };
  if (!isSatisfiable({ root: call, rules })) throw new InputError('No arguments satisfy the parameters of the tools.');
  return grammar;
}

const callObject = (name: string, content: Expression, format: CallFormat): Expression =>
  sequence(
    ...[text('{"name"'), colon, text(JSON.stringify(name)), comma],
    ...[text(format === 'llama3' ? '"parameters"' : '"arguments"'), colon, content, text('}')],
  );

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
  const plain = sequence(character(...complement([[brace, brace]])), repeat(character(...complement([])), 0));
  return choice(calls, optional(plain));
}
