/** /v1/responses on a tiny random model. */
import { describe, expect, it } from 'vitest';
import { type Json, openServer, openService, readEvents, user } from './tiny-server.ts';

const PATH = '/v1/responses';
const service = await openService();
const { ask, json } = await openServer({ strictModel: true }, service);
const greedy = { temperature: 0, max_output_tokens: 12 };
const god = {
  type: 'object',
  properties: { name: { enum: ['Odin', 'Thor'] } },
  required: ['name'],
  additionalProperties: false,
};
const tools = [{ type: 'function', name: 'find_god', description: 'Finds a god', parameters: god, strict: true }];

const textOf = ({ output }: Json): string => output.map((item: Json) => item.content?.[0].text ?? '').join('');
const chatText = async (messages: object[]) =>
  (await json('/v1/chat/completions', { messages, temperature: 0, max_tokens: 12 })).choices[0].message.content;
const promptTokens = async (messages: object[]) => (await json('/tokenize', { messages })).count;

describe('a response', () => {
  it('has the text of a chat with the same messages', async () => {
    const response = await json(PATH, {
      model: 'alias',
      instructions: 'Be brief.',
      input: 'Who was Kvasir?',
      ...greedy,
    });
    const messages = [{ role: 'system', content: 'Be brief.' }, ...user('Who was Kvasir?')];
    expect(textOf(response)).toBe(await chatText(messages));
    expect(response).toMatchObject({
      id: expect.stringMatching(/^resp_/),
      object: 'response',
      model: 'alias',
      instructions: 'Be brief.',
      output: [
        { type: 'message', role: 'assistant', content: [{ type: 'output_text', annotations: [], logprobs: [] }] },
      ],
      usage: { input_tokens: await promptTokens(messages) },
    });
    expect(response.usage.total_tokens).toBe(response.usage.input_tokens + response.usage.output_tokens);
  });

  it('is incomplete if it was cut by its length', async () => {
    const response = await json(PATH, { input: 'Who was Kvasir?', temperature: 0, max_output_tokens: 1 });
    expect(response).toMatchObject({
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      output: [{ status: 'incomplete' }],
    });
  });

  it('reads items as the messages of a chat', async () => {
    const input = [
      { role: 'developer', content: [{ type: 'input_text', text: 'Be brief.' }] },
      { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Hi' }] },
      { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'Hm.' }] },
      {
        type: 'message',
        id: 'm',
        role: 'assistant',
        content: [{ type: 'output_text', text: 'Hello', annotations: [] }],
      },
      { type: 'function_call', call_id: 'a', name: 'find_god', arguments: '{"name":"Odin"}' },
      { type: 'function_call_output', call_id: 'a', output: '42' },
      { role: 'user', content: 'Go on' },
    ];
    const calls = [{ id: 'a', type: 'function', function: { name: 'find_god', arguments: '{"name":"Odin"}' } }];
    const messages = [
      { role: 'system', content: 'Tell all.\n\nBe brief.' },
      ...user('Hi'),
      { role: 'assistant', content: 'Hello', reasoning_content: 'Hm.', tool_calls: calls },
      { role: 'tool', tool_call_id: 'a', content: '42' },
      ...user('Go on'),
    ];
    const response = await json(PATH, { instructions: 'Tell all.', input, ...greedy });
    expect(response.usage.input_tokens).toBe(await promptTokens(messages));
    expect(textOf(response)).toBe(await chatText(messages));
  });

  it('follows a JSON schema', async () => {
    const format = { type: 'json_schema', name: 'god', schema: god };
    const response = await json(PATH, { input: 'Who?', text: { format }, max_output_tokens: 100 });
    expect(response).toMatchObject({ status: 'completed', text: { format } });
    expect(['Odin', 'Thor']).toContain(JSON.parse(textOf(response)).name);
  });

  it('has log probabilities if they are asked for', async () => {
    const response = await json(PATH, { input: 'Who?', ...greedy, top_logprobs: 2 });
    const { logprobs } = response.output[0].content[0];
    expect(logprobs.length).toBeGreaterThan(0);
    expect(logprobs[0]).toMatchObject({ token: expect.any(String), logprob: expect.any(Number) });
    expect(logprobs[0].top_logprobs).toHaveLength(2);
  });
});

