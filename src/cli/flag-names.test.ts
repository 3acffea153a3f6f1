import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { withFlagNames } from './flag-names.ts';

it.each([
  ['maxTokens must be an integer, 1 or more; got -1.', '--max-tokens must be an integer, 1 or more; got -1.'],
  [
    "Shorten the prompt, load the model with a larger context, or use overflow: 'slide' to drop the oldest tokens.",
    'Shorten the prompt, use a larger --context, or use --overflow slide to drop the oldest tokens.',
  ],
  ["With this model, kv: 'tq3' fits at this context.", 'With this model, --kv tq3 fits at this context.'],
  ['use kv "auto" with it, not "tq4".', 'use --kv auto with it, not "tq4".'],
  ['Drop quality "safe", or kv "tq4".', 'Drop --quality safe, or --kv tq4.'],
  ['temperature is -1; it must be between 0 and 100.', '--temperature is -1; it must be between 0 and 100.'],
  ["Use another codec, or device: 'wasm'.", 'Use another codec, or --device wasm.'],
  ['Use a smaller context or prefillChunk.', 'Use a smaller --context or --batch.'],
  ['Leave maxTokens out, or set maxTokens: 100.', 'Leave --max-tokens out, or set --max-tokens 100.'],
  [
    'To resume it, use the same cache spec, use the profile it was saved with.',
    'To resume it, use the same --kv, use the --profile it was saved with.',
  ],
  ['Not in shadow mode. Load the model without kvMode.', 'Not in shadow mode. Load the model without --shadow.'],
  ['Use a smaller --context, or use --self.', 'Use a smaller --context, or use --self.'],
  ['A prompt of 9 tokens leaves no room in a context of 8.', 'A prompt of 9 tokens leaves no room in a context of 8.'],
])('%s', (message, shown) => expect(withFlagNames(message)).toBe(shown));

/** Options that no command sets, so that no command can print a message about them. */
const API_ONLY = [
  ...['repetitionWindow', 'frequencyPenalty', 'presencePenalty', 'logitBias', 'ignoreEos', 'toolChoice', 'readExact'],
  ...["type: 'function'", 'headDim', 'kvHeads', 'tokenizer'],
];

it('covers every option named in an error message of the library', () => {
  const src = fileURLToPath(new URL('..', import.meta.url));
  const named = ['engine', 'plan', 'cache', 'kernel', 'eval', 'calibrate'].flatMap(layer =>
    readdirSync(join(src, layer), { recursive: true, encoding: 'utf8' })
      .filter(file => file.endsWith('.ts') && !/\.(test|case)\.ts$/.test(file))
      .flatMap(file => messagesOf(readFileSync(join(src, layer, file), 'utf8')))
      .flatMap(message => withFlagNames(message).match(/(?<![-\w])[a-z]+[A-Z]\w*|(?<!-)\b\w+: ['"]\w+['"]/g) ?? []),
  );
  expect(named.filter(name => !API_ONLY.includes(name))).toEqual([]);
});

/** The literal text of `new …Error(…)` and the names passed to option checks, without interpolated values. */
function messagesOf(source: string): string[] {
  const errors = source.matchAll(/new (?:\w+)Error\(((?:'[^'\n]*'|"[^"\n]*"|`[^`]*`|[\s+]|\w+(?=[\s,)]))*)/g);
  const checks = source.matchAll(/checkCount\('(\w+)'/g);
  return [
    ...[...errors].map(([, text]) =>
      text.replace(/\$\{(?:[^{}]|\{[^}]*\})*\}/g, '…').replace(/['"`]\s*\+\s*['"`]/g, ''),
    ),
    ...[...checks].map(([, name]) => `${name} must be`),
  ];
}
