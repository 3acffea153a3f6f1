/** Formats of tool calls that are more than JSON in tags: how a call begins, and what its text says. */
import { isPlainObject } from '../util/describe-value.ts';
import { parseCalls, parseJson } from './written-calls.ts';

/** A call; its arguments as values, or as the texts that the format has for them. */
export interface FormatCall {
  name: string;
  arguments: Record<string, unknown> | ReadonlyMap<string, string>;
}

interface Format {
  /** What the templates of this format have, and no others. */
  readonly sign: RegExp;
  /** What a call of a tool may begin with, white space aside. */
  heads(name: string): string[];
  /** The last letter of a call. */
  readonly last: string;
  /** What may follow a call, and is dropped. */
  readonly closers: readonly string[];
  /** The calls that a text is; undefined if it is not complete. */
  parse(text: string): FormatCall[] | undefined;
}

/** Of `<function=name>`, with one parameter per tag. `padding`: around each value. */
const functionTags = (tag: string, sign: RegExp, padding: string): Format => ({
  sign,
  // Qwen3-Coder leaves out the tag around it at times.
  heads: name => [`<${tag}><function=${name}>`, `<function=${name}>`],
  last: '>',
  closers: [`</${tag}>`],
  parse(text) {
    const [, name, body] = /<function=([^>\s]+)>([\s\S]*)<\/function>$/.exec(text) ?? [];
    return callOf(name, body, /<parameter=([^>\n]+)>([\s\S]*?)<\/parameter>\s*(?=<parameter=|$)/g, padding);
  },
});

export const callFormats = {
  /** `[TOOL_CALLS]name[ARGS]{...}`: Mistral Small 3.2, Magistral, Devstral, Ministral 3. */
  mistral: {
    sign: /\[TOOL_CALLS\][\s\S]*\[ARGS\]/,
    heads: name => ['[ARGS]', '[CALL_ID]', '{'].map(next => `[TOOL_CALLS]${name}${next}`),
    last: '}',
    closers: [],
    parse(text) {
      const [, name, json] =
        /^\[TOOL_CALLS\]\s*([^\s[{]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(\{[\s\S]*\})$/.exec(text) ?? [];
      const given = json === undefined ? undefined : parseJson(json);
      return isPlainObject(given) ? [{ name, arguments: given }] : undefined;
    },
  },
  /** `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`: Mistral 7B v0.3, Nemo, Small 3. */
  'mistral-list': {
    sign: /\[TOOL_CALLS\]/,
    heads: name => [`"name":"${name}"`, '"arguments":{', '"id":"'].map(key => `[TOOL_CALLS][{${key}`),
    last: ']',
    closers: [],
    parse: text => parseCalls(text.slice(text.indexOf(']') + 1).trim()),
  },
  'seed-oss': functionTags('seed:tool_call', /<seed:tool_call>/, ''),
  'qwen3-coder': functionTags('tool_call', /<tool_call>[\s\S]*<function=/, '\n'),
  /** `<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>`: GLM-4.5 to 4.7. */
  glm: {
    sign: /<arg_key>/,
    heads: name => ['<arg_key>', '</tool_call>'].map(next => `<tool_call>${name}${next}`),
    last: '>',
    closers: [],
    parse(text) {
      const [, name, body] = /^<tool_call>\s*([^\s<]+)\s*([\s\S]*)<\/tool_call>$/.exec(text) ?? [];
      const pair = /<arg_key>([\s\S]*?)<\/arg_key>\s*<arg_value>([\s\S]*?)<\/arg_value>\s*(?=<arg_key>|$)/g;
      return callOf(name, body, pair, '');
    },
  },
} satisfies Record<string, Format>;

export type TextCallFormat = keyof typeof callFormats;

/** Formats whose arguments are texts: no grammar enforces their types. */
export const writesTexts = (format: string): boolean => ['seed-oss', 'qwen3-coder', 'glm'].includes(format);

export const isTextCallFormat = (format: string | undefined): format is TextCallFormat =>
  format !== undefined && Object.hasOwn(callFormats, format);

/** The format of a template's source. */
export const detectCallFormat = (template: string): TextCallFormat | undefined =>
  (Object.keys(callFormats) as TextCallFormat[]).find(name => callFormats[name].sign.test(template));

/** A call whose body is nothing but pairs of keys and values; undefined if there is more. */
function callOf(name: string | undefined, body: string, pair: RegExp, padding: string): FormatCall[] | undefined {
  if (name === undefined) return undefined;
  const values = new Map<string, string>();
  const rest = body.trim().replace(pair, (_, key: string, value: string) => {
    const from = value.startsWith(padding) ? padding.length : 0;
    const to = value.length - (value.length > from && value.endsWith(padding) ? padding.length : 0);
    values.set(key.trim(), value.slice(from, to));
    return '';
  });
  return rest === '' ? [{ name, arguments: values }] : undefined;
}

/** What a parser needs of a format, for tools of these names. */
export function createCallReader(format: TextCallFormat, names: readonly string[]) {
  const { heads, last, closers, parse }: Format = callFormats[format];
  const all = names.flatMap(heads);
  const isName = new Set(names);
  return {
    closers,
    /** Whether a text is the beginning of a call: `maybe` until its tool is known. */
    opening(text: string): 'no' | 'maybe' | 'call' {
      const compact = text.replace(/\s+/g, '');
      if (all.some(head => compact.startsWith(head))) return 'call';
      return all.some(head => head.startsWith(compact)) ? 'maybe' : 'no';
    },
    /** The calls that the text is, if it is complete and all are of these tools. */
    parse(text: string): FormatCall[] | undefined {
      const calls = text.endsWith(last) ? parse(text) : undefined;
      return calls?.every(({ name }) => isName.has(name)) ? calls : undefined;
    },
  };
}