describe('tools', () => {
  it('are called by function_call items, whose results come back as items', async () => {
    const request = { input: 'Who?', tools, tool_choice: 'required', max_output_tokens: 200 };
    const { id, output, ...response } = await json(PATH, request);
    expect(response).toMatchObject({ status: 'completed', tools, tool_choice: 'required' });
    expect(output).toEqual([
      {
        ...{ type: 'function_call', id: expect.stringMatching(/^fc_/), status: 'completed' },
        ...{ call_id: expect.any(String), name: 'find_god', arguments: expect.any(String) },
      },
    ]);
    const [call] = output;
    expect(['Odin', 'Thor']).toContain(JSON.parse(call.arguments).name);
    const result = { type: 'function_call_output', call_id: call.call_id, output: 'A god.' };
    const next = await json(PATH, { previous_response_id: id, input: [result], ...greedy });
    const stateless = await json(PATH, { input: [{ role: 'user', content: 'Who?' }, call, result], ...greedy });
    expect(textOf(next)).toBe(textOf(stateless));
    expect(next.usage.input_tokens).toBe(stateless.usage.input_tokens);
  });

  it('that are named are called; those of other servers are ignored, and the client is told', async () => {
    const named = { type: 'function', name: 'find_god' };
    const response = await json(PATH, { input: 'Who?', tools, tool_choice: named, max_output_tokens: 200 });
    expect(response.output[0]).toMatchObject({ type: 'function_call', name: 'find_god' });
    const others = await ask(PATH, { input: 'Who?', tools: [{ type: 'web_search' }], max_output_tokens: 4 });
    expect(others.status).toBe(200);
    expect(others.headers.get('x-kvasir-notice')).toMatch(/^tools\[0\] is ignored: .* web_search/);
    const chosen = { tools: [{ type: 'web_search' }], tool_choice: { type: 'web_search' } };
    expect((await ask(PATH, { input: 'Who?', ...chosen, max_output_tokens: 4 })).status).toBe(200);
    const strict = [{ type: 'function', name: 'find', strict: true, parameters: { type: 'object', minProperties: 1 } }];
    const refused = await ask(PATH, { input: 'Who?', tools: strict });
    expect(((await refused.json()) as Json).error).toMatchObject({ param: 'tools[0].parameters' });
  });
});

describe('a stream', () => {
  const stream = async (request: object) => readEvents(await ask(PATH, { ...request, stream: true }));
  const types = (events: Json[]) => events.map(({ type }) => type).filter((type, i, all) => type !== all[i - 1]);

  it('has the events of a text in order, and the whole response at its end', async () => {
    const request = { input: 'Who was Kvasir?', ...greedy };
    const events = await stream(request);
    const whole = await json(PATH, request);
    expect(types(events)).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      `response.${whole.status}`,
    ]);
    expect(events.map(event => event.sequence_number)).toEqual(events.map((_, i) => i));
    const deltas = events.filter(({ type }) => type === 'response.output_text.delta');
    expect(deltas.map(({ delta }) => delta).join('')).toBe(textOf(whole));
    expect(events[0].response).toMatchObject({ status: 'in_progress', output: [] });
    expect(events[2].item).toMatchObject({ status: 'in_progress', content: [] });
    expect(textOf(events.at(-1).response)).toBe(textOf(whole));
    expect(events.at(-1).response.usage.output_tokens).toBe(whole.usage.output_tokens);
  });

  it('has the arguments of a call as they come', async () => {
    const events = await stream({ input: 'Who?', tools, tool_choice: 'required', max_output_tokens: 200 });
    expect(types(events)).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.function_call_arguments.delta',
      'response.function_call_arguments.done',
      'response.output_item.done',
      'response.completed',
    ]);
    const { item } = events.at(-2);
    const deltas = events.filter(({ type }) => type === 'response.function_call_arguments.delta');
    expect(deltas.map(({ delta }) => delta).join('')).toBe(item.arguments);
    expect(events.at(-1).response.output).toEqual([item]);
  });

  it('that cannot begin is an error with a status', async () => {
    const response = await ask(PATH, { input: 'mead '.repeat(3000), stream: true });
    expect(response.status).toBe(400);
    expect(((await response.json()) as Json).error.code).toBe('context_length_exceeded');
  });

  it('that fails later ends with the error', async () => {
    const broken = {
      ...service,
      answer(...args: Parameters<typeof service.answer>) {
        const stream = service.answer(...args);
        let count = 0;
        const next = async () => {
          if (count++ === 2) throw new Error('secret');
          return stream.next();
        };
        return { ...stream, next };
      },
    };
    const { ask } = await openServer({}, broken);
    const events = await readEvents(await ask(PATH, { input: 'Who?', stream: true, temperature: 0 }));
    expect(events.at(-1)).toMatchObject({
      type: 'response.failed',
      response: {
        status: 'failed',
        error: { code: 'server_error', message: expect.stringMatching(/^Internal error/) },
      },
    });
  });
});

