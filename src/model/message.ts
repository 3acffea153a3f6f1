/** Chat messages in OpenAI's shape: what is accepted, and how a template gets to see them. */
import { describe, isPlainObject } from '../describe.ts';
import { InputError, UnsupportedError } from '../errors.ts';

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

/** Keys beside these reach the template as they are. */
export interface ChatMessage {
  /** `system`, `developer`, `user`, `assistant`, `tool`, or whatever else the model's template knows. */
  role: string;
  /** Parts are joined by line breaks. `null` in a message whose tool calls say everything. */
  content: string | readonly TextPart[] | null;
  name?: string;
  /** What the model thought before it answered, for templates that keep it. */
  reasoning_content?: string;
  tool_calls?: readonly ToolCall[];
  /** In a message of the role `tool`: the call that this is the result of. */
  tool_call_id?: string;
}

/** Throws an InputError that names the first message that is wrong, and what is. */
export function checkMessages(messages: unknown): asserts messages is readonly ChatMessage[] {
  if (!Array.isArray(messages))
    throw new InputError(
      `Messages are an array, such as [{ role: 'user', content: 'Hi' }]; got ${describe(messages)}.`,
    );
  messages.forEach(checkMessage);
  eachText(messages, 'messages', () => {});
}

function checkMessage(message: unknown, index: number): void {
  const at = `messages[${index}]`;
  if (!isPlainObject(message))
    throw new InputError(`${at} must be an object with a role and a content; got ${describe(message)}.`);
  if (typeof message.role !== 'string' || message.role === '')
    throw new InputError(`${at}.role must be a text, such as 'user'; got ${describe(message.role)}.`);
  const calls = message.tool_calls ?? [];
  if (!Array.isArray(calls)) throw new InputError(`${at}.tool_calls must be an array; got ${describe(calls)}.`);
  calls.forEach((call, i) => {
    checkToolCall(call, `${at}.tool_calls[${i}]`);
  });
  if (calls.length === 0 || (message.content !== null && message.content !== undefined))
    checkContent(message.content, `${at}.content`);
  for (const key of ['name', 'tool_call_id']) {
    const value = message[key] ?? '';
    if (typeof value !== 'string') throw new InputError(`${at}.${key} must be a text; got ${describe(value)}.`);
  }
}

/** The content of a message: a text, or parts that are texts. */
export function checkContent(content: unknown, at = 'content'): asserts content is string | readonly TextPart[] {
  if (typeof content === 'string') return;
  if (!Array.isArray(content))
    throw new InputError(`${at} must be a text, or an array of text parts; got ${describe(content)}.`);
  content.forEach((part, i) => {
    const type: unknown = isPlainObject(part) ? part.type : undefined;
    if (typeof type === 'string' && type !== 'text')
      throw new UnsupportedError(
        `${at}[${i}] is of the type '${type.slice(0, 60)}'. Only text is read: images, sound and files are not supported.`,
      );
    if (type !== 'text' || typeof part.text !== 'string')
      throw new InputError(`${at}[${i}] must be { type: 'text', text: '...' }; got ${describe(part)}.`);
  });
}

function checkToolCall(call: unknown, at: string): void {
  const called = isPlainObject(call) ? call.function : undefined;
  if (!isPlainObject(called))
    throw new InputError(
      `${at} must be { type: 'function', function: { name, arguments } }; its function is ${describe(called)}.`,
    );
  if (typeof called.name !== 'string')
    throw new InputError(`${at}.function.name must be a text; got ${describe(called.name)}.`);
  if (typeof called.arguments !== 'string' && !isPlainObject(called.arguments))
    throw new InputError(`${at}.function.arguments must be JSON text or an object; got ${describe(called.arguments)}.`);
}

/**
 * Messages as templates expect them: content is one text (or null), and the arguments of tool calls are objects. Most
 * templates write `arguments | tojson`, which would quote JSON text a second time.
 */
export function templateMessages(messages: readonly ChatMessage[]): Record<string, unknown>[] {
  checkMessages(messages);
  return messages.map(({ role, content, tool_calls, ...rest }) => ({
    role,
    content: typeof content === 'string' ? content : (content?.map(part => part.text).join('\n') ?? null),
    ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)),
    // Some templates ask whether the key is there.
    ...(tool_calls && { tool_calls: tool_calls.map(withObject) }),
  }));
}

function withObject(call: ToolCall): ToolCall {
  const given = call.function.arguments;
  return { ...call, function: { ...call.function, arguments: typeof given === 'string' ? parsed(given) : given } };
}

/** The object that a JSON text holds; any other text stays what it is. */
function parsed(json: string): string | Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(json);
    return isPlainObject(value) ? value : json;
  } catch {
    return json;
  }
}

const MAX_DEPTH = 64;
const MAX_VALUES = 1_000_000;

/**
 * Visits every text in some data, keys included. Data is what JSON can hold; anything else, such as data that contains
 * itself, is an InputError.
 */
export function eachText(data: unknown, what: string, visit: (text: string) => void): void {
  let values = 0;
  const walk = (value: unknown, at: string, depth: number): void => {
    if (depth > MAX_DEPTH)
      throw new InputError(`${what} nest deeper than ${MAX_DEPTH} levels, or contain themselves. Give less depth.`);
    // Data that shares its parts can be small in memory and endless to walk.
    if (++values > MAX_VALUES)
      throw new InputError(`${what} hold more than ${MAX_VALUES} values, or contain themselves. Give fewer.`);
    if (typeof value === 'string') visit(value);
    else if (Array.isArray(value)) for (const [i, item] of value.entries()) walk(item, `${at}[${i}]`, depth + 1);
    else if (isPlainObject(value))
      for (const [key, item] of Object.entries(value)) {
        visit(key);
        walk(item, `${at}.${key}`, depth + 1);
      }
    else if (!['number', 'boolean', 'undefined'].includes(typeof value) && value !== null)
      throw new InputError(
        `${at} must be a text, number, boolean, null, array or plain object; got ${describe(value)}.`,
      );
  };
  walk(data, what, 0);
}
