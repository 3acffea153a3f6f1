import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { chatRules, promptRules } from '../chat/options.ts';
import { loadRules } from '../engine/options.ts';
import { ContextError } from '../util/errors.ts';
import { flagName } from './flag-names.ts';

it.each([
  ['maxTokens', undefined, '--max-tokens'],
  ['temperature', undefined, '--temperature'],
  ['kvMemory', undefined, '--kv-memory'],
  ['overflow', 'slide', '--overflow slide'],
  ['kv', 'tq3', '--kv tq3'],
  ['prefillChunk', undefined, '--batch'],
  ['memoryLimit', undefined, '--memory'],
  ['onlyTexts', undefined, '--only-text'],
  ['skipRows', undefined, '--skip'],
  ['kvMode', undefined, '--shadow'],
  ['kvMode', 'shadow', '--shadow'],
])('%s %s is %s', (option, value, flag) => expect(flagName(option, value)).toBe(flag));

it('messages of the library name flags where they name options', () => {
  const error = new ContextError(
    option => `Use a larger ${option('context')}, or ${option('overflow', 'slide')}. The context of 8 is full.`,
  );
  expect(error.message).toBe("Use a larger context, or overflow: 'slide'. The context of 8 is full.");
  expect(error.describe(flagName)).toBe('Use a larger --context, or --overflow slide. The context of 8 is full.');
});

/** Names in messages that are not options of a function. */
const NOT_OPTIONS = ["type: 'function'", "role: 'user'", "content: 'Hi'", "type: 'text'", 'kvHeads'];

it('every option in an error message of the library is named by `option`', () => {
  const src = fileURLToPath(new URL('..', import.meta.url));
  const layers = [
    'engine',
    'plan',
    'cache',
    'kernel',
    'eval',
    'calibrate',
    'chat',
    'session',
    'model',
    'api',
    'vectors',
  ];
  const sources = layers.flatMap(layer =>
    readdirSync(join(src, layer), { recursive: true, encoding: 'utf8' })
      .filter(file => file.endsWith('.ts') && !/\.(test|case)\.ts$/.test(file))
      .map(file => readFileSync(join(src, layer, file), 'utf8')),
  );
  const literal = sources
    .flatMap(messagesOf)
    .flatMap(message => message.match(/(?<![-\w])[a-z]+[A-Z]\w*|(?<!-)\b\w+: ['"]\w+['"]/g) ?? []);
  expect(literal.filter(name => !NOT_OPTIONS.includes(name))).toEqual([]);
  const named = sources.flatMap(source =>
    [...source.matchAll(/\b(?:option|optionError)\('(\w+)'/g)].map(([, name]) => name),
  );
  const known = { ...loadRules, ...chatRules, ...promptRules };
  const ofOthers = ['from', 'onlyTexts', 'probeTokens', 'data', 'shots', 'lengths', 'runCode'];
  expect(named.filter(name => !Object.hasOwn(known, name) && !ofOthers.includes(name))).toEqual([]);
  expect(named).toContain('kvMemory');
});

/** The literal text of `new …Error(…)`, without interpolated values. */
function messagesOf(source: string): string[] {
  const errors = source.matchAll(/new (?:\w+)Error\(((?:'[^'\n]*'|"[^"\n]*"|`[^`]*`|[\s+]|=>|\w+(?=[\s,)]))*)/g);
  return [...errors].map(([, text]) =>
    text.replace(/\$\{(?:[^{}]|\{[^}]*\})*\}/g, '…').replace(/['"`]\s*\+\s*['"`]/g, ''),
  );
}
