/** Tool calls as models write them, in their own formats. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createAnswerParser, type ParserOptions } from './answer-format.ts';
import { detectCallFormat, type TextCallFormat } from './call-formats.ts';

const names = ['weather', 'write_file', 'weather_of'];

function parse(toolCalls: TextCallFormat, text: string, cuts: readonly number[] = [], options: ParserOptions = {}) {
  const parser = createAnswerParser({ toolCalls, names, ...options });
  const at = [0, ...[...new Set(cuts.map(cut => cut % (text.length + 1)))].sort((a, b) => a - b), text.length];
  const parts = [...at.slice(1).map((end, i) => parser.push(text.slice(at[i], end))), parser.end()];
  return {
    text: parts.map(part => part.text).join(''),
    reasoning: parts.map(part => part.reasoning).join(''),
    calls: parts.flatMap(part => part.calls).map(({ name, arguments: args = '' }) => [name, JSON.parse(args)]),
  };
}

const weather = ['weather', { city: 'Reykjavík', days: '3' }];
const CASES: [name: string, format: TextCallFormat, text: string, expected: Partial<ReturnType<typeof parse>>][] = [
  [
    'Qwen3-Coder',
    'qwen3-coder',
    'Let me look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nReykjavík\n</parameter>\n<parameter=days>\n3\n' +
      '</parameter>\n</function>\n</tool_call>',
    { text: 'Let me look.', calls: [weather] },
  ],
  [
    'Qwen3-Coder, several, one without its tag',
    'qwen3-coder',
    '<tool_call>\n<function=weather_of>\n</function>\n</tool_call>\n<function=write_file>\n<parameter=text>\n\n' +
      '<p>if (a < b) {\n}</function> </parameter>;\n\n</parameter>\n</function>\n</tool_call>',
    {
      calls: [
        ['weather_of', {}],
        ['write_file', { text: '\n<p>if (a < b) {\n}</function> </parameter>;\n' }],
      ],
    },
  ],
  [
    'Seed-OSS',
    'seed-oss',
    '\n<seed:tool_call>\n<function=weather>\n<parameter=city>Reykjavík</parameter>\n<parameter=days>3</parameter>\n' +
      '</function>\n</seed:tool_call>',
    { calls: [weather] },
  ],
  [
    'GLM-4.6',
    'glm',
    "I'll check.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Reykjavík</arg_value>\n<arg_key>days</arg_key>\n" +
      '<arg_value>3</arg_value>\n</tool_call>\n<tool_call>weather_of\n</tool_call>',
    { text: "I'll check.", calls: [weather, ['weather_of', {}]] },
  ],
  [
    'Mistral Small 3.2',
    'mistral',
    '[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Reykjavík", "days": "3"}',
    { calls: [weather] },
  ],
  [
    'Ministral 3, two calls',
    'mistral',
    'One moment.[TOOL_CALLS]weather[ARGS]{"city": "Reykjavík", "days": "3"}[TOOL_CALLS]weather_of[ARGS]{"a": {"b": "}"}}',
    { text: 'One moment.', calls: [weather, ['weather_of', { a: { b: '}' } }]] },
  ],
  [
    'Mistral Nemo',
    'mistral-list',
    '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Reykjavík", "days": "3"}}, {"name": "weather_of", ' +
      '"arguments": {}, "id": "a1b2c3d4e"}]',
    { calls: [weather, ['weather_of', {}]] },
  ],
  ...(
    [
      ['qwen3-coder', '<tool_call>\n<function=other>\n</function>\n</tool_call>'],
      ['qwen3-coder', 'The tag <tool_call> begins a call, <function=weather is cut'],
      ['qwen3-coder', '<tool_call>\n<function=weather>\nno parameter\n</function>\n</tool_call>'],
      ['glm', '<tool_call>other\n</tool_call>'],
      ['glm', '<tool_call>weather\n<arg_key>city</arg_key>'],
      ['mistral', '[TOOL_CALLS]other[ARGS]{}'],
      ['mistral', '[TOOL_CALLS]weather[ARGS]{"city":'],
      ['mistral-list', '[TOOL_CALLS][{"name": "other", "arguments": {}}]'],
      ['seed-oss', '<seed:tool_call>\nweather'],
    ] as const
  ).map(([format, text]): (typeof CASES)[number] => [`no call: ${text}`, format, text, { text }]),
];

describe.each(CASES)('%s', (_, format, text, expected) => {
  const whole = { text: '', reasoning: '', calls: [], ...expected };

  it('is read', () => expect(parse(format, text)).toEqual(whole));

  it('however it is divided', () => {
    expect(parse(format, text, [...Array(text.length).keys()])).toEqual(whole);
    fc.assert(
      fc.property(fc.array(fc.nat(400)), cuts => {
        expect(parse(format, text, cuts)).toEqual(whole);
      }),
      { numRuns: 20 },
    );
  });
});

it('text is held back only while it may be a call', () => {
  const parser = createAnswerParser({ toolCalls: 'qwen3-coder', names });
  expect(parser.push('Look: <tool_c').text).toBe('Look:');
  expect(parser.push('ups> and <tool_call> <fun').text).toBe(' <tool_cups> and');
  expect(parser.push('ny>').text).toBe(' <tool_call> <funny>');
  expect(parser.push('x [TOOL_CALLS]weather[ARGS]').text).toBe('x [TOOL_CALLS]weather[ARGS]');
});

it('types are those that the caller knows; further calls can be dropped', () => {
  const call = '<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n';
  const typed = (_: string, values: ReadonlyMap<string, string>) => ({ days: Number(values.get('days')) });
  expect(parse('glm', call + call, [], { typed, maxCalls: 1 }).calls).toEqual([['weather', { days: 3 }]]);
});

it('reasoning in the tags of other models', () => {
  const mistral = { open: '[THINK]', close: '[/THINK]' };
  const options: ParserOptions = { reasoning: 'optional', thinking: mistral };
  expect(parse('mistral', '[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]weather[ARGS]{}', [9, 30], options)).toEqual({
    text: 'Yes.',
    reasoning: 'Hm.',
    calls: [['weather', {}]],
  });
});

it.each([
  ["{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", 'mistral'],
  ["{{ '[TOOL_CALLS][' }}", 'mistral-list'],
  ["{{ '<seed:tool_call>\n<function=' + name }}", 'seed-oss'],
  ["{{ '<tool_call>\n<function=' + name }}", 'qwen3-coder'],
  ["{{ '<tool_call>' + name }}<arg_key>", 'glm'],
  ['<tool_call>{"name"', undefined],
])('%s is a template of %s', (source, format) => expect(detectCallFormat(source)).toBe(format));
