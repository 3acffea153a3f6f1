/** Arguments of calls in formats that write all values as texts: each becomes what its schema allows. */
import { satisfies } from '../engine/grammar/satisfies.ts';
import type { Spend } from '../engine/grammar/work.ts';
import { isPlainObject } from '../util/describe-value.ts';
import type { Tool } from './answer.ts';

/** As templates of Python write them. */
const LITERALS: Record<string, unknown> = { True: true, False: false, None: null };

/** What a text may mean, the most specific first. */
function meaningsOf(text: string): unknown[] {
  const literal = Object.hasOwn(LITERALS, text.trim()) ? [LITERALS[text.trim()]] : [];
  try {
    const json: unknown = JSON.parse(text);
    return typeof json === 'string' ? [text, json] : [json, text];
  } catch {
    return [...literal, text];
  }
}

/** By the parameters of the tool: `5` is a number where a number is expected, and a text where a string is. */
export function typedArguments(
  tools: readonly Tool[],
  name: string,
  values: ReadonlyMap<string, string>,
  spend: Spend,
): Record<string, unknown> {
  const parameters = tools.find(tool => tool.function.name === name)?.function.parameters ?? {};
  const known = isPlainObject(parameters.properties) ? parameters.properties : {};
  return Object.fromEntries(
    [...values].map(([key, text]) => {
      const isKnown = Object.hasOwn(known, key);
      // Within the whole schema, in which references are resolved.
      const schema = { ...parameters, required: [] };
      const meaning = isKnown
        ? meaningsOf(text).find(value => satisfies({ [key]: value }, schema, { spend }))
        : meaningsOf(text)[0];
      return [key, meaning === undefined ? text : meaning];
    }),
  );
}
