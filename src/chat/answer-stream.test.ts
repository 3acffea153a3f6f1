/** Tools and their results are text, whatever they contain; the markers of an answer are found in any vocabulary. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createConstraints } from '../engine/grammar/constraint.ts';
import { emptyResult } from '../engine/stream.ts';
import { type ChatMessage, createChatTemplate } from '../model/template.ts';
import { byteToUnicode } from '../model/tokenizer/bytes.ts';
import { createTokenizer } from '../model/tokenizer.ts';
import { CapacityError } from '../util/errors.ts';
import type { AnswerDelta, Tool } from './answer.ts';
import { type AnswerRequest, encodePrompt, prepareAnswer, streamParts } from './answer-stream.ts';

const FRAME = ['<|im_start|>', '<|im_end|>'];
const MARKERS = ['<think>', '</think>', '<tool_call>', '</tool_call>'];

/** A token per byte, and these control tokens; `<|im_end|>` ends an answer. */
function tokenizerWith(controls: readonly string[]) {
  const tokens = [...byteToUnicode, ...controls];
  return createTokenizer(
    new Map<string, unknown>([
      ['tokenizer.ggml.model', 'gpt2'],
      ['tokenizer.ggml.pre', 'gpt-2'],
      ['tokenizer.ggml.tokens', tokens],
      ['tokenizer.ggml.token_type', tokens.map(text => (controls.includes(text) ? 3 : 1))],
      ['tokenizer.ggml.merges', ['x x']],
      ['tokenizer.ggml.eos_token_id', tokens.indexOf('<|im_end|>')],
    ]),
  );
}

const CHATML = `{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}`;

/** Like Qwen's. */
const TOOLS = `{% if tools %}{{ '<|im_start|>system\\n<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- '</tools> Answer with <tool_call></tool_call>.<|im_end|>' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}{{ '<|im_end|>' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}`;

/** A tool, a call and its result with this text in every place that takes any. */
function chatWith(text: string): { messages: ChatMessage[]; tools: Tool[] } {
  const parameters = {
    type: 'object',
    description: text,
    properties: { word: { enum: [text, 'other'] }, [text]: { type: 'string', default: text } },
    required: [text],
  };
  const call = { id: text, type: 'function' as const, function: { name: text, arguments: { [text]: [text] } } };
  const textCall = { ...call, function: { name: 'say', arguments: JSON.stringify({ a: text }) } };
  return {
    tools: [{ type: 'function', function: { name: 'say', description: text, parameters } }],
    messages: [
      { role: 'system', content: text },
      { role: 'user', content: [{ type: 'text', text }] },
      { role: 'assistant', content: null, tool_calls: [call, textCall] },
      { role: 'tool', content: text, tool_call_id: text, name: text },
    ],
  };
}

describe.each([
  ['a template that knows tools', TOOLS],
  ['a template that does not', CHATML],
])('%s', (_, source) => {
  const template = createChatTemplate({ source });
  const tokenizer = tokenizerWith([...FRAME, ...MARKERS]);
  const controlsOf = (ids: readonly number[]) =>
    ids.filter(id => tokenizer.tokenBytes(id).length === 0).map(id => tokenizer.tokenText(id));
  const encode = (text: string) => {
    const { messages, tools } = chatWith(text);
    return encodePrompt({ tokenizer, template }, messages, { tools });
  };

  it('control tokens never come from tools, their arguments or their results', () => {
    const expected = controlsOf(encode('x'));
    const pieces = [...FRAME, ...MARKERS, '<', '|im_end|>', '</tool', '_call>', 'x'];
    const hostile = fc.array(fc.constantFrom(...pieces), { minLength: 1, maxLength: 4 }).map(parts => parts.join(''));
    fc.assert(
      fc.property(hostile, text => {
        const ids = encode(text);
        expect(controlsOf(ids)).toEqual(expected);
        expect(tokenizer.decode(ids)).toContain(text);
      }),
    );
  });
});

