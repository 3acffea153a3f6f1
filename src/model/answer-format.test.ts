/** Answers are taken apart in the same way however their text was divided. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createAnswerParser, detectAnswerFormat, type ParserOptions } from './answer-format.ts';
import type { AnswerPart } from './answer-parts.ts';

function parse(options: ParserOptions, pieces: readonly string[]) {
  const parser = createAnswerParser(options);
  const parts: AnswerPart[] = [...pieces.map(piece => parser.push(piece)), parser.end()];
  const calls: { name: string; arguments: string }[] = [];
  for (const { index, name, arguments: more = '' } of parts.flatMap(part => part.calls)) {
    if (name !== undefined) calls[index] = { name, arguments: more };
    else calls[index].arguments += more;
  }
  const join = (key: 'text' | 'reasoning') => parts.map(part => part[key]).join('');
  return { text: join('text'), reasoning: join('reasoning'), calls };
}

const hermes = { toolCalls: 'hermes' } as const;
const llama = { toolCalls: 'llama3' } as const;
const call = (name: string, args: string) => `<tool_call>\n{"name": "${name}", "arguments": ${args}}\n</tool_call>`;

it.each<[string, ParserOptions, string, Partial<ReturnType<typeof parse>>]>([
  ['plain text', {}, ' Hi <tool_call> <think> ', { text: ' Hi <tool_call> <think> ' }],
  ['a call', hermes, call('f', '{"a": {"b": "}"}}'), { calls: [{ name: 'f', arguments: '{"a": {"b": "}"}}' }] }],
  [
    'text and two calls',
    hermes,
    `Let me see.\n${call('f', '{}')}\n${call('g', '{"x": "\\"}"}')}`,
    {
      text: 'Let me see.',
      calls: [
        { name: 'f', arguments: '{}' },
        { name: 'g', arguments: '{"x": "\\"}"}' },
      ],
    },
  ],
  ['what only looks like a marker', hermes, 'a <tool_ca <tool_call', { text: 'a <tool_ca <tool_call' }],
  ['a call that is none', hermes, '<tool_call>oops</tool_call> x', { text: '<tool_call>oops</tool_call> x' }],
  [
    'a call that was cut',
    hermes,
    '<tool_call>{"name": "f", "arguments": {"a',
    { calls: [{ name: 'f', arguments: '{"a' }] },
  ],
  ['Llama 3', llama, '{"name": "f", "parameters": {"a": 1}}', { calls: [{ name: 'f', arguments: '{"a": 1}' }] }],
  [
    'Llama 3, two calls',
    llama,
    '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
    {
      calls: [
        { name: 'f', arguments: '{}' },
        { name: 'g', arguments: '{}' },
      ],
    },
  ],
  ['Llama 3, text', llama, 'Hello {"name": 1}', { text: 'Hello {"name": 1}' }],
  [
    'reasoning',
    { reasoning: 'optional' },
    '<think>\nWell, 1 < 2.\n</think>\n\nYes.',
    { reasoning: 'Well, 1 < 2.', text: 'Yes.' },
  ],
  [
    'reasoning that the prompt opened',
    { reasoning: 'open' },
    'Hm </thin </think>Yes',
    { reasoning: 'Hm </thin', text: 'Yes' },
  ],
  ['no reasoning', { reasoning: 'optional' }, 'Yes <think>', { text: 'Yes <think>' }],
  [
    'reasoning and a call',
    { ...hermes, reasoning: 'optional' },
    `<think>x</think>\n${call('f', '{}')}`,
    {
      reasoning: 'x',
      calls: [{ name: 'f', arguments: '{}' }],
    },
  ],
])('%s', (_name, options, text, expected) => {
  expect(parse(options, [text])).toEqual({ text: '', reasoning: '', calls: [], ...expected });
});

describe('the division of the text makes no difference', () => {
  const words = [
    '<think>',
    '</think>',
    '<tool_call>',
    '</tool_call>',
    '{"name": "f", "arguments": {"a": "}"}}',
    '; ',
    '\n',
  ];
  const text = fc
    .array(fc.oneof(fc.constantFrom(...words), fc.string({ maxLength: 6 })), { maxLength: 12 })
    .map(parts => parts.join(''));
  const options = fc.record({
    toolCalls: fc.constantFrom(undefined, 'hermes' as const, 'llama3' as const),
    reasoning: fc.constantFrom(undefined, 'open' as const, 'optional' as const),
  });
  it('any text', () =>
    fc.assert(
      fc.property(options, text, fc.array(fc.nat(200)), (given, whole, cuts) => {
        const letters = [...whole];
        const at = [...new Set(cuts.map(cut => cut % (letters.length + 1)))].sort((a, b) => a - b);
        const pieces = [0, ...at].map((start, i) => letters.slice(start, at[i]).join(''));
        expect(parse(given, pieces)).toEqual(parse(given, [whole]));
      }),
      { numRuns: 500 },
    ));
});

it('recognizes formats by the template', () => {
  expect(detectAnswerFormat('{% if tools %}<tool_call>{% endif %}</think>')).toEqual({
    toolCalls: 'hermes',
    takesTools: true,
    thinking: { open: '<think>', close: '</think>' },
    channels: false,
  });
  expect(detectAnswerFormat('{{ tools }}{"name": function name, "parameters": ...}')).toEqual({
    toolCalls: 'llama3',
    takesTools: true,
    channels: false,
  });
  expect(detectAnswerFormat('{{ messages }}').takesTools).toBe(false);
  expect(detectAnswerFormat('<|start|>assistant<|channel|>').channels).toBe(true);
});
