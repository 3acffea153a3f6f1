/** POST /v1/messages, Anthropic's API, on a tiny random model. */
import { describe, expect, it } from 'vitest';
import { toPrompt } from '../../../src/server/anthropic-prompt.ts';
import { type Json, openServer, readEvents, user } from './tiny-server.ts';

const PATH = '/v1/messages';
const { ask, json, service } = await openServer();
/** A random model may end at once: this one does not. */
const request = { messages: user('Who was Kvasir?'), temperature: 0, max_tokens: 10 };
const headers = { 'anthropic-version': '2023-06-01' };

it("answers in Anthropic's shape, with the text of the library", async () => {
  const { text, usage } = await service.answer(request.messages, { temperature: 0, maxTokens: 10 }).result();
  expect(await json(PATH, { ...request, model: 'tiny' }, headers)).toEqual({
    id: expect.stringMatching(/^msg_/),
    type: 'message',
    role: 'assistant',
    model: 'tiny',
    content: [{ type: 'text', text }],
    stop_reason: 'max_tokens',
    stop_sequence: null,
    usage: {
      input_tokens: usage.promptTokens,
      cache_read_input_tokens: 0,
      cache_creation_input_tokens: 0,
      output_tokens: 10,
    },
  });
});

it('streams blocks between message_start and message_stop', async () => {
  const response = await ask(PATH, { ...request, stream: true });
  const names = (await response.clone().text()).match(/^event: .*$/gm)?.map(line => line.slice(7)) ?? [];
  const events = await readEvents(response);
  expect(events.map(({ type }) => type)).toEqual(names);
  expect(names.slice(0, 2)).toEqual(['message_start', 'content_block_start']);
  expect(names.slice(-3)).toEqual(['content_block_stop', 'message_delta', 'message_stop']);
  const { content, usage } = await json(PATH, request);
  const text = events.map(({ delta }) => delta?.text ?? '').join('');
  expect(text).toBe(content[0].text);
  expect(events[0].message.usage.input_tokens).toBe(usage.input_tokens);
  expect(events.at(-2)).toMatchObject({ delta: { stop_reason: 'max_tokens' }, usage: { output_tokens: 10 } });
});

it.each([
  ['output_config', (format: object) => ({ output_config: { format } })],
  ['output_format', (format: object) => ({ output_format: format })],
] as const)('an answer satisfies the schema of %s, and a schema that cannot be enforced is named', async (name, of) => {
  const schema = {
    type: 'object',
    properties: { old: { type: 'boolean' } },
    required: ['old'],
    additionalProperties: false,
  };
  const { content, stop_reason } = await json(PATH, {
    ...request,
    max_tokens: 64,
    ...of({ type: 'json_schema', schema }),
  });
  expect(stop_reason).toBe('end_turn');
  expect(JSON.parse(content[0].text)).toEqual({ old: expect.any(Boolean) });
  const refused = await ask(PATH, { ...request, ...of({ type: 'json_schema', schema: { type: 'nothing' } }) });
  expect(refused.status).toBe(400);
  expect((await refused.json()).error.message).toContain(name);
});

it('names the stop sequence that ended it', async () => {
  const { content } = await json(PATH, { ...request, max_tokens: 40 });
  const stop = content[0].text.slice(2, 4);
  expect(await json(PATH, { ...request, max_tokens: 40, stop_sequences: [stop] })).toMatchObject({
    stop_reason: 'stop_sequence',
    stop_sequence: stop,
  });
});

it('counts cached tokens apart', async () => {
  const long = { ...request, system: 'mead '.repeat(100) };
  const first = await json(PATH, long);
  const second = await json(PATH, long);
  // The beginning of every chat.
  expect(first.usage.cache_read_input_tokens).toBeLessThan(20);
  expect(second.usage.cache_read_input_tokens).toBeGreaterThan(300);
  const total = first.usage.input_tokens + first.usage.cache_read_input_tokens;
  expect(second.usage.input_tokens + second.usage.cache_read_input_tokens).toBe(total);
  const counted = await json(`${PATH}/count_tokens`, { messages: long.messages, system: long.system });
  expect(counted).toEqual({ input_tokens: total });
});

describe('count_tokens', () => {
  const weather = { name: 'weather', description: 'In a city', input_schema: { type: 'object' } };
  const call = { type: 'tool_use', id: 't1', name: 'weather', input: { city: 'Oslo' } };
  const talk = [
    ...user('Is it cold?'),
    { role: 'assistant', content: [call] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't1', content: '4 degrees' }] },
  ];
  it.each<[string, object]>([
    ['tools', { tools: [weather] }],
    ['tools that may not be called', { tools: [weather], tool_choice: { type: 'none' } }],
    ['calls and their results', { tools: [weather], messages: talk }],
    ['a system message', { tools: [weather], system: 'Be brief.', tool_choice: { type: 'any' } }],
  ])('counts %s as the prompt has them', async (_, fields) => {
    const prompt = { messages: request.messages, ...fields };
    const { usage } = await json(PATH, { ...request, ...prompt, max_tokens: 1 });
    const counted = await json(`${PATH}/count_tokens`, prompt);
    expect(counted).toEqual({ input_tokens: usage.input_tokens + usage.cache_read_input_tokens });
  });
});