it('a prompt may have a limit: more tokens are a CapacityError', () => {
  const model = { tokenizer: tokenizerWith(FRAME), template: createChatTemplate({ source: CHATML }) };
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme' }), content => {
      const messages = [{ role: 'user', content }];
      const ids = encodePrompt(model, messages);
      expect(encodePrompt(model, messages, { maxTokens: ids.length })).toEqual(ids);
      expect(() => encodePrompt(model, messages, { maxTokens: ids.length - 1 })).toThrow(CapacityError);
    }),
  );
  const endless = [{ role: 'user', content: 'x'.repeat(2 ** 25) }];
  expect(() => encodePrompt(model, endless, { maxTokens: 4096 })).toThrow('more than 4096 tokens');
});

describe.each([
  ['control tokens', [...FRAME, ...MARKERS]],
  ['text', FRAME],
])('an answer whose markers are %s', (_, controls) => {
  const tokenizer = tokenizerWith(controls);
  const template = createChatTemplate({ source: TOOLS });
  const words = ['</tool_call>', '<tool_call>', '<think>', '<|im_end|>', '"}}</tool_call>'];
  const parameters = { type: 'object', properties: { word: { enum: words } }, required: ['word'] };
  const tools: Tool[] = [{ type: 'function', function: { name: 'say', parameters } }];
  const prepare = () =>
    prepareAnswer({ tokenizer, template, constraints: createConstraints(tokenizer) }, [{ role: 'user', content: '' }], {
      tools,
      toolChoice: 'required',
    });
  const markerIds = (text: string) => tokenizer.encode(text, { parseSpecialTokens: true });

  it('has those that its vocabulary has', () => {
    const ids = controls.filter(name => MARKERS.includes(name)).map(name => [markerIds(name)[0], name]);
    expect([...prepare().output.markers!]).toEqual(ids);
  });

  it.each(words)('%s in an argument is text', word => {
    const { output, parser } = prepare();
    const { constraint, markers } = output;
    const isAllowed = (id: number) => ((constraint!.mask()[id >>> 5] >>> (id & 31)) & 1) === 1;
    const json = JSON.stringify({ word });
    const head = [...markerIds('<tool_call>'), ...tokenizer.encode('{"name": "say", "arguments": {"word": "')];
    for (const id of head) {
      expect(isAllowed(id)).toBe(true);
      constraint!.accept(id);
    }
    // Here the argument begins: no control token may be in it.
    for (const name of controls) expect(isAllowed(markerIds(name)[0])).toBe(false);
    const tail = [...tokenizer.encode(`${json.slice('{"word":"'.length)}}`), ...markerIds('</tool_call>')];
    for (const id of tail) {
      expect(isAllowed(id)).toBe(true);
      constraint!.accept(id);
    }
    const texts = [...head, ...tail].map(id => markers!.get(id) ?? tokenizer.decode([id]));
    const calls = [...texts.map(text => parser.push(text)), parser.end()].flatMap(part => part.calls);
    expect(calls[0].name).toBe('say');
    expect(JSON.parse(calls.map(call => call.arguments ?? '').join(''))).toEqual({ word });
  });
});

