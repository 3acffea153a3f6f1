/** Tools as MCP servers and clients really send them: no schema of one tool breaks a request. */
import { describe, expect, it } from 'vitest';
import { type Json, openServer, user } from './tiny-server.ts';

const CHAT = '/v1/chat/completions';
const { ask, json } = await openServer();
const messages = user('Who?');
const short = { messages, seed: 1, max_tokens: 400 };
const called = (name: string, parameters: object, more: object = {}) => ({
  type: 'function',
  function: { name, parameters, ...more },
});
const withProperty = (value: object) => ({ type: 'object', properties: { value }, required: ['value'] });

const text = { type: 'string', maxLength: 4 };
const widened: [keyword: string, parameters: Record<string, unknown>][] = [
  ['uniqueItems', withProperty({ type: 'array', items: { type: 'integer' }, uniqueItems: true, maxItems: 3 })],
  ['multipleOf', withProperty({ type: 'integer', multipleOf: 7 })],
  ['minProperties', withProperty({ type: 'object', additionalProperties: text, minProperties: 1 })],
  [
    'pattern next to minLength or maxLength',
    withProperty({ type: 'string', pattern: 'a', minLength: 2, maxLength: 9 }),
  ],
  ['pattern', withProperty({ type: 'string', pattern: '^(?=.*\\d)[a-z0-9]{1,9}$' })],
  ['oneOf', withProperty({ oneOf: [{ type: 'integer' }, { type: 'number' }] })],
  ['not', withProperty({ type: 'integer', not: { const: 3 } })],
  ['$ref', withProperty({ $ref: '#/$defs/missing' })],
];
const enforced: [keyword: string, parameters: Record<string, unknown>][] = [
  ['propertyNames', withProperty({ type: 'object', propertyNames: { type: 'string' }, additionalProperties: text })],
  ['x-order', { ...withProperty({ type: 'integer', 'x-order': 1 }), 'x-origin': 'zod' }],
  ['pattern with minLength', withProperty({ type: 'string', minLength: 1, pattern: '^[a-z]{1,4}$' })],
];

describe('a schema that cannot be enforced as a whole', () => {
  it.each([...widened, ...enforced])('%s: no 400, and a call', async (keyword, parameters) => {
    const tools = [called('first', withProperty({ type: 'boolean' })), called('second', parameters)];
    for (const more of [{}, { tool_choice: 'auto' }, { stream: true }]) {
      const response = await ask(CHAT, { ...short, ...more, max_tokens: 2, tools });
      expect(response.status, await response.clone().text()).toBe(200);
      await response.text();
      const notice = response.headers.get('x-kvasir-notice');
      if (widened.some(([name]) => name === keyword)) {
        expect(notice).toContain('tools[1].function.parameters.properties.value');
        expect(notice).toContain(`.${keyword}`);
      } else expect(notice).toBe(null);
    }
    const tool_choice = { type: 'function', function: { name: 'second' } };
    const { choices } = await json(CHAT, { ...short, tools, tool_choice });
    expect(choices[0].finish_reason).toBe('tool_calls');
    expect(Object.keys(JSON.parse(choices[0].message.tool_calls[0].function.arguments))).toEqual(['value']);
  });

  it.each(widened)('%s: with strict: true, a 400 that names the field', async (keyword, parameters) => {
    const tools = [called('first', withProperty({ type: 'boolean' })), called('second', parameters, { strict: true })];
    const response = await ask(CHAT, { ...short, tools });
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as Json;
    expect(error.param).toBe('tools[1].function.parameters');
    expect(error.message).toContain(`tools[1].function.parameters.properties.value.${keyword}`);
  });
});

