import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { cpuTime } from '../../test/support/cpu-time.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { readCostOf } from './template/bounded.ts';
import { createChatTemplate } from './template.ts';

const chat = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: ' Hi! ' },
  { role: 'assistant', content: 'Hello.' },
  { role: 'user', content: 'Bye?' },
];

// Short versions of each model family's template.
const SMOLLM =
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helper<|im_end|>\n' }}{% endif %}" +
  "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const LLAMA3 =
  '{{- bos_token }}{%- for message in messages %}' +
  "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}" +
  "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}";
const MISTRAL =
  "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}" +
  "{% if message.role == 'system' %}{% set ns.system = message.content + '\n\n' %}" +
  "{% elif message.role == 'user' %}{{ '[INST] ' + ns.system + message.content + ' [/INST]' }}{% set ns.system = '' %}" +
  "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}" +
  "{% else %}{{ raise_exception('Only user, system and assistant roles are supported!') }}{% endif %}{% endfor %}";
const QWEN = `{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'user' and index > ns.last %}{% set ns.last = index %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}`;

describe('templates of model families', () => {
  it('renders ChatML in the form of SmolLM2', () => {
    expect(createChatTemplate({ source: SMOLLM }).render(chat.slice(1, 2))).toBe(
      '<|im_start|>system\nYou are a helper<|im_end|>\n<|im_start|>user\n Hi! <|im_end|>\n<|im_start|>assistant\n',
    );
  });

  it('renders Llama 3', () => {
    const template = createChatTemplate({ source: LLAMA3, bosToken: '<|begin_of_text|>' });
    expect(template.render(chat.slice(0, 2))).toBe(
      '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>' +
        '<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
    );
  });

  it('renders Mistral, which rejects unknown roles', () => {
    const template = createChatTemplate({ source: MISTRAL, bosToken: '<s>', eosToken: '</s>' });
    expect(template.render(chat)).toBe('<s>[INST] Be brief.\n\n Hi!  [/INST] Hello.</s>[INST] Bye? [/INST]');
    expect(() => template.render([{ role: 'tool', content: '' }])).toThrow(InputError);
    expect(() => template.render([{ role: 'tool', content: '' }])).toThrow(/Only user, system/);
  });

  it('renders Qwen with template variables', () => {
    const template = createChatTemplate({ source: QWEN });
    const thinking = [...chat.slice(0, 2), { role: 'assistant', content: '<think>hm</think>\n\nHello.' }];
    expect(template.render(thinking, { variables: { enable_thinking: false } })).toBe(
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi! <|im_end|>\n' +
        '<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n',
    );
  });

  it('uses ChatML if the template is missing, with a note', () => {
    const template = createChatTemplate({});
    expect(template.note).toMatch(/no chat template.*ChatML/);
    expect(createChatTemplate({ source: SMOLLM }).note).toBeUndefined();
    expect(template.render(chat.slice(1, 2), { addGenerationPrompt: false })).toBe(
      '<|im_start|>user\n Hi! <|im_end|>\n',
    );
  });

  it('uses the template for tools if there are some', () => {
    const template = createChatTemplate({ source: '{{ messages | length }}', toolSource: '{{ tools[0].name }}' });
    expect(template.render(chat)).toBe('4');
    expect(template.render(chat, { variables: { tools: [{ name: 'f' }] } })).toBe('f');
    expect(template.source).toMatch(/messages.*tools/);
  });

  it('formats dates in English', () => {
    const template = createChatTemplate({ source: '{{ strftime_now("%d %B %Y, %a %H:%M %% %Q") }}' });
    expect(template.render([], { now: new Date(2026, 1, 3, 4, 5) })).toBe('03 February 2026, Tue 04:05 % %Q');
  });

  it('formats hours of twelve, days of the year, and numbers without zeros', () => {
    const { render } = createChatTemplate({ source: '{{ strftime_now("%-d/%-m %I:%M %p %j %-j %-H %-I %-M %-B") }}' });
    expect(render([], { now: new Date(2026, 1, 3, 0, 5) })).toBe('3/2 12:05 AM 034 34 0 12 5 February');
    expect(render([], { now: new Date(2024, 11, 31, 13, 0) })).toBe('31/12 01:00 PM 366 366 13 1 0 December');
  });

  it.each([
    '{% raw %}{{ x }}{% endraw %}',
    "{% from 'a' import b %}",
    '{% include "x" %}',
    '{%+ if true %}a{% endif %}',
  ])('keeps the error of a template that cannot be parsed until it is used: %s', source => {
    const template = createChatTemplate({ source });
    expect(template.note).toMatch(/^The chat template cannot be used: .*[^.]\. Use complete, or run --raw\.$/s);
    expect(() => template.render(chat)).toThrow(FormatError);
    expect(() => template.render(chat)).toThrow(template.note);
    // The other template is not concerned.
    const withTools = createChatTemplate({ source: 'hi', toolSource: source });
    expect([withTools.note, withTools.render(chat)]).toEqual([undefined, 'hi']);
    expect(() => withTools.render(chat, { variables: { tools: [{}] } })).toThrow(FormatError);
  });

  it('rejects invalid messages', () => {
    const message = { role: 'user' } as unknown as { role: string; content: string };
    expect(() => createChatTemplate({}).render([message])).toThrow(InputError);
  });

  it('renders long chats', () => {
    const long = Array.from({ length: 2000 }, () => ({ role: 'user', content: 'x'.repeat(500) }));
    for (const source of [SMOLLM, LLAMA3, QWEN]) {
      expect(createChatTemplate({ source }).render(long).length).toBeGreaterThan(1_000_000);
    }
  });
});

