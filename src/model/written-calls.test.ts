/** Calls as models write them, whatever their template asks for. What is no call stays as it is, and is not held back. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cpuTime } from '../../test/support/cpu-time.ts';
import { createAnswerParser, type ParserOptions } from './answer-format.ts';
import type { AnswerPart } from './answer-parts.ts';

const NAMES = ['get_weather', 'get', 'fs.read'];

const looking = (toolCalls: ParserOptions['toolCalls'], maxCalls = 16): ParserOptions => ({
  toolCalls,
  names: NAMES,
  acceptCall: (call, before) => before < maxCalls && !('bad' in call.arguments),
});

/** Calls with the text of their arguments. */
function read(options: ParserOptions, pieces: readonly string[]) {
  const parser = createAnswerParser(options);
  const parts: AnswerPart[] = [...pieces.map(piece => parser.push(piece)), parser.end()];
  const calls: [name: string, json: string][] = [];
  for (const { index, name, arguments: more = '' } of parts.flatMap(part => part.calls)) {
    if (name !== undefined) calls[index] = [name, more];
    else calls[index][1] += more;
  }
  return { text: parts.map(part => part.text).join(''), calls };
}

function parse(options: ParserOptions, pieces: readonly string[]) {
  const { text, calls } = read(options, pieces);
  return { text, calls: calls.map(([name, json]) => [name, JSON.parse(json)]) };
}

const oslo = ['get_weather', { city: 'Oslo' }];
const rome = ['get_weather', { city: 'Rome' }];

/** The first is what Qwen2.5-Coder-1.5B answers, whose template shows calls with doubled braces. */
const answers: [string, string, text: string, calls: unknown[]][] = [
  [
    'in a code block',
    '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo"\n  }\n}\n```',
    '',
    [oslo],
  ],
  ['doubled braces', '{{"name": "get_weather", "arguments": {"city": "Oslo"}}}', '', [oslo]],
  [
    'after a sentence',
    'Sure, I can help with that.\n\n```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```\nOne moment.',
    'Sure, I can help with that.One moment.',
    [oslo],
  ],
  [
    'tags in a code block',
    '```xml\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n```',
    '',
    [oslo],
  ],
  ['bare', '{"name": "get_weather", "arguments": {"city": "Oslo"}}', '', [oslo]],
  ['all braces doubled', '{{"name": "get_weather", "arguments": {{"city": "Oslo"}}}}', '', [oslo]],
  ['braces that are not closed', '{{"name": "get_weather", "arguments": {"city": "Oslo"}}', '', [oslo]],
  [
    'braces that are not closed, in a code block',
    '```\n{{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```',
    '',
    [oslo],
  ],
  ['no arguments', '{"name": "get", "arguments": {}}', '', [['get', {}]]],
  ['a name with a dot', '{"name":"fs.read","arguments":{"path":"a{b"}}', '', [['fs.read', { path: 'a{b' }]]],
  ['parameters', '{"name": "get_weather", "parameters": {"city": "Oslo"}}', '', [oslo]],
  ['arguments first', '{"arguments": {"city": "Oslo"}, "name": "get_weather"}', '', [oslo]],
  [
    "OpenAI's form",
    '{"type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}}',
    '',
    [oslo],
  ],
  [
    'several, a line each',
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n{"name": "get_weather", "arguments": {"city": "Rome"}}',
    '',
    [oslo, rome],
  ],
  [
    'several in one code block, with commas',
    '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}},\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```',
    '',
    [oslo, rome],
  ],
  [
    'several in one code block, in lines, as Qwen2.5-Coder-1.5B writes them',
    '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo"\n  }\n}\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Rome"\n  }\n}\n```',
    '',
    [oslo, rome],
  ],
  [
    'several after a sentence',
    'Let me look.\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n{"name": "get_weather", "arguments": {"city": "Rome"}}',
    'Let me look.',
    [oslo, rome],
  ],
  [
    'several code blocks',
    '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```\n\n```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```',
    '',
    [oslo, rome],
  ],
  [
    'a list',
    '[{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "get_weather", "arguments": {"city": "Rome"}}]',
    '',
    [oslo, rome],
  ],
  ['in other tags', '<tools>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tools>', '', [oslo]],
  [
    'line breaks in a string',
    '{"name": "fs.read", "arguments": {"path": "a\nb"}}',
    '',
    [['fs.read', { path: 'a\nb' }]],
  ],
];

/** Text that is not a call, and comes out as it went in. */
const texts: [string, string][] = [
  ['another object', '{"name": "Odin", "age": 7}'],
  ['a tool that does not exist', '{"name": "get_time", "arguments": {}}'],
  ['more than a call', '{"name": "get", "arguments": {}, "result": 3}'],
  ['arguments that are not accepted', '{"name": "get", "arguments": {"bad": 1}}'],
  ['arguments that are not an object', '{"name": "get", "arguments": [1]}'],
  ['a call in the middle of a line', 'Call {"name": "get", "arguments": {}} for it.'],
  ['a call in code', '`{"name": "get", "arguments": {}}`'],
  ['a call in a program', '```python\nimport json\n{"name": "get", "arguments": {}}\n```\nRun it.'],
  ['a call that was cut', '{"name": "get", "arguments": {"path": "x'],
  ['a code block', '```json\n{"a": 1}\n```\n\n```\nx\n```\n'],
  ['braces and marks', '{{x}} ``` <tool> <to {"na\n{ "name" }'],
];

