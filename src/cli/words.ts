/** Messages of the library name its options; who reads them here has those of the command line. */

/** Options whose names are no plain words, so that they can be replaced anywhere. */
const FLAGS: Record<string, string> = {
  maxTokens: '--max-tokens',
  topK: '--top-k',
  topP: '--top-p',
  minP: '--min-p',
  repetitionPenalty: '--repetition-penalty',
  kvMemory: '--kv-memory',
  memoryLimit: '--memory',
  pageTokens: '--page-tokens',
  prefillChunk: '--batch',
  probeTokens: '--probe-tokens',
};

/** The others, where a message sets a value or says what a value must be. */
const WORDS = 'kv|overflow|device|threads|profile|context|temperature|seed|stop';

const REPLACEMENTS: readonly [RegExp, string | ((...groups: string[]) => string)][] = [
  [new RegExp(`\\b(${Object.keys(FLAGS).join('|')})\\b`, 'g'), (_, name) => FLAGS[name]],
  // overflow: 'slide', then kv "auto", then --max-tokens: 5
  [new RegExp(`(?<!-)\\b(${WORDS}): ['"]([^'"]+)['"]`, 'g'), '--$1 $2'],
  [/\bkv "([^"]+)"/g, '--kv $1'],
  [/(--[a-z-]+): (?=[\d'"])/g, '$1 '],
  [new RegExp(`(?<!-)\\b(${WORDS}) (?=must |is [^;]*; it must )`, 'g'), '--$1 '],
  [/\b(?:load|open) the model with a (larger|smaller) context\b/g, 'use a $1 --context'],
  [/\b(larger|smaller) context\b/g, '$1 --context'],
];

/** A message in the words of the command line. */
export function inOptions(message: string): string {
  return REPLACEMENTS.reduce((text, [pattern, replacement]) => text.replace(pattern, replacement as string), message);
}