describe('tools together with response_format', () => {
  const schema = { type: 'object', properties: { wise: { type: 'boolean' } }, required: ['wise'] };
  const response_format = { type: 'json_schema', json_schema: { schema } };
  const tools = [called('find', withProperty({ enum: ['Odin', 'Thor'] }))];

  it('an answer is a call, or satisfies the schema', async () => {
    const { choices } = await json(CHAT, { ...short, tools, response_format, n: 8, parallel_tool_calls: false });
    const kinds = choices.map(({ message }: Json) => {
      const { content, tool_calls } = message;
      for (const call of tool_calls ?? [])
        expect(['Odin', 'Thor']).toContain(JSON.parse(call.function.arguments).value);
      if (!tool_calls) expect(JSON.parse(content)).toEqual({ wise: expect.any(Boolean) });
      return tool_calls ? 'call' : 'text';
    });
    expect(new Set(kinds)).toEqual(new Set(['call', 'text']));
  });

  it('a required call is one, and with none the schema is satisfied', async () => {
    const required = await json(CHAT, { ...short, tools, response_format, tool_choice: 'required' });
    expect(required.choices[0].finish_reason).toBe('tool_calls');
    const none = await json(CHAT, { ...short, tools, response_format, tool_choice: 'none' });
    expect(JSON.parse(none.choices[0].message.content)).toEqual({ wise: expect.any(Boolean) });
  });

  it("json_object may have a schema, as llama.cpp's server has it", async () => {
    const { choices } = await json(CHAT, { ...short, response_format: { type: 'json_object', schema } });
    expect(JSON.parse(choices[0].message.content)).toEqual({ wise: expect.any(Boolean) });
  });
});

describe('allowed_tools', () => {
  const tools = ['first', 'second', 'third'].map(name => called(name, withProperty({ type: 'boolean' })));
  const toolNames = (names: string[]) => names.map(name => ({ type: 'function', function: { name } }));
  const allow = (mode: string, ...names: string[]) => ({
    tool_choice: { type: 'allowed_tools', allowed_tools: { mode, tools: toolNames(names) } },
  });
  const inResponses = tools.map(tool => ({ type: 'function', ...tool.function }));

  it('only those are called, and the prompt has all, so that its prefix stays in the cache', async () => {
    for (const names of [['second'], ['first', 'third']]) {
      const request = { ...short, tools, n: 6, ...allow('required', ...names) };
      const { choices, usage } = await json(CHAT, request);
      const found = choices.flatMap(({ message }: Json) => message.tool_calls.map((call: Json) => call.function.name));
      expect(new Set(found)).toEqual(new Set(names));
      expect(usage.prompt_tokens).toBe((await json(CHAT, { ...short, tools, max_tokens: 1 })).usage.prompt_tokens);
    }
    const auto = await json(CHAT, { ...short, tools, max_tokens: 8, ...allow('auto', 'first') });
    const free = await json(CHAT, { ...short, tools, max_tokens: 8 });
    expect(auto.usage.prompt_tokens).toBe(free.usage.prompt_tokens);
    expect(auto.choices[0].message.content).toBe(free.choices[0].message.content);
  });

  it('so it is with /v1/responses', async () => {
    const tool_choice = { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: 'second' }] };
    const request = { input: 'Who?', tools: inResponses, max_output_tokens: 200 };
    const { output, tool_choice: told } = await json('/v1/responses', { ...request, tool_choice });
    expect(output).toMatchObject([{ type: 'function_call', name: 'second' }]);
    expect(told).toEqual(tool_choice);
    const unknown = { ...tool_choice, tools: [{ type: 'function', name: 'fourth' }] };
    expect((await json('/v1/responses', { ...request, tool_choice: unknown })).error).toMatchObject({
      param: 'tool_choice.tools',
      message: 'tool_choice.tools names the string "fourth"; the tools are first, second, third.',
    });
  });

  it('tools of other servers among them are ignored: without others, nothing is called', async () => {
    const search = { type: 'web_search_preview' };
    const choose = (...list: object[]) => ({ type: 'allowed_tools', mode: 'required', tools: list });
    const request = { input: 'Who?', tools: [search, ...inResponses], max_output_tokens: 200 };
    const both = choose(search, { type: 'function', name: 'third' });
    expect((await json('/v1/responses', { ...request, tool_choice: both })).output).toMatchObject([{ name: 'third' }]);
    const none = { ...request, tool_choice: choose(search), max_output_tokens: 4 };
    expect((await json('/v1/responses', none)).output).toMatchObject([{ type: 'message' }]);
  });
});

it('names may have dots and slashes, as those of MCP servers', async () => {
  for (const name of ['fs.read_file', 'github/search', 'a'.repeat(128)]) {
    const request = { ...short, tools: [called(name, withProperty({ type: 'boolean' }))], tool_choice: 'required' };
    const { choices } = await json(CHAT, request);
    expect(choices[0].message.tool_calls[0].function.name).toBe(name);
  }
});