describe.each(['hermes', 'llama3'] as const)('%s', format => {
  // Where an answer that begins with a brace is a call, the grammar makes it one.
  const isFree = ([, answer]: readonly string[]) => format === 'hermes' || !answer.startsWith('{');

  it.each(answers.filter(isFree as never))('%s', (_, answer, text, calls) => {
    expect(parse(looking(format), [answer])).toEqual({ text, calls });
    expect(parse(looking(format), [...answer])).toEqual({ text, calls });
  });

  it.each(texts.filter(isFree))('%s is text', (_, answer) => {
    expect(parse(looking(format), [answer])).toEqual({ text: answer, calls: [] });
  });
});

it('the division of the text makes no difference', () => {
  const words = [
    ...[...answers, ...texts].map(([, answer]) => answer),
    ...['\n', '```', '```json\n', '{', '}}', '<tool_call>', '</tool_call>', ', ', '{"name": "get"', 'Hello.'],
  ];
  const whole = fc.array(fc.oneof(fc.constantFrom(...words), fc.string({ maxLength: 5 })), { maxLength: 8 });
  fc.assert(
    fc.property(
      fc.constantFrom('hermes' as const, 'llama3' as const),
      whole,
      fc.array(fc.nat(999)),
      (format, parts, cuts) => {
        const letters = [...parts.join('')];
        const at = [...new Set(cuts.map(cut => cut % (letters.length + 1)))].sort((a, b) => a - b);
        const pieces = [0, ...at].map((from, i) => letters.slice(from, at[i]).join(''));
        const options = looking(format);
        expect(read(options, pieces)).toEqual(read(options, [letters.join('')]));
      },
    ),
    { numRuns: 500 },
  );
});

it('text is held back only while it may be a call', () => {
  const parser = createAnswerParser(looking('hermes'));
  const shown = (text: string) => parser.push(text).text;
  expect(shown('Well, {"name": "get"')).toBe('Well, {"name": "get"');
  expect(shown(' ends\n')).toBe(' ends');
  expect(shown('{"name": "get')).toBe('');
  expect(shown('_time"')).toBe('\n{"name": "get_time"');
  expect(shown('\n```json\n{')).toBe('');
  expect(shown('"a"')).toBe('\n```json\n{"a"');
  expect(shown('\n```\n[1, 2]\n')).toBe('\n```\n[1, 2]');
  expect(shown('{"name": "get", "arguments": {"bad": 1')).toBe('');
  expect(shown('}}')).toBe('\n{"name": "get", "arguments": {"bad": 1}}');
});

it('only as many calls as an answer may have', () => {
  const two = '{"name": "get", "arguments": {"a": 1}}\n{"name": "get", "arguments": {"a": 2}}';
  expect(parse(looking('hermes', 1), [two])).toEqual({
    text: '{"name": "get", "arguments": {"a": 2}}',
    calls: [['get', { a: 1 }]],
  });
});

it('without a check, only calls of the format are found; what cannot be one is not held back', () => {
  const answer = '{"name": "get", "arguments": {}}';
  expect(parse({ toolCalls: 'hermes', names: NAMES }, [answer])).toEqual({ text: answer, calls: [] });
  const parser = createAnswerParser({ toolCalls: 'llama3', names: NAMES });
  expect(parser.push('{"name": "Odin').text).toBe('{"name": "Odin');
});

it.each<[string, (length: number) => string]>([
  ['white space', length => ' \n'.repeat(length / 2)],
  ['white space in a code block', length => `\`\`\`json\n${' '.repeat(length)}`],
  ['white space in an object', length => `{${'\n'.repeat(length)}`],
  ['white space after a call', length => `{"name": "get", "arguments": {}}${' '.repeat(length)}`],
  ['white space after what may be a call', length => `{"name": "get", "arguments": {}, "b": 1}${' '.repeat(length)}`],
])('%s takes time in proportion to its length', (_, answer) => {
  const timeOf = (length: number) => {
    const started = cpuTime();
    for (const reasoning of [undefined, 'open', 'optional'] as const)
      for (const format of ['hermes', 'llama3'] as const) read({ ...looking(format), reasoning }, [answer(length)]);
    return cpuTime() - started;
  };
  // Ten times the length; work that grows with its square would take a hundred times as long.
  expect(timeOf(30_000) / timeOf(3000)).toBeLessThan(40);
});

it('a long answer takes time in proportion to its length', () => {
  const answer = `${'{"name": "get", "arguments": {"a": "x"}, "b": 1}\n'.repeat(4000)}{"name": "get", "arguments": {"text": "${'y'.repeat(400_000)}`;
  const started = cpuTime();
  expect(parse(looking('hermes'), [answer]).text.length).toBe(answer.length);
  expect(cpuTime() - started).toBeLessThan(5000);
});
