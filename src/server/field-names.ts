/** Rewrites the library's messages in the words of an API: `toolChoice` becomes `tool_choice`. */

type Replacement = readonly [RegExp, string | ((text: string) => string)];

const OPTION_NAMES =
  'toolChoice|parallelToolCalls|maxTokens|topP|topK|minP|repetitionPenalty|presencePenalty|frequencyPenalty|logitBias|ignoreEos|cacheSalt';

const snakeCase = (name: string): string => name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`);

const COMMON: readonly Replacement[] = [
  [new RegExp(`\\b(${OPTION_NAMES})\\b`, 'g'), snakeCase],
  // What the operator of the server can change.
  [/\b(?:load|open) the model with a larger context\b/g, 'start the server with a larger --context'],
  [/^(?:Load|Open) the model with a larger context\b/, 'Start the server with a larger --context'],
  [/\boverflow: 'slide'/g, '--overflow slide'],
  [/\bkvMemory\b/g, "the server's --kv-memory"],
];

const OPENAI: readonly Replacement[] = [
  [/\brender\.variables\b/g, 'chat_template_kwargs'],
  [/^schema(?=[.[\s])/, 'response_format.json_schema.schema'],
  [/\bsatisfies schema\b/g, 'satisfies response_format.json_schema.schema'],
];

const ANTHROPIC: readonly Replacement[] = [
  [/\b(tools\[\d+\])\.function\.parameters\b/g, '$1.input_schema'],
  [/\b(tools\[\d+\])\.function\./g, '$1.'],
];

/** The message as a client of the API reads it, and the field that it begins with. */
export function withFieldNames(message: string, isAnthropic = false): { message: string; param?: string } {
  const shown = [...COMMON, ...(isAnthropic ? ANTHROPIC : OPENAI)].reduce(
    (text, [pattern, replacement]) => text.replace(pattern, replacement as string),
    message,
  );
  const [param] = shown.match(/^(tools\[|response_format\.|[a-z]+_[a-z_]+\b)\S*/) ?? [];
  return { message: shown, ...(param && { param: param.replace(/[:,]$/, '') }) };
}