describe('stored responses', () => {
  it('are continued by their id, without their instructions', async () => {
    const first = await json(PATH, { instructions: 'Be brief.', input: 'Who was Kvasir?', ...greedy });
    const second = await json(PATH, { previous_response_id: first.id, input: 'And Odin?', ...greedy });
    const messages = [...user('Who was Kvasir?'), { role: 'assistant', content: textOf(first) }, ...user('And Odin?')];
    expect(second).toMatchObject({ previous_response_id: first.id, instructions: null });
    expect(second.usage.input_tokens).toBe(await promptTokens(messages));
    expect(textOf(second)).toBe(await chatText(messages));
  });

  it('lend their items by reference', async () => {
    const { output } = await json(PATH, { input: 'Who was Kvasir?', ...greedy });
    const reference = { type: 'item_reference', id: output[0].id };
    const end = { role: 'user', content: 'Go on' };
    const [referred, sent] = await Promise.all(
      [reference, output[0]].map(item => json(PATH, { input: [item, end], ...greedy })),
    );
    expect(textOf(referred)).toBe(textOf(sent));
    expect((await ask(PATH, { input: [{ ...reference, id: 'msg_other' }] })).status).toBe(400);
  });

  it('can be read and deleted', async () => {
    const { ask, app } = await openServer({}, service);
    const response = (await (await ask(PATH, { input: 'Hi', ...greedy })).json()) as Json;
    expect(await (await ask(`${PATH}/${response.id}`)).json()).toEqual(response);
    const remove = () => app.fetch(new Request(`http://localhost${PATH}/${response.id}`, { method: 'DELETE' }));
    expect(await (await remove()).json()).toEqual({ id: response.id, object: 'response', deleted: true });
    expect((await remove()).status).toBe(404);
    expect((await ask(`${PATH}/${response.id}`)).status).toBe(404);
  });

  it('are not kept with store: false', async () => {
    const { id } = await json(PATH, { input: 'Hi', store: false, ...greedy });
    const { error } = await json(PATH, { previous_response_id: id, input: 'Go on' });
    expect(error).toMatchObject({ code: 'previous_response_not_found', param: 'previous_response_id' });
  });

  it('belong to their tenant', async () => {
    const tenants = ['alice', 'bob'].map(name => ({ name, keys: [`${name}-long-key`] }));
    const { ask, json } = await openServer({ tenants }, service);
    const as = (name: string) => ({ authorization: `Bearer ${name}-long-key` });
    const { id, output } = await json(PATH, { input: 'Hi', ...greedy }, as('alice'));
    expect((await ask(`${PATH}/${id}`, undefined, as('alice'))).status).toBe(200);
    expect((await ask(`${PATH}/${id}`, undefined, as('bob'))).status).toBe(404);
    const stolen = [
      { previous_response_id: id, input: 'Go on' },
      { input: [{ type: 'item_reference', id: output[0].id }] },
    ];
    for (const request of stolen) expect((await ask(PATH, request, as('bob'))).status).toBe(400);
  });

  it('are the newest ones, up to a number and a size', async () => {
    const isStored = async (limits: object, count: number) => {
      const { ask, json } = await openServer({ limits }, service);
      const ids: string[] = [];
      for (let i = 0; i < count; i++) ids.push((await json(PATH, { input: `Hi ${i}`, ...greedy })).id);
      return Promise.all(ids.map(async id => (await ask(`${PATH}/${id}`)).status === 200));
    };
    expect(await isStored({ storedResponses: 2 }, 3)).toEqual([false, true, true]);
    expect(await isStored({ storedCharacters: 2400 }, 4)).toEqual([false, false, true, true]);
    expect(await isStored({ storedCharacters: 100 }, 1)).toEqual([false]);
  });
});

describe('refused with a message that names the field', () => {
  it.each([
    [{}, 'input'],
    [{ input: [] }, 'input'],
    [{ input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'data:' }] }] }, 'item 0'],
    [
      {
        input: [
          { role: 'user', content: 'Hi' },
          { type: 'unknown_item', id: 'x' },
        ],
      },
      'item 1',
    ],
    [{ input: 'Hi', background: true }, 'background'],
    [{ input: 'Hi', conversation: 'conv_1' }, 'conversation'],
    [{ input: 'Hi', prompt: { id: 'x' } }, 'prompt'],
    [{ input: 'Hi', text: { format: { type: 'xml' } } }, 'text.format'],
    [{ input: 'Hi', model: 'other' }, 'other'],
  ])('%j', async (request, named) => {
    const response = await ask(PATH, request);
    expect([400, 404]).toContain(response.status);
    expect(((await response.json()) as Json).error.message).toContain(named);
  });
});
