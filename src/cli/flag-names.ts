/** Options of the library as flags of the CLI: `maxTokens` is `--max-tokens`. */
import type { OptionNames } from '../util/errors.ts';
import { splitWords } from '../util/option-name.ts';

/** Flags with a name of their own. */
const FLAGS: Record<string, string> = {
  kvMode: '--shadow',
  memoryLimit: '--memory',
  prefillChunk: '--batch',
  texts: '--text',
  onlyTexts: '--only-text',
  skipRows: '--skip',
  rows: '--chunks',
};

export const flagName: OptionNames = (option, value) => {
  const flag = FLAGS[option] ?? `--${splitWords(option, '-')}`;
  return value === undefined || option === 'kvMode' ? flag : `${flag} ${value}`;
};