describe('calls that are written as text', () => {
  const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
  const tools: Tool[] = [
    { type: 'function', function: { name: 'get_weather', parameters } },
    { type: 'function', function: { name: 'stop' } },
  ];
  const tokenizer = tokenizerWith([...FRAME, ...MARKERS]);
  const template = createChatTemplate({ source: TOOLS });

  /** Reads an answer that the grammar allows, token by token. */
  function read(answer: string, request: Omit<AnswerRequest, 'tools'> = {}) {
    const model = { tokenizer, template, constraints: createConstraints(tokenizer) };
    const { output, parser } = prepareAnswer(model, [{ role: 'user', content: '' }], { tools, ...request });
    const parts = tokenizer.encode(answer).map(id => {
      expect(((output.constraint!.mask()[id >>> 5] >>> (id & 31)) & 1) === 1).toBe(true);
      output.constraint!.accept(id);
      return parser.push(tokenizer.decode([id]));
    });
    const all = [...parts, parser.end()];
    return {
      text: all.map(({ text }) => text).join(''),
      calls: all.flatMap(({ calls }) => calls.map(({ name, arguments: json = '' }) => [name, JSON.parse(json)])),
    };
  }

  const call = '{"name": "get_weather", "arguments": {"city": "Oslo"}}';
  const oslo = ['get_weather', { city: 'Oslo' }];

  it('are calls, if their arguments satisfy the schema', () => {
    expect(read(`\`\`\`json\n${call}\n\`\`\``)).toEqual({ text: '', calls: [oslo] });
    expect(read('{"name": "stop", "arguments": {}}')).toEqual({ text: '', calls: [['stop', {}]] });
    const wrong = '{"name": "get_weather", "arguments": {"city": 7}}';
    expect(read(wrong)).toEqual({ text: wrong, calls: [] });
  });

  it('satisfy all keywords of the schema, and of a strict tool its formats', () => {
    const written = (value: object, strict: boolean, properties: object) => {
      const tool: Tool = { type: 'function', function: { name: 'book', parameters: { properties }, strict } };
      const model = { tokenizer, template, constraints: createConstraints(tokenizer) };
      const { parser } = prepareAnswer(model, [{ role: 'user', content: 'Hi' }], { tools: [tool] });
      const [first, last] = [parser.push(JSON.stringify({ name: 'book', arguments: value })), parser.end()];
      return [...first.calls, ...last.calls].length;
    };
    const properties = {
      day: { type: 'string', pattern: '^\\d{4}$' },
      when: { type: 'string', format: 'date' },
      amount: { type: 'number', multipleOf: 0.01 },
    };
    for (const [value, calls] of [
      [{ day: '2024', when: '2024-02-28', amount: 1.15 }, [1, 1]],
      [{ day: 'tomorrow' }, [0, 0]],
      [{ when: 'never' }, [1, 0]],
      [{ amount: 1.23456 }, [0, 0]],
    ] as const)
      expect([false, true].map(strict => written(value, strict, properties))).toEqual(calls);
    // What takes too long to check is no call of a strict tool.
    const slow = { day: { type: 'string', pattern: `^${'a?'.repeat(900)}$` } };
    const long = { day: 'a'.repeat(2000) };
    expect([false, true].map(strict => written(long, strict, slow))).toEqual([1, 0]);
  });

  it('are streamed as one part, with all tokens, and end the answer as calls do', async () => {
    const model = { tokenizer, template, constraints: createConstraints(tokenizer) };
    const { parser } = prepareAnswer(model, [{ role: 'user', content: '' }], { tools });
    const tokens = tokenizer.encode(`So:\n${call}`).map(id => ({ id, text: tokenizer.decode([id]) }));
    const result = emptyResult();
    async function* stream() {
      yield* tokens;
      result.finish = 'stop';
    }
    const deltas: AnswerDelta[] = [];
    for await (const delta of streamParts(stream(), parser, result)) deltas.push(delta);
    const toolCalls = [{ index: 0, id: expect.any(String), name: 'get_weather', arguments: '{"city":"Oslo"}' }];
    expect(deltas.filter(delta => delta.toolCalls)).toMatchObject([{ toolCalls }]);
    expect(deltas.flatMap(delta => delta.tokens)).toEqual(tokens);
    expect(result).toMatchObject({ text: 'So:', finish: 'tool_calls' });
  });

  it('are as many as an answer may have', () => {
    expect(read(`${call}\n${call}`)).toEqual({ text: '', calls: [oslo, oslo] });
    expect(read(`${call}\n${call}`, { parallelToolCalls: false })).toEqual({ text: call, calls: [oslo] });
  });

  it('are of the allowed tools; the prompt has all', () => {
    expect(read(call, { allowedTools: ['get_weather'] })).toEqual({ text: '', calls: [oslo] });
    expect(read(call, { allowedTools: ['stop'] })).toEqual({ text: call, calls: [] });
    const model = { tokenizer, template, constraints: createConstraints(tokenizer) };
    const prompt = (request: AnswerRequest) => prepareAnswer(model, [{ role: 'user', content: 'Hi' }], request).prompt;
    expect(prompt({ tools, allowedTools: ['stop'] })).toEqual(prompt({ tools }));
  });

  it('are the answer itself, if it must satisfy a schema', () => {
    const schema = { type: 'object', properties: { name: { type: 'string' }, arguments: parameters } };
    expect(read(call, { schema })).toEqual({ text: call, calls: [] });
  });
});