describe('a prompt', () => {
  it('has the system, thinking, tool calls and their results where templates expect them', () => {
    const { messages, tools, toolChoice, render } = toPrompt({
      system: [{ type: 'text', text: 'Be brief.' }],
      thinking: { type: 'enabled' },
      tools: [{ name: 'add', description: 'Adds.', input_schema: { type: 'object' } }],
      tool_choice: { type: 'any' },
      messages: [
        { role: 'user', content: '1 + 1?' },
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'Use the tool.' },
            { type: 'tool_use', id: 't1', name: 'add', input: { a: 1, b: 1 } },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 't1', content: [{ type: 'text', text: '2' }] },
            { type: 'text', text: 'So?' },
          ],
        },
      ],
    });
    expect(messages).toEqual([
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: '1 + 1?' },
      {
        role: 'assistant',
        content: null,
        reasoning_content: 'Use the tool.',
        tool_calls: [{ id: 't1', type: 'function', function: { name: 'add', arguments: { a: 1, b: 1 } } }],
      },
      { role: 'tool', tool_call_id: 't1', content: '2' },
      { role: 'user', content: 'So?' },
    ]);
    expect(tools).toEqual([
      { type: 'function', function: { name: 'add', description: 'Adds.', parameters: { type: 'object' } } },
    ]);
    expect(toolChoice).toBe('required');
    expect(render.variables).toEqual({ enable_thinking: true });
  });
});

describe('a last message of the assistant', () => {
  const begun = [...request.messages, { role: 'assistant', content: 'A god, born of' }];
  const find = { name: 'find', input_schema: { type: 'object', properties: {} } };

  it('is the beginning of the answer: the prompt ends with its text, and the answer follows it', async () => {
    const { tokens } = await json('/tokenize', { messages: begun });
    const start = await service.tokenize('A god, born of');
    expect(tokens.slice(-start.length)).toEqual(start);
    const asks = await service.tokenizeChat(request.messages, { addGenerationPrompt: true });
    expect(tokens).toEqual([...asks, ...start]);
    const { text } = await service.generate(tokens, { temperature: 0, maxTokens: 10 }).result();
    const { content, usage } = await json(PATH, { ...request, messages: begun });
    expect(content).toEqual([{ type: 'text', text }]);
    expect(usage.input_tokens + usage.cache_read_input_tokens).toBe(tokens.length);
    expect(await json(`${PATH}/count_tokens`, { messages: begun })).toEqual({ input_tokens: tokens.length });
    const events = await readEvents(await ask(PATH, { ...request, messages: begun, stream: true }));
    expect(events.map(({ delta }) => delta?.text ?? '').join('')).toBe(text);
  });

  it('may be blocks, or empty, and goes on next to tools', async () => {
    const blocks = [{ type: 'text', text: 'A god, born of' }];
    const [plain] = (await json(PATH, { ...request, messages: begun })).content;
    const inBlocks = [...request.messages, { role: 'assistant', content: blocks }];
    expect((await json(PATH, { ...request, messages: inBlocks })).content).toEqual([plain]);
    const empty = [...request.messages, { role: 'assistant', content: '' }];
    expect((await json(PATH, { ...request, messages: empty })).content).toEqual((await json(PATH, request)).content);
    const counted = async (messages: object[]) =>
      (await json(`${PATH}/count_tokens`, { messages, tools: [find] })).input_tokens;
    expect((await counted(begun)) - (await counted(request.messages))).toBe(
      (await service.tokenize('A god, born of')).length,
    );
    expect((await ask(PATH, { ...request, messages: begun, tools: [find] })).status).toBe(200);
  });

  it.each([{ type: 'any' }, { type: 'tool', name: 'find' }])(
    'with tool_choice $type: a 400 that says what to do',
    async tool_choice => {
      const response = await ask(PATH, { ...request, messages: begun, tools: [find], tool_choice });
      expect(response.status).toBe(400);
      expect(((await response.json()) as Json).error.message).toMatch(
        /^tool_choice asks for a call, .* Send tool_choice/,
      );
    },
  );
});

it("has errors in Anthropic's shape", async () => {
  const errorOf = async (body: unknown) => {
    const response = await ask(PATH, body);
    return { status: response.status, id: response.headers.get('request-id'), ...((await response.json()) as Json) };
  };
  expect(await errorOf({ messages: request.messages })).toMatchObject({
    status: 400,
    id: expect.any(String),
    type: 'error',
    error: { type: 'invalid_request_error', message: expect.stringContaining('max_tokens') },
  });
  const image = [{ type: 'image', source: {} }];
  expect(await errorOf({ ...request, messages: [{ role: 'user', content: image }] })).toMatchObject({ status: 400 });
  expect(await errorOf({ ...request, messages: user('x'.repeat(3000)) })).toMatchObject({
    status: 400,
    error: { message: expect.stringContaining('maximum context length') },
  });
});
