/** Structured output and tools over HTTP, on a tiny random model: only constrained decoding can make it write JSON. */
import { expect, it } from 'vitest';
import { type Json, openServer, readEvents, user } from './tiny-server.ts';

const CHAT = '/v1/chat/completions';
const { ask, json } = await openServer();
const messages = user('Who?');
const schema = {
  type: 'object',
  properties: { name: { enum: ['Odin', 'Thor'] }, wise: { type: 'boolean' } },
  required: ['name', 'wise'],
  additionalProperties: false,
};
const parameters = schema;
const tools = [{ type: 'function', function: { name: 'find_god', description: null, parameters } }];
const isGod = ({ name, wise }: Json) => ['Odin', 'Thor'].includes(name) && typeof wise === 'boolean';

it('json_schema: every answer satisfies the schema', async () => {
  const response_format = { type: 'json_schema', json_schema: { name: 'god', schema } };
  const { choices } = await json(CHAT, { messages, response_format, n: 4, seed: 1, max_tokens: 200 });
  for (const { message, finish_reason } of choices) {
    expect(finish_reason).toBe('stop');
    expect(JSON.parse(message.content)).toSatisfy(isGod);
  }
});

it('a schema that cannot be enforced is a 400 that names the keyword', async () => {
  const response_format = { type: 'json_schema', json_schema: { schema: { type: 'array', uniqueItems: true } } };
  const response = await ask(CHAT, { messages, response_format });
  expect(response.status).toBe(400);
  expect(((await response.json()) as Json).error.message).toContain('uniqueItems');
});

it('tool_choice: required and named tools are called, and streamed as deltas', async () => {
  for (const tool_choice of ['required', { type: 'function', function: { name: 'find_god' } }]) {
    const request = { messages, tools, tool_choice, seed: 3, max_tokens: 400 };
    const { choices } = await json(CHAT, request);
    expect(choices[0]).toMatchObject({ finish_reason: 'tool_calls', message: { content: null } });
    const { tool_calls } = choices[0].message;
    expect(tool_calls).toEqual([
      { id: expect.any(String), type: 'function', function: { name: 'find_god', arguments: expect.any(String) } },
    ]);
    expect(JSON.parse(tool_calls[0].function.arguments)).toSatisfy(isGod);
    const events = await readEvents(await ask(CHAT, { ...request, stream: true }));
    const deltas = events.flatMap(event => event.choices?.[0]?.delta.tool_calls ?? []);
    expect(deltas[0]).toMatchObject({ index: 0, type: 'function', function: { name: 'find_god' } });
    const joined = deltas.map(delta => delta.function.arguments).join('');
    expect(joined).toBe(tool_calls[0].function.arguments);
    expect(events.at(-2).choices[0].finish_reason).toBe('tool_calls');
  }
});

it("Anthropic's tools become tool_use blocks", async () => {
  const request = {
    messages,
    tools: [{ name: 'find_god', input_schema: schema }],
    tool_choice: { type: 'any' },
    max_tokens: 400,
  };
  const { content, stop_reason } = await json('/v1/messages', request);
  expect(stop_reason).toBe('tool_use');
  expect(content).toEqual([
    { type: 'tool_use', id: expect.any(String), name: 'find_god', input: expect.toSatisfy(isGod) },
  ]);
  const events = await readEvents(await ask('/v1/messages', { ...request, stream: true }));
  const block = events.find(({ type }) => type === 'content_block_start').content_block;
  expect(block).toMatchObject({ type: 'tool_use', name: 'find_god', input: {} });
  const input = events.map(({ delta }) => delta?.partial_json ?? '').join('');
  expect(JSON.parse(input)).toSatisfy(isGod);
});

it('logit_bias: a token can be forced', async () => {
  const { choices } = await json(CHAT, { messages, logit_bias: { 65: 100 }, temperature: 0, max_tokens: 3 });
  expect(choices[0].message.content).toMatch(/^(.)\1\1$/u);
});