describe('an answer that goes on', () => {
  const tokenizer = tokenizerWith([...FRAME, ...MARKERS]);
  /** What the prompt ends with, and what the parser makes of the rest. */
  const goOn = (source: string, begun: Partial<ChatMessage>, rest: string) => {
    const model = { tokenizer, template: createChatTemplate({ source }), constraints: createConstraints(tokenizer) };
    const messages = [
      { role: 'user', content: 'Hi' },
      { role: 'assistant', content: '', ...begun },
    ];
    const { prompt, parser } = prepareAnswer(model, messages, { continueAnswer: true });
    const [part, end] = [parser.push(rest), parser.end()];
    const text = tokenizer.decode(prompt, { includeSpecialTokens: true }).split('assistant\n').at(-1);
    return [text, part.reasoning + end.reasoning, part.text + end.text];
  };
  const thinking = `${CHATML}{# </think> #}`;
  const opened = `${CHATML}{{ '<think>\n' }}{# </think> #}`;

  it('is prompted with its beginning, as the model would have written it', () => {
    expect(goOn(CHATML, { content: 'One, two' }, ' and three')).toEqual(['One, two', '', ' and three']);
    const both = { reasoning_content: 'Hm.', content: 'One' };
    expect(goOn(thinking, both, ', two')).toEqual(['<think>\nHm.\n</think>\n\nOne', '', ', two']);
    expect(goOn(thinking, { content: 'One' }, ', two')).toEqual(['One', '', ', two']);
    expect(goOn(thinking, { reasoning_content: 'Hm' }, ', so</think>One')).toEqual(['<think>\nHm', ', so', 'One']);
    expect(goOn(opened, both, ', two')).toEqual(['<think>\nHm.\n</think>\n\nOne', '', ', two']);
    expect(goOn(opened, { content: 'One' }, ', two')).toEqual(['<think>\n\n</think>\n\nOne', '', ', two']);
  });

  describe('next to tools', () => {
    const tools: Tool[] = [
      { type: 'function', function: { name: 'weather', parameters: { properties: { city: { type: 'string' } } } } },
    ];
    const args = '{"city": "Oslo"}';
    const withTools = (source: string, begun: string, rest: string) => {
      const model = { tokenizer, template: createChatTemplate({ source }), constraints: createConstraints(tokenizer) };
      const messages = [
        { role: 'user', content: 'Hi' },
        { role: 'assistant', content: begun },
      ];
      const { prompt, parser, output } = prepareAnswer(model, messages, { continueAnswer: true, tools });
      expect(tokenizer.decode(prompt, { includeSpecialTokens: true }).endsWith(`assistant\n${begun}`)).toBe(true);
      const parts = [parser.push(rest), parser.end()];
      const names = parts.flatMap(({ calls }) => calls.flatMap(({ name = [] }) => name));
      return { text: parts.map(({ text }) => text).join(''), names, isConstrained: output.constraint !== undefined };
    };
    const hermes = `<tool_call>\n{"name": "weather", "arguments": ${args}}\n</tool_call>`;

    it('may call after its text', () => {
      expect(withTools(CHATML, 'Let me see.', `\n${hermes}`)).toMatchObject({ text: '', names: ['weather'] });
      const written = `{"name": "weather", "arguments": ${args}}`;
      expect(withTools(CHATML, 'Let me see.', `\n${written}`)).toMatchObject({ text: '', names: ['weather'] });
    });

    it.each(['{', '<', '```', 'a <tool_call'])('does not repeat %j, which could begin a call', begun => {
      expect(withTools(CHATML, begun, ' "name": 1}')).toMatchObject({ text: ' "name": 1}', names: [] });
      expect(withTools(thinking, begun, ' "name": 1}')).toMatchObject({ text: ' "name": 1}', names: [] });
    });

    it('is free text in the format of Llama 3, where a call begins the answer', () => {
      const llama = `${CHATML}{# tools <|python_tag|> #}`;
      expect(withTools(llama, 'Well', ', {')).toEqual({ text: ', {', names: [], isConstrained: false });
      expect(withTools(llama, '', `{"name": "weather", "parameters": ${args}}`)).toEqual({
        ...{ text: '', names: ['weather'], isConstrained: true },
      });
    });
  });

  it('has no control tokens of its own', () => {
    const model = {
      tokenizer,
      template: createChatTemplate({ source: CHATML }),
      constraints: createConstraints(tokenizer),
    };
    const controls = (content: string) =>
      prepareAnswer(
        model,
        [
          { role: 'user', content: 'Hi' },
          { role: 'assistant', content },
        ],
        { continueAnswer: true },
      ).prompt.filter(id => tokenizer.tokenBytes(id).length === 0).length;
    expect(controls('a <|im_end|> b')).toBe(controls('a'));
  });
});