it('max_tokens of -1 and 0 are no limit, and an empty stop string stops nothing', async () => {
  const server = await openServer({ limits: { output: 7 } });
  for (const max_tokens of [-1, 0]) {
    const request = { messages, max_tokens, ignore_eos: true, stop: '', seed: 1 };
    expect((await server.json(CHAT, request)).usage.completion_tokens).toBe(7);
    const completion = { prompt: 'x', max_tokens, ignore_eos: true, stop: ['', '\u0001'.repeat(9)], seed: 1 };
    expect((await server.json('/v1/completions', completion)).usage.completion_tokens).toBe(7);
    const message = await server.ask('/v1/messages', { messages, max_tokens, stop_sequences: [''] });
    expect(message.status).toBe(200);
    const response = { input: 'Who?', max_output_tokens: max_tokens };
    expect((await server.json('/v1/responses', response)).usage.output_tokens).toBeLessThanOrEqual(7);
  }
  expect((await ask(CHAT, { messages, max_tokens: -2 })).status).toBe(400);
});

describe('tools that run on other servers are ignored, and the client is told', () => {
  const god = { name: 'find_god', input_schema: withProperty({ enum: ['Odin'] }) };
  const search = { type: 'web_search_20250305', name: 'web_search', max_uses: 5 };

  it("Anthropic's", async () => {
    const request = { ...short, tools: [search, god], tool_choice: { type: 'any' } };
    for (const stream of [false, true]) {
      const response = await ask('/v1/messages', { ...request, stream });
      expect(response.status).toBe(200);
      expect(response.headers.get('x-kvasir-notice')).toBe(
        'tools[0] is ignored: this server has no tools of the type web_search_20250305.',
      );
      expect(await response.text()).toContain('find_god');
    }
    const { input_tokens } = await json('/v1/messages/count_tokens', { messages, tools: [search, god] });
    expect(input_tokens).toBe((await json('/v1/messages/count_tokens', { messages, tools: [god] })).input_tokens);
  });

  it('also if there is no other, or if it must be called', async () => {
    for (const tool_choice of [undefined, { type: 'any' }, { type: 'tool', name: 'web_search' }])
      for (const tools of [[search], [search, god]]) {
        const response = await ask('/v1/messages', { ...short, max_tokens: 2, tools, tool_choice });
        expect(response.status, JSON.stringify({ tools, tool_choice })).toBe(200);
        await response.text();
      }
  });

  it("OpenAI's functions of 2023", async () => {
    const response = await ask(CHAT, { ...short, max_tokens: 2, functions: [{ name: 'f' }], function_call: 'auto' });
    expect(response.status).toBe(200);
    expect(response.headers.get('x-kvasir-notice')).toBe('functions is ignored: this server takes tools only.');
  });

  it("OpenAI's", async () => {
    const tools = [{ type: 'web_search_preview' }, called('first', withProperty({ type: 'boolean' }))];
    const response = await ask(CHAT, { ...short, tools, tool_choice: 'required' });
    expect(response.headers.get('x-kvasir-notice')).toContain('tools[0] is ignored');
    expect(((await response.json()) as Json).choices[0].finish_reason).toBe('tool_calls');
  });
});