// What jinja2 3.1 prints, with the settings of transformers; it rejects a loop over tools that are none.
describe('templates are rendered as in Python', () => {
  it.each([
    ['{% for x in missing %}{{ x }}{% endfor %}.', '.'],
    ['{% for x in tools %}{{ x }}{% endfor %}.', '.'],
    ['{% for x in missing if x %}{{ x }}{% endfor %}.', '.'],
    [
      '{{ missing | length }}{{ missing | trim }}{{ missing | list | length }}{{ missing | selectattr("a") | list }}',
      '00[]',
    ],
    ['{{ none | selectattr("a") | list }}{{ none | string }}', '[]None'],
    ['{{ none }}{{ true }}{% if true %}{{ data.none }}{% endif %}{% set x = none %}{{ x }}', 'NoneTrueNoneNone'],
    ['{{ "a" ~ none ~ false ~ missing ~ 1 }}', 'aNoneFalse1'],
    [
      '{{ data | string }}',
      `{'s': "it's", 'n': 'a\\n\\\\"', 'f': 1.5, 'i': 2, 'b': True, 'none': None, 'l': [1, 'x']}`,
    ],
    ['{{ data.l | upper }}{{ data.b | lower }}', "[1, 'X']true"],
    ['{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}', '13'],
    ['{{ tools is none }}{{ documents is defined }}', 'TrueTrue'],
    ['{{ data.l }}{{ "l" ~ data.l }}{{ small }} {{ [2.5, 0.00012] }}', "[1, 'x']l[1, 'x']1e-07 [2.5, 0.00012]"],
    [
      '{{ odd | tojson }}{{ {"a": [], "b": {}, "c": [{}]} | tojson(indent=1) }}',
      '{"[ ]": "a\\"{ } 0.00001", "n": [1e-05, -1.25e-05, 0.0001, 10.00001]}{\n "a": [],\n "b": {},\n "c": [\n  {}\n ]\n}',
    ],
    ['{{ data.l == [1, "x"] }}{{ data.l != odd }}{{ odd == odd }}', 'TrueTrueTrue'],
    [
      '{{ missing == none }}{{ missing != none }}{{ missing == data.missing }}{{ none == data.none }}',
      'FalseTrueTrueTrue',
    ],
    ['{{ 1 == 1.0 }}{{ data.s == "it\'s" }}{{ [] == "" }}', 'TrueTrueFalse'],
    ['{% for x in [1, 2, 3] %}<{{ x }}{% if x == 2 %}!{% continue %}{% endif %}>{% endfor %}', '<1><2!<3>'],
    ['{% for x in [1, 2, 3] %}<{{ x }}{% if x == 2 %}!{% break %}{% endif %}>{% else %}-{% endfor %}.', '<1><2!.'],
    ['{% for x in [1] %}{% for y in [1, 2] %}{{ y }}{% break %}{% endfor %}{{ x }}{% continue %}-{% endfor %}', '11'],
    ['{% for x in [1, 2] %}{% for y in [] %}{% else %}{{ x }}{% break %}{% endfor %}-{% endfor %}', '1'],
    [
      '{% for x in [1, 2] %}{{ y is defined }}{% set y = x %}{{ y }}{% endfor %}{{ y is defined }}',
      'False1False2False',
    ],
    ['{% set y = 0 %}{% for x in [1, 2] %}{% set y = y + x %}{{ y }}{% endfor %}{{ y }}', '120'],
  ])('%s', (source, text) => {
    const odd = { '[ ]': 'a"{ } 0.00001', n: [0.00001, -0.0000125, 0.0001, 10.00001] };
    const data = { s: "it's", n: 'a\n\\"', f: 1.5, i: 2, b: true, none: null, l: [1, 'x'] };
    expect(createChatTemplate({ source }).render([], { variables: { data, odd, small: 1e-7 } })).toBe(text);
  });
});

