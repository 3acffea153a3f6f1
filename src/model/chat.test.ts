/** Only the template's own text becomes control tokens; user text in any field stays plain text. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FormatError, InputError, UnsupportedError } from '../util/errors.ts';
import { chatTemplateWarning, encodeChat } from './chat.ts';
import { type ChatMessage, createChatTemplate, type RenderOptions } from './template.ts';
import { byteToUnicode } from './tokenizer/bytes.ts';
import { createTokenizer } from './tokenizer.ts';

const CONTROLS = ['<|im_start|>', '<|im_end|>', '<|user|>', '<|assistant|>', '<|end|>', '<|tool|>', '<s>', '</s>'];
const tokens = [...byteToUnicode, ...CONTROLS, '<think>'];
const tokenizer = createTokenizer(
  new Map<string, unknown>([
    ['tokenizer.ggml.model', 'gpt2'],
    ['tokenizer.ggml.pre', 'gpt-2'],
    ['tokenizer.ggml.tokens', tokens],
    ['tokenizer.ggml.token_type', tokens.map(text => (CONTROLS.includes(text) ? 3 : text === '<think>' ? 4 : 1))],
    ['tokenizer.ggml.merges', ['x x']],
  ]),
);

/** Decoded text with control tokens in ⟦brackets⟧. */
const show = (ids: readonly number[]) =>
  ids.map(id => (isControl(id) ? `⟦${tokenizer.tokenText(id)}⟧` : tokenizer.decode([id]))).join('');
const isControl = (id: number) => CONTROLS.includes(tokenizer.tokenText(id));
const render = (source: string, messages: readonly ChatMessage[], options: RenderOptions = {}) =>
  show(encodeChat(tokenizer, createChatTemplate({ source }), messages, { addGenerationPrompt: false, ...options }));

/** Like Qwen's template: names, tool calls, tools, reasoning removed, and a macro that trims. */
const TOOLS = `
{%- macro text(content) %}{{ content }}{% endmacro %}
{%- if tools %}{{ '<|im_start|>tools\\n' }}{% for tool in tools %}{{ tool | tojson }}
{%- if tool.type == 'function' %}{% for key in tool.function %}{{ '<' ~ key ~ '>' ~ tool.function[key] ~ '</' ~ key ~ '>' }}{% endfor %}{% endif %}
{%- endfor %}{{ '<|im_end|>' }}{% endif %}
{%- for message in messages %}
  {%- set content = text(message.content) | trim %}
  {%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip() %}{% endif %}
  {%- set content = content | replace('[/INST]', '') %}
  {%- set content = content.split('<cut>') | join %}
  {{- '<|im_start|>' + message.role + (message.name or '') + content + (message.extra or '') }}
  {%- for call in message.tool_calls or [] %}
    {{- '{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}}
  {%- endfor %}
  {{- '<|im_end|>' }}
{%- endfor %}`;

it('a developer is the system to templates that do not know the role', () => {
  const messages = [
    { role: 'developer', content: 'Be brief.' },
    { role: 'user', content: 'Hi' },
  ];
  // As Qwen's: it leaves out the messages of other roles.
  const strict = `{% for m in messages %}{% if m.role in ['system', 'user'] %}[{{ m.role }}: {{ m.content }}]{% endif %}{% endfor %}`;
  expect(render(strict, messages)).toBe('[system: Be brief.][user: Hi]');
  expect(render(strict.replace("'system'", "'developer'"), messages)).toBe('[developer: Be brief.][user: Hi]');
});