describe('what tools of other servers did for an earlier answer is left out, and the client is told', () => {
  it("Anthropic's", async () => {
    const blocks = [
      { type: 'text', text: 'I search.' },
      { type: 'server_tool_use', id: 'srvtoolu_1', name: 'web_search', input: { query: 'Odin' } },
      { type: 'web_search_tool_result', tool_use_id: 'srvtoolu_1', content: [{ type: 'web_search_result', url: 'x' }] },
      { type: 'text', text: 'A god.', citations: [{ type: 'web_search_result_location', url: 'x' }] },
    ];
    const history = (content: object[]) => [...messages, { role: 'assistant', content }, ...messages];
    const response = await ask('/v1/messages', { ...short, max_tokens: 2, messages: history(blocks) });
    expect(response.status).toBe(200);
    expect(response.headers.get('x-kvasir-notice')).toBe(
      'messages has server_tool_use, web_search_tool_result of tools that ran on another server: they are left out.',
    );
    const count = async (list: object[]) =>
      (await json('/v1/messages/count_tokens', { messages: list })).input_tokens as number;
    const [first, , , last] = blocks;
    expect(await count(history(blocks))).toBe(await count(history([first, last])));
    // A message of nothing else is left out.
    expect(await count(history(blocks.slice(1, 3)))).toBe(await count([...messages, ...messages]));
  });

  it("OpenAI's", async () => {
    const search = { type: 'web_search_call', id: 'ws_1', status: 'completed', action: { type: 'search', query: 'x' } };
    const question = { role: 'user', content: 'Who?' };
    const answered = { role: 'assistant', content: 'Odin.' };
    const request = { max_output_tokens: 2, temperature: 0, store: false };
    const response = await ask('/v1/responses', { ...request, input: [question, search, answered, question] });
    expect(response.status).toBe(200);
    expect(response.headers.get('x-kvasir-notice')).toBe(
      'input has web_search_call of tools that ran on another server: they are left out.',
    );
    const { usage } = await json('/v1/responses', { ...request, input: [question, answered, question] });
    expect(((await response.json()) as Json).usage.input_tokens).toBe(usage.input_tokens);
  });
});

describe("errors name the request's own fields", () => {
  const errorOf = async (path: string, request: object) => {
    const response = await ask(path, { messages, max_tokens: 2, ...request });
    expect(response.status).toBe(400);
    return ((await response.json()) as Json).error;
  };
  const unique = withProperty({ type: 'array', uniqueItems: true });
  const search = { type: 'web_search_20250305', name: 'web_search' };

  it.each([
    [
      { tools: [search, { name: 'f', input_schema: unique, strict: true }] },
      'tools[1].input_schema.properties.value.uniqueItems is',
    ],
    [{ tools: [{ name: 'f f', input_schema: {} }] }, 'tools[0].name must be 1 to 128'],
    [{ tools: [{ input_schema: {} }] }, 'tools[0].name is missing'],
    [{ tools: [{ name: 'f' }] }, 'tools[0].input_schema is missing'],
    [
      { tools: [search, { name: 'f', input_schema: {} }, { name: 'f', input_schema: {} }] },
      "tools[2].name is f, as another tool's",
    ],
    [
      { tools: [{ name: 'f', input_schema: {} }], tool_choice: { type: 'tool', name: 'g' } },
      'tool_choice names the string "g"',
    ],
  ])("Anthropic's: %j", async (request, message) => {
    expect((await errorOf('/v1/messages', request)).message).toContain(message);
  });

  it.each([
    [{ tools: [called('f', unique, { strict: true })] }, 'tools[0].function.parameters'],
    [{ tools: [called('f f', {})] }, 'tools[0].function.name'],
    [{ tools: [called('f', {}), called('f', {})] }, 'tools[1].function.name'],
    [{ tools: [{ type: 'function' }] }, 'tools[0].function'],
    [{ tools: [called('f', {})], tool_choice: { type: 'function', function: { name: 'g' } } }, 'tool_choice'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [
      {
        tools: [called('f', {})],
        tool_choice: {
          type: 'allowed_tools',
          allowed_tools: { mode: 'auto', tools: [{ type: 'function', function: { name: 'g' } }] },
        },
      },
      'tool_choice.allowed_tools.tools',
    ],
    [{ tools: [called('f', {})], tool_choice: { type: 'allowed_tools' } }, 'tool_choice'],
    [
      { response_format: { type: 'json_schema', json_schema: { schema: unique } } },
      'response_format.json_schema.schema',
    ],
    [{ response_format: { type: 'json_object', schema: unique } }, 'response_format.schema'],
  ])("OpenAI's: %j", async (request, param) => {
    const error = await errorOf(CHAT, request);
    expect(error.param).toBe(param);
    expect(error.message.startsWith(param)).toBe(true);
  });
});

it('the log has each notice once', async () => {
  const lines: string[] = [];
  const logger = { warn: (_: unknown, line: string) => lines.push(line) };
  const server = await openServer({ logger: logger as never });
  const tools = [called('f', withProperty({ type: 'integer', not: { const: 3 } }))];
  for (let i = 0; i < 3; i++) await server.json(CHAT, { messages, max_tokens: 1, tools });
  expect(lines).toEqual([
    'Calls need not satisfy tools[0].function.parameters.properties.value.not: check their arguments.',
  ]);
});
