/** Rewrites the library's messages for the CLI: `maxTokens` becomes `--max-tokens`. */

/** Option names that are not English words: safe to replace anywhere. */
const UNIQUE_NAMES: Record<string, string> = {
  maxTokens: '--max-tokens',
  topK: '--top-k',
  topP: '--top-p',
  minP: '--min-p',
  repetitionPenalty: '--repetition-penalty',
  contextMemory: '--context-memory',
  kvMemory: '--kv-memory',
  kvMode: '--shadow',
  memoryLimit: '--memory',
  pageTokens: '--page-tokens',
  onQualityLoss: '--on-quality-loss',
  prefillChunk: '--batch',
  probeTokens: '--probe-tokens',
  onlyTexts: '--only-text',
};

/** Option names that are also English words: replaced only next to a value or before "must". */
const AMBIGUOUS_NAMES = 'quality|kv|overflow|device|threads|profile|context|temperature|seed|stop';

const REPLACEMENTS: readonly [RegExp, string | ((...groups: string[]) => string)][] = [
  [new RegExp(`\\b(${Object.keys(UNIQUE_NAMES).join('|')})\\b`, 'g'), (_, name) => UNIQUE_NAMES[name]],
  // overflow: 'slide'; kv "auto"; --max-tokens: 5
  [new RegExp(`(?<!-)\\b(${AMBIGUOUS_NAMES}): ['"]([^'"]+)['"]`, 'g'), '--$1 $2'],
  [/\b(kv|quality) "([^"]+)"/g, '--$1 $2'],
  [/(--[a-z-]+): (?=[\d'"])/g, '$1 '],
  [new RegExp(`(?<!-)\\b(${AMBIGUOUS_NAMES}) (?=must |is [^;]*; it must )`, 'g'), '--$1 '],
  [/\b(?:load|open) the model with a (larger|smaller) context\b/g, 'use a $1 --context'],
  [/\b(larger|smaller) context\b/g, '$1 --context'],
  [/\buse the same cache spec\b/g, 'use the same --kv'],
  [/\buse the profile\b/g, 'use the --profile'],
];

export function withFlagNames(message: string): string {
  return REPLACEMENTS.reduce((text, [pattern, replacement]) => text.replace(pattern, replacement as string), message);
}
