/** Chat messages in OpenAI's format: validation, and conversion for templates. */
import { describeValue, isPlainObject } from '../util/describe-value.ts';
import { InputError, UnsupportedError } from '../util/errors.ts';

export interface TextPart {
  type: 'text';
  text: string;
}

export interface ToolCall {
  id?: string;
  type?: string;
  function: {
    name: string;
    /** JSON text, as OpenAI's API writes it, or the object itself. */
    arguments: string | Record<string, unknown>;
  };
}

/** Other keys are passed to the template unchanged. */
export interface ChatMessage {
  /**
   * `system`, `developer`, `user`, `assistant`, `tool`, or any other role that the model's template knows. `developer` is
   * `system` to a template that does not know it.
   */
  role: string;
  /** Parts are joined by line breaks. `null` in a message that only has tool calls. */
  content: string | readonly TextPart[] | null;
  name?: string;
  /** The model's reasoning before its answer, for templates that use it. */
  reasoning_content?: string;
  tool_calls?: readonly ToolCall[];
  /** In a `tool` message: the id of the call that it answers. */
  tool_call_id?: string;
}

/** Throws an InputError that names the first invalid message and the problem. */
export function checkMessages(messages: unknown): asserts messages is readonly ChatMessage[] {
  if (!Array.isArray(messages))
    throw new InputError(
      `Messages must be an array, such as [{ role: 'user', content: 'Hi' }]; got ${describeValue(messages)}.`,
    );
  messages.forEach(checkMessage);
  visitStrings(messages, 'messages', () => {});
}

function checkMessage(message: unknown, index: number): void {
  const path = `messages[${index}]`;
  if (!isPlainObject(message))
    throw new InputError(`${path} must be an object with a role and a content; got ${describeValue(message)}.`);
  if (typeof message.role !== 'string' || message.role === '')
    throw new InputError(`${path}.role must be a string, such as 'user'; got ${describeValue(message.role)}.`);
  const calls = message.tool_calls ?? [];
  if (!Array.isArray(calls)) throw new InputError(`${path}.tool_calls must be an array; got ${describeValue(calls)}.`);
  calls.forEach((call, i) => {
    checkToolCall(call, `${path}.tool_calls[${i}]`);
  });
  if (calls.length === 0 || (message.content !== null && message.content !== undefined))
    checkContent(message.content, `${path}.content`);
  for (const key of ['name', 'tool_call_id']) {
    const value = message[key] ?? '';
    if (typeof value !== 'string')
      throw new InputError(`${path}.${key} must be a string; got ${describeValue(value)}.`);
  }
}

/** Checks the content of a message: a string, or text parts. */
export function checkContent(content: unknown, path = 'content'): asserts content is string | readonly TextPart[] {
  if (typeof content === 'string') return;
  if (!Array.isArray(content))
    throw new InputError(`${path} must be a string, or an array of text parts; got ${describeValue(content)}.`, {
      option: path,
    });
  content.forEach((part, i) => {
    const type: unknown = isPlainObject(part) ? part.type : undefined;
    if (typeof type === 'string' && type !== 'text')
      throw new UnsupportedError(
        `${path}[${i}] has the type '${type.slice(0, 60)}', which is not supported: only text is.`,
        { option: `${path}[${i}]` },
      );
    if (type !== 'text' || typeof part.text !== 'string')
      throw new InputError(`${path}[${i}] must be { type: 'text', text: '...' }; got ${describeValue(part)}.`, {
        option: `${path}[${i}]`,
      });
  });
}

function checkToolCall(call: unknown, path: string): void {
  const called = isPlainObject(call) ? call.function : undefined;
  if (!isPlainObject(called))
    throw new InputError(
      `${path} must be { type: 'function', function: { name, arguments } }; its function is ${describeValue(called)}.`,
    );
  if (typeof called.name !== 'string')
    throw new InputError(`${path}.function.name must be a string; got ${describeValue(called.name)}.`);
  if (typeof called.arguments !== 'string' && !isPlainObject(called.arguments))
    throw new InputError(
      `${path}.function.arguments must be JSON text or an object; got ${describeValue(called.arguments)}.`,
    );
}

/** The content of a message as one string. */
export const textOf = ({ content }: Pick<ChatMessage, 'content'>): string =>
  typeof content === 'string' ? content : (content?.map(part => part.text).join('\n') ?? '');

/**
 * Converts messages for templates: content becomes one string (or null), and the arguments of tool calls become
 * objects, since most templates write `arguments | tojson`, which would quote JSON text a second time.
 */
export function templateMessages(messages: readonly ChatMessage[]): Record<string, unknown>[] {
  checkMessages(messages);
  return messages.map(({ role, content, tool_calls, ...rest }) => ({
    role,
    content: content === null || content === undefined ? null : textOf({ content }),
    // gpt-oss's name for it, which transformers adds, too. Its template rejects a call with both this and content.
    ...(rest.reasoning_content && !(content && tool_calls?.length) && { thinking: rest.reasoning_content }),
    ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)),
    // Some templates test whether the key exists.
    ...(tool_calls && { tool_calls: tool_calls.map(withParsedArguments) }),
  }));
}

function withParsedArguments(call: ToolCall): ToolCall {
  const { arguments: args } = call.function;
  return {
    ...call,
    function: { ...call.function, arguments: typeof args === 'string' ? parseJsonObject(args) : args },
  };
}

/** Parses a JSON object; any other text is returned unchanged. */
function parseJsonObject(json: string): string | Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(json);
    return isPlainObject(value) ? value : json;
  } catch {
    return json;
  }
}

const MAX_DEPTH = 64;
const MAX_VALUES = 1_000_000;

/** Visits every string in JSON-like data, including keys. Other values, and cyclic data, are an InputError. */
export function visitStrings(data: unknown, what: string, visit: (text: string) => void): void {
  let values = 0;
  const walk = (value: unknown, path: string, depth: number): void => {
    if (depth > MAX_DEPTH)
      throw new InputError(`${what} nest deeper than ${MAX_DEPTH} levels, or contain themselves. Flatten them.`);
    // Data with shared parts can be small in memory and take forever to walk.
    if (++values > MAX_VALUES)
      throw new InputError(`${what} contain more than ${MAX_VALUES} values, or contain themselves. Pass fewer.`);
    if (typeof value === 'string') visit(value);
    else if (Array.isArray(value)) for (const [i, item] of value.entries()) walk(item, `${path}[${i}]`, depth + 1);
    else if (isPlainObject(value))
      for (const [key, item] of Object.entries(value)) {
        visit(key);
        walk(item, `${path}.${key}`, depth + 1);
      }
    else if (!['number', 'boolean', 'undefined'].includes(typeof value) && value !== null)
      throw new InputError(
        `${path} must be a string, number, boolean, null, array or plain object; got ${describeValue(value)}.`,
      );
  };
  walk(data, what, 0);
}