const grow = (start: string, times: number) =>
  `{% set ns = namespace(s=${start}) %}{% for i in range(${times}) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`;
const forever = (body: string) => `{% for a in range(9999) %}{% for b in range(9999) %}${body}{% endfor %}{% endfor %}`;

const HOSTILE: Record<string, string> = {
  'a huge range': '{% for i in range(10**9) %}x{% endfor %}',
  'an endless range': '{{ range(0, 10, 0) }}',
  'nested loops': forever('x'),
  'nested empty loops': forever('{% for c in range(9999) %}{% endfor %}'),
  'a doubling string': `${grow("'aaaaaaaa'", 60)}{{ ns.s }}`,
  'a doubling list': `${grow('[1]', 60)}{{ ns.s }}`,
  'lists of lists': `{% set ns = namespace(s=['lol']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}`,
  'a namespace in itself as text': '{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | string }}',
  'a namespace in itself': '{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}',
  'an endless macro': '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}',
  'a branching macro': '{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}',
  'a growing replace': `${grow("'aaaaaaaa'", 14)}{{ ns.s | replace('a', ns.s) }}`,
  'a huge indent': '{{ "a\nb" | indent(200000000) }}',
  'a huge JSON indent': '{{ [[1]] | tojson(indent=100000000) }}',
  'endless printing of a list': `${grow('[1]', 13)}{% for i in range(9999) %}{{ ns.s }}{% endfor %}`,
  'endless comparing': `${grow('[1]', 13)}${forever('{% set x = ns.s == ns.s %}')}`,
  'endless leaving of a loop': forever('{% break %}'),
  'a continue without a loop': '{% continue %}x',
  'a huge join': `${grow("'aaaaaaaa'", 14)}{{ range(9999) | join(ns.s) }}`,
  'endless searching': grow("'aaaaaaaa'", 14) + forever("{{ 'z' in ns.s }}"),
  'endless splitting': grow("'a a a a '", 14) + forever('{% set x = ns.s.split() %}'),
  'endless slicing': `{% set x = range(9999) %}${forever('{% set y = x[::1] %}')}`,
  'endless sorting': `${grow("'aaaaaaaa'", 12)}${forever('{% set x = [ns.s, ns.s, ns.s] | sort %}')}`,
  'deep brackets': `{{ ${'('.repeat(50_000)}1${')'.repeat(50_000)} }}`,
  'deep lists': `{{ ${'['.repeat(50_000)}${']'.repeat(50_000)} }}`,
  'deep ifs': '{% if true %}'.repeat(5000) + '{% endif %}'.repeat(5000),
  'a long sum': `{{ 1${' + 1'.repeat(25_000)} }}`,
  'many filters': `{{ 'a'${' | upper'.repeat(10_000)} }}`,
  'a long run of spaces': `{% set a = 1${' '.repeat(100_000)}%}`,
  'a long run of newlines': '\n'.repeat(100_000),
  'a huge source': 'x'.repeat(1_000_000),
  'an unfinished string': '{{ "abc',
  'an unknown filter': '{{ 1 | explode }}',
};

describe('a hostile template fails quickly with a FormatError', () => {
  it.each(Object.entries(HOSTILE))('%s', (_, source) => {
    const started = cpuTime();
    expect(() => createChatTemplate({ source }).render(chat)).toThrow(FormatError);
    expect(cpuTime() - started).toBeLessThan(1000);
  });

  it('cannot access JavaScript objects', () => {
    const source = '{{ messages.constructor }}{{ messages.__proto__ }}{{ "".constructor }}{{ range.constructor }}';
    expect(createChatTemplate({ source }).render(chat)).toBe('');
  });
});

describe('the limits', () => {
  it('charge a node of unknown type the full read cost', () => {
    expect(readCostOf({ type: 'TeleportExpression' }, undefined)).toBe('all');
  });

  it('depend on one version of the library, which is pinned', async () => {
    const read = async (path: string) => JSON.parse(await readFile(new URL(path, import.meta.url), 'utf8'));
    const wanted = (await read('../../package.json')).dependencies['@huggingface/jinja'];
    const installed = (await read('../../node_modules/@huggingface/jinja/package.json')).version;
    expect(wanted).toBe(installed);
  });
});

it('objects may have numbers as keys, which dictsort sorts as such', () => {
  const source = `{% set steps = {1024: 256, 0: 0, 512: 128} %}{% set ns = namespace(step=none) -%}
{% for limit, step in steps | dictsort %}{% if ns.step is none and budget <= limit %}{% set ns.step = step %}{% endif %}
{{- limit + 1 }} {% endfor %}{{ ns.step }}`;
  const render = (budget: number) => createChatTemplate({ source }).render([], { variables: { budget } }).trim();
  expect(render(-1)).toBe('1 513 1025 0');
  expect(render(300)).toBe('1 513 1025 128');
});