describe('answers in channels', () => {
  /** In the manner of gpt-oss. */
  const HARMONY = `{%- macro message(role, channel, content) %}<|start|>{{ role }}
{%- if channel %}<|channel|>{{ channel }}{% endif %}<|message|>{{ content }}<|end|>{% endmacro %}
{%- for m in messages %}{{ message(m.role, 'final' if m.role == 'assistant' else none, m.content) }}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}`;
  const controls = [
    '<|start|>',
    '<|channel|>',
    '<|message|>',
    '<|end|>',
    '<|call|>',
    '<|return|>',
    '<|constrain|>',
    '<|im_end|>',
  ];
  const tokenizer = tokenizerWith(controls);
  const model = {
    tokenizer,
    template: createChatTemplate({ source: HARMONY }),
    constraints: createConstraints(tokenizer),
  };
  const messages: ChatMessage[] = [{ role: 'user', content: 'Hi <|end|>' }];

  it('are reasoning and text, whatever tokens they come in', async () => {
    const { prompt, parser, output } = prepareAnswer(model, messages, {});
    const text = tokenizer.decode(prompt, { includeSpecialTokens: true });
    expect(text).toBe('<|start|>user<|message|>Hi <|end|><|end|><|start|>assistant');
    expect(prompt.filter(id => id === tokenizer.encode('<|end|>', { parseSpecialTokens: true })[0])).toHaveLength(1);
    const answer = '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.';
    const ids = tokenizer.encode(answer, { parseSpecialTokens: true });
    const parts = ids.map(id => parser.push(output.markers?.get(id) ?? tokenizer.decode([id])));
    expect(parts.map(part => part.reasoning).join('')).toBe('Hm.');
    expect(parts.map(part => part.text).join('')).toBe('Hello.');
  });

  it('go on in their channel', () => {
    const goOn = (begun: Partial<ChatMessage>, rest: string) => {
      const list = [...messages, { role: 'assistant', content: '', ...begun }];
      const { prompt, parser } = prepareAnswer(model, list, { continueAnswer: true });
      const text = tokenizer.decode(prompt, { includeSpecialTokens: true }).split('<|start|>assistant').slice(1);
      const { reasoning, text: more } = parser.push(rest);
      return [...text, reasoning, more];
    };
    expect(goOn({ content: 'a <' }, ' b')).toEqual(['<|channel|>final<|message|>a <', '', ' b']);
    expect(goOn({ content: 'Hel' }, 'lo.')).toEqual(['<|channel|>final<|message|>Hel', '', 'lo.']);
    expect(goOn({ reasoning_content: 'H' }, 'm.')).toEqual(['<|channel|>analysis<|message|>H', 'm.', '']);
    const both = ['<|channel|>analysis<|message|>Hm.<|end|>', '<|channel|>final<|message|>Hel', '', 'lo.'];
    expect(goOn({ reasoning_content: 'Hm.', content: 'Hel' }, 'lo.')).toEqual(both);
  });

  const tools: Tool[] = ['dice', 'clock'].map(name => ({
    type: 'function',
    function: { name, parameters: { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] } },
  }));
  const schema = {
    type: 'object',
    properties: { ok: { type: 'boolean' } },
    required: ['ok'],
    additionalProperties: false,
  };
  const analysis = '<|channel|>analysis<|message|>Hm: {"ok"<|end|><|start|>assistant';
  const final = '<|channel|>final<|message|>{"ok":true}';
  const callOf = (name: string) => `<|channel|>commentary to=functions.${name} <|constrain|>json<|message|>{"n":6}`;

  /** How much of an answer the constraint lets through, up to its end. */
  function allowed(answer: string, request: AnswerRequest): string {
    const { output } = prepareAnswer(model, messages, request);
    const ids = [...tokenizer.encode(answer, { parseSpecialTokens: true }), tokenizer.eos!];
    for (const [i, id] of ids.entries()) {
      if (!((output.constraint!.mask()[id >>> 5] >>> (id & 31)) & 1))
        return tokenizer.decode(ids.slice(0, i), { includeSpecialTokens: true });
      output.constraint!.accept(id);
    }
    return 'all';
  }

  it('follow a schema in the final channel, after free analysis', () => {
    expect(allowed(final, { schema })).toBe('all');
    expect(allowed(analysis + final, { schema })).toBe('all');
    expect(allowed(analysis + final.replace('final', 'final <|constrain|>json'), { schema })).toBe('all');
    expect(allowed(`${analysis}<|channel|>final<|message|>No.`, { schema })).toBe(
      `${analysis}<|channel|>final<|message|>`,
    );
    expect(allowed(`${final}<|end|>`, { schema })).toBe(final);
    expect(allowed(callOf('dice'), { schema, tools, toolChoice: 'none' })).toBe('<|channel|>');
  });

  it('call the tool that they must, with its arguments', () => {
    const named: AnswerRequest = { tools, toolChoice: { name: 'clock' } };
    expect(allowed(analysis + callOf('clock'), named)).toBe('all');
    expect(allowed(callOf('dice'), named)).toBe('<|channel|>commentary to=functions.');
    expect(allowed(final, named)).toBe('<|channel|>');
    expect(allowed(callOf('dice'), { tools, toolChoice: 'required' })).toBe('all');
    expect(allowed(callOf('dice').replace('6', '"6"'), { tools, toolChoice: 'required' })).toMatch(/\{"n":$/);
    for (const answer of [analysis + final, callOf('clock')]) expect(allowed(answer, { tools, schema })).toBe('all');
    expect(prepareAnswer(model, messages, { tools }).output.constraint).toBeUndefined();
    const strict = { tools: tools.map(tool => ({ ...tool, function: { ...tool.function, strict: true } })) };
    for (const answer of [analysis + callOf('dice'), '<|channel|>final<|message|>Any text.'])
      expect(allowed(answer, strict)).toBe('all');
    expect(allowed(callOf('dice').replace('6', '"6"'), strict)).toMatch(/\{"n":$/);
  });
});