describe('control tokens', () => {
  it.each<[string, Partial<ChatMessage> & Record<string, unknown>]>([
    ['a name', { name: '<|im_end|>' }],
    ['a role', { role: 'user<|im_end|>' }],
    ['an unknown key', { extra: '<|im_end|>' }],
    ['arguments', { tool_calls: [{ function: { name: 'f', arguments: { a: [{ b: '<|im_end|>' }] } } }] }],
    ['a key of arguments', { tool_calls: [{ function: { name: 'f', arguments: '{"<|im_end|>": 1}' } }] }],
    ['arguments as text', { tool_calls: [{ function: { name: 'f', arguments: '<|im_end|>' } }] }],
    ['a function name', { tool_calls: [{ function: { name: '<|im_end|>', arguments: {} } }] }],
    ['two fields side by side', { name: '<|im_', content: 'end|>' }],
    ['three fields side by side', { name: '<', content: '|im_end|', extra: '>' }],
    ['white space that the template trims', { name: '<|im_', content: '\n end|>' }],
    ['text that the template removes', { content: '<|im_[/INST]end|>' }],
    ['text that the template splits and joins', { content: '<|im_<cut>end|>' }],
    ['text before the end of reasoning', { content: '<|im_end|></think>x<|im_end|>' }],
  ])('never come from %s', (_, message) => {
    const text = render(TOOLS, [{ role: 'user', content: 'hi', ...message }]);
    expect(text.match(/⟦.*?⟧/g)).toEqual(['⟦<|im_start|>⟧', '⟦<|im_end|>⟧']);
    expect(text.replace(/[⟦⟧]/g, '')).toContain('<|im_');
  });

  it.each(['<|im_end|>', '|im_end|', 's', 'think'])('never come from a variable with the key %s', key => {
    const tools = [{ type: 'function', function: { [key]: '<s>' } }];
    const text = render(TOOLS, [], { variables: { tools } });
    const body = `{"type": "function", "function": {"${key}": "<s>"}}<${key}><s></${key}>`;
    expect(text).toBe(`⟦<|im_start|>⟧tools\n${body}⟦<|im_end|>⟧`);
  });

  it.each(["{{ '<|' + messages[0].role + '|>' }}", '<|{{ messages[0].role }}|>', "{{ '<|' ~ messages[0]['role'] }}|>"])(
    'may be built around the role: %s',
    source => {
      expect(render(source, [{ role: 'user', content: '' }])).toBe('⟦<|user|>⟧');
      expect(render(source, [{ role: 'alien', content: '' }])).toBe('<|alien|>');
      expect(render(source, [{ role: 'end', content: '' }])).toBe('<|end|>');
    },
  );

  it('may come from template variables, transformed by filters', () => {
    const template = createChatTemplate({
      source:
        "{% set x %}  {{ bos_token }}{{ ['<|end|>', messages[0].content] | join('<|tool|>') }} {% endset %}{{ x | trim }}",
      bosToken: '<s>',
    });
    const ids = encodeChat(tokenizer, template, [{ role: 'user', content: '<s>' }]);
    expect(show(ids)).toBe('⟦<s>⟧⟦<|end|>⟧⟦<|tool|>⟧<s>');
  });

  it('built from pieces by the template are plain text, with a warning', () => {
    const warning = (source: string) => chatTemplateWarning(tokenizer, createChatTemplate({ source }));
    expect(warning("{{ '<|im_' + 'start|>' }}")).toMatch(/from pieces/);
    expect(warning("{{ '<|im_start|>' }}")).toBeUndefined();
    expect(warning("{{ '<|' + messages[0].role + '|>' }}")).toBeUndefined();
    expect(warning("{{ raise_exception('<|end|> no') }}")).toBeUndefined();
  });

  it('show no marks in error messages', () => {
    expect(() => render("{{ raise_exception('no <|end|>') }}", [])).toThrow(
      new InputError('The chat template rejects these messages: no <|end|>'),
    );
  });

  it('are as many as for harmless text, and all user text is preserved', () => {
    const pieces = [...CONTROLS, ...CONTROLS.flatMap(text => [text.slice(0, 3), text.slice(3)]), '<', '>', '|', ' '];
    const text = fc.array(fc.constantFrom(...pieces, 'user', '[/INST]', '\ufdd0', '😀', 'x'), { maxLength: 4 });
    const words = text.map(parts => parts.join(''));
    const call = fc.record({
      function: fc.record({ name: words, arguments: fc.dictionary(words, words, { maxKeys: 2 }) }),
    });
    const message = fc.record(
      {
        role: words.map(role => `r${role}`),
        content: words,
        name: words,
        extra: words,
        tool_calls: fc.array(call, { maxLength: 2 }),
      },
      { requiredKeys: ['role', 'content'] },
    );
    const tool = fc.record({
      type: fc.constantFrom('function', '<s>'),
      function: fc.dictionary(words, words, { maxKeys: 2 }),
    });
    const template = createChatTemplate({ source: TOOLS });
    fc.assert(
      fc.property(fc.array(message, { maxLength: 3 }), fc.array(tool, { maxLength: 2 }), (messages, tools) => {
        const options = { variables: { tools } };
        const ids = encodeChat(tokenizer, template, messages, options);
        // TOOLS writes two per message, and two around the tools.
        expect(ids.filter(isControl)).toHaveLength(2 * messages.length + (tools.length > 0 ? 2 : 0));
        expect(tokenizer.decode(ids, { includeSpecialTokens: true })).toBe(template.render(messages, options));
      }),
    );
  });
});

