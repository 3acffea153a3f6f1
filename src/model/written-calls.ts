/**
 * Tool calls that a model writes as text, outside of its format: JSON that begins a line, bare or in a code block or tags,
 * also with braces doubled, as some templates show them. It is a call if it names a tool and its arguments are accepted.
 */
import { isPlainObject } from '../util/describe-value.ts';

export interface WrittenCall {
  name: string;
  arguments: Record<string, unknown>;
}

export interface WrittenCalls {
  /** Whether `text`, from the beginning of a line, is the beginning of a call: `maybe` until the tool's name is complete. */
  opening(text: string): Opening;
  /** The calls in a JSON text; undefined if it is something else. */
  parse(json: string): WrittenCall[] | undefined;
}

export type Opening =
  | { state: 'no' | 'maybe' }
  /** `json`: where it begins. `closers`: what ends the code block and the tags around it. */
  | { state: 'call'; json: number; closers: string[] };

const TAGS = ['tool_call', 'tools', 'tool', 'function_call', 'function'];
const FENCE = /^```[\w-]*[ \t]*\n\s*/;
const FENCE_BEGINNING = /^(?:`{1,2}|```[\w-]*[ \t]*)$/;
const TAG = new RegExp(`^<(${TAGS.join('|')})>\\s*`);
const KEYS = ['name', 'arguments', 'parameters', 'id', 'type'];

export function createWrittenCalls(names: readonly string[]): WrittenCalls {
  /** How the JSON of a call begins, without white space. */
  const heads = [
    ...names.map(name => `"name":${JSON.stringify(name)}`),
    ...names.map(name => `"function":{"name":${JSON.stringify(name)}`),
    ...['"arguments":{', '"parameters":{', '"type":"function"'],
  ].flatMap(head => ['{', '{{', '[{'].map(opening => opening + head));
  const isName = new Set(names);

  return {
    opening(text) {
      const [space] = /^\s*/.exec(text)!;
      const afterSpace = text.slice(space.length);
      const [fence = ''] = FENCE.exec(afterSpace) ?? [];
      const afterFence = afterSpace.slice(fence.length);
      const [tags = '', tag] = TAG.exec(afterFence) ?? [];
      const json = afterFence.slice(tags.length);
      const compact = json.replace(/\s+/g, '');
      if (heads.some(head => compact.startsWith(head)))
        return {
          state: 'call',
          json: text.length - json.length,
          closers: [...(tag ? [`</${tag}>`] : []), ...(fence ? ['```'] : [])],
        };
      const mayBe =
        (!fence && !tags && FENCE_BEGINNING.test(json)) ||
        (!tags && TAGS.some(name => `<${name}>`.startsWith(json))) ||
        heads.some(head => head.startsWith(compact));
      return { state: mayBe ? 'maybe' : 'no' };
    },
    parse(json) {
      for (const text of spellings(json)) {
        const calls = parseCalls(text);
        if (calls?.every(({ name }) => isName.has(name))) return calls;
      }
      return undefined;
    },
  };
}

/** The text, and what it is if its braces were doubled: the outer ones, also if they are not all closed, or all of them. */
function spellings(json: string): string[] {
  if (!json.startsWith('{{')) return [json];
  const single = json.replace(/"(?:[^"\\]|\\.)*"|\{\{|\}\}/gs, part => (part.startsWith('"') ? part : part[0]));
  return [json.slice(1, -1), json.slice(1), single];
}

/** JSON, also with line breaks in strings as they are; undefined if it is none. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {}
  // Models write line breaks in strings as they are.
  const escaped = text.replace(/"(?:[^"\\]|\\.)*"/gs, string =>
    string.replace(/[\n\r\t]/g, letter => JSON.stringify(letter).slice(1, -1)),
  );
  try {
    return JSON.parse(escaped);
  } catch {
    return undefined;
  }
}

/** The calls in a JSON text, of any tools. */
export const parseCalls = (json: string): WrittenCall[] | undefined => toCalls(parseJson(json));

function toCalls(value: unknown): WrittenCall[] | undefined {
  const list = Array.isArray(value) ? value : [value];
  const calls = list.map(toCall);
  return list.length > 0 && calls.every(call => call !== undefined) ? calls : undefined;
}

/** Also OpenAI's form, `{ type: 'function', function: { name, arguments } }`, and arguments that are JSON in a string. */
function toCall(value: unknown): WrittenCall | undefined {
  if (!isPlainObject(value)) return undefined;
  if (isPlainObject(value.function)) return toCall(value.function);
  const { name, arguments: given = value.parameters } = value;
  const args = typeof given === 'string' ? parseJson(given) : given;
  const isCall = typeof name === 'string' && isPlainObject(args) && Object.keys(value).every(key => KEYS.includes(key));
  return isCall ? { name, arguments: args } : undefined;
}

/** Reads JSON letter by letter. */
export interface JsonScanner {
  /** `end`: the value is complete with this letter. `wrong`: the letter cannot be in JSON. */
  read(letter: string): 'more' | 'end' | 'wrong';
}

export function createJsonScanner(): JsonScanner {
  let [depth, inString, escaped] = [0, false, false];
  return {
    read(letter) {
      if (escaped) escaped = false;
      else if (inString) {
        if (letter === '\\') escaped = true;
        else if (letter === '"') inString = false;
      } else if (letter === '"') inString = true;
      else if (letter === '{' || letter === '[') depth++;
      else if (letter === '}' || letter === ']') return --depth === 0 ? 'end' : 'more';
      else if (!/[\s\d,:.+\-a-zA-Z]/.test(letter)) return 'wrong';
      return 'more';
    },
  };
}