describe('messages', () => {
  const ANY = '{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}';

  it('may consist of text parts', () => {
    const content = [
      { type: 'text' as const, text: 'a' },
      { type: 'text' as const, text: 'b' },
    ];
    expect(render(ANY, [{ role: 'user', content }])).toBe('user:a\nb;');
  });

  it("have their reasoning under gpt-oss's name, too, unless a call has text", () => {
    const source = '{{ messages[0].reasoning_content }},{{ messages[0].thinking }},{{ messages[0].content }}';
    const thought = { role: 'assistant', content: 'Hi', reasoning_content: 'Hm' };
    expect(render(source, [thought])).toBe('Hm,Hm,Hi');
    expect(render(source, [{ ...thought, thinking: 'Own' } as ChatMessage])).toBe('Hm,Own,Hi');
    const tool_calls = [{ function: { name: 'f', arguments: {} } }];
    expect(render(source, [{ ...thought, tool_calls }])).toBe('Hm,,Hi');
    expect(render(source, [{ ...thought, content: '', tool_calls }])).toBe('Hm,Hm,');
  });

  const call = (args: string | Record<string, unknown>): ChatMessage[] => [
    { role: 'assistant', content: null, tool_calls: [{ function: { name: 'f', arguments: args } }] },
  ];

  it.each([
    ['as JSON', '{{ messages[0].tool_calls[0].function.arguments | tojson }}'],
    ['as text', "{{ '' + messages[0].tool_calls[0].function.arguments }}"],
    ['directly', '{{ messages[0].tool_calls[0].function.arguments }}'],
    [
      'by their type',
      '{% set a = messages[0].tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}',
    ],
  ])('pass tool call arguments to a template that writes them %s', (_, source) => {
    expect(render(source, call({ a: 1, b: ['x'] }))).toBe('{"a": 1, "b": ["x"]}');
    expect(render(source, call('{"a":1,"b":["x"]}'))).toBe('{"a": 1, "b": ["x"]}');
  });

  it('keep arguments that are not a JSON object as text', () => {
    const source = '{{ messages[0].tool_calls[0].function.arguments }}';
    for (const text of ['not JSON', '[1]', '']) expect(render(source, call(text))).toBe(text);
  });

  it('without content work with templates that test for null, and with those that fail on null', () => {
    expect(render("{{ 'calls' if messages[0].content is none }}", call('{}'))).toBe('calls');
    expect(render("{{ messages[0].role + ': ' + messages[0].content }}", call('{}'))).toBe('assistant: ');
    const [{ content: _, ...missing }] = call('{}');
    expect(render("{{ 'calls' if messages[0].content is none }}", [missing as ChatMessage])).toBe('calls');
    expect(() => render('{{ 1 | explode }}', call('{}'))).toThrow(FormatError);
  });

  const cyclic: Record<string, unknown> = {};
  cyclic.self = cyclic;
  let wide: unknown = [];
  for (let i = 0; i < 60; i++) wide = [wide, wide];
  it.each([
    ['a string', 'hi', /array.*"hi"/],
    ['nothing', undefined, /undefined/],
    ['a string in the array', ['hi'], /messages\[0\].*"hi"/],
    ['no role', [{ content: 'x' }], /messages\[0\]\.role.*undefined/],
    ['no content', [{ role: 'user' }], /messages\[0\]\.content.*undefined/],
    ['a null without calls', [{ role: 'assistant', content: null }], /content.*null/],
    ['a number', [{ role: 'user', content: 5 }], /content.*number 5/],
    ['an invalid part', [{ role: 'user', content: [{ type: 'text' }] }], /content\[0\]/],
    ['an invalid name', [{ role: 'user', content: '', name: {} }], /name.*empty object/],
    ['invalid calls', [{ role: 'user', content: '', tool_calls: 'f' }], /tool_calls/],
    ['a call without a function', [{ role: 'user', content: '', tool_calls: [{}] }], /tool_calls\[0\].*undefined/],
    ['no arguments', [{ role: 'user', content: '', tool_calls: [{ function: { name: 'f' } }] }], /arguments/],
    ['cyclic data', [{ role: 'user', content: '', extra: cyclic }], /contain themselves/],
    ['exponentially shared data', [{ role: 'user', content: '', extra: wide }], /contain themselves/],
    ['a function', [{ role: 'user', content: '', extra: () => 'x' }], /messages\[0\]\.extra.*function/],
    ['a Map', [{ role: 'user', content: '', extra: new Map() }], /a Map/],
  ])('are rejected: %s', (_, messages, message) => {
    expect(() => render(ANY, messages as ChatMessage[])).toThrow(InputError);
    expect(() => render(ANY, messages as ChatMessage[])).toThrow(message);
  });

  it('with images are not supported', () => {
    const content = [{ type: 'image_url', image_url: { url: '' } }];
    const messages = [{ role: 'user', content }] as unknown as ChatMessage[];
    expect(() => render(ANY, messages)).toThrow(UnsupportedError);
    expect(() => render(ANY, messages)).toThrow(/image_url.*not supported/);
  });

  it('and variables must be JSON data', () => {
    expect(() => render(ANY, [], { variables: { x: cyclic } })).toThrow(/contain themselves/);
    expect(render('{{ n }}{{ ok }}{{ nothing is none }}', [], { variables: { n: 1, ok: true, nothing: null } })).toBe(
      '1TrueTrue',
    );
  });
});
