/** Ollama's API on a tiny random model. */
import { describe, expect, it } from 'vitest';
import { type Json, openServer, openService, user } from './tiny-server.ts';

const service = await openService();
const { ask, json } = await openServer({ strictModel: true }, service);
const options = { temperature: 0, num_predict: 12 };
const messages = user('Who was Kvasir?');
const god = { type: 'object', properties: { name: { enum: ['Odin', 'Thor'] } }, required: ['name'] };
const tools = [{ type: 'function', function: { name: 'find_god', description: 'Finds a god', parameters: god } }];
const chat = (fields: object = {}) => ({ model: 'tiny', messages, options, ...fields });

const lines = async (path: string, request: object): Promise<Json[]> => {
  const response = await ask(path, request);
  expect(response.headers.get('content-type')).toBe('application/x-ndjson');
  return (await response.text())
    .trimEnd()
    .split('\n')
    .map(line => JSON.parse(line));
};
const openaiText = async (fields: object = {}) => {
  const sampling = { temperature: 0, top_k: 40, top_p: 0.9, max_tokens: 12 };
  return (await json('/v1/chat/completions', { messages, ...sampling, ...fields })).choices[0].message.content;
};

describe('/api/chat', () => {
  it('answers with the text of a chat completion', async () => {
    const answer = await json('/api/chat', chat({ stream: false }));
    expect(answer).toMatchObject({
      model: 'tiny',
      created_at: expect.stringMatching(/^\d{4}-.*Z$/),
      message: { role: 'assistant', content: await openaiText() },
      done: true,
    });
    expect(['stop', 'length']).toContain(answer.done_reason);
    for (const name of ['total_duration', 'load_duration', 'prompt_eval_duration', 'eval_duration'])
      expect(answer[name], name).toBeGreaterThanOrEqual(0);
    expect(answer.eval_count).toBeGreaterThan(0);
    const { count } = await json('/tokenize', { messages });
    expect(answer.prompt_eval_count).toBe(count);
  });

  it('streams lines unless told otherwise', async () => {
    const parts = await lines('/api/chat', chat());
    expect(parts.slice(0, -1).every(({ done }) => done === false)).toBe(true);
    expect(parts.map(({ message }) => message.content).join('')).toBe(await openaiText());
    expect(parts.at(-1)).toMatchObject({ done: true, message: { role: 'assistant', content: '' } });
    expect(parts.at(-1).eval_count).toBeGreaterThan(0);
  });

  it('goes on with a last message of the assistant', async () => {
    const begun = [...messages, { role: 'assistant', content: 'A god, born of' }];
    const answered = await json('/api/chat', chat({ messages: begun, stream: false }));
    const asked = { messages: begun, continue_final_message: true };
    expect(answered.message.content).toBe(await openaiText(asked));
    expect(answered.prompt_eval_count).toBe((await json('/tokenize', asked)).count);
  });

  it('calls tools with arguments that are objects, and reads their results', async () => {
    const longer = { num_predict: 300, seed: 2 };
    const schema = { ...god, additionalProperties: false };
    const only = [{ type: 'function', function: { ...tools[0].function, parameters: schema } }];
    const calls = { id: 'a', function: { name: 'find_god', arguments: { name: 'Odin' } } };
    const history = [
      ...messages,
      { role: 'assistant', content: '', tool_calls: [calls] },
      { role: 'tool', tool_name: 'find_god', content: 'A god.' },
    ];
    const answered = await json('/api/chat', chat({ messages: history, tools: only, stream: false }));
    const openai = [
      ...messages,
      { role: 'assistant', content: null, tool_calls: [{ ...calls, type: 'function' }] },
      { role: 'tool', name: 'find_god', content: 'A god.' },
    ];
    expect(answered.message.content).toBe(await openaiText({ messages: openai, tools: only }));
    // A random model calls nothing by itself: the engine's answer is replaced by one with a call.
    const { ask } = await openServer(
      {},
      {
        ...service,
        answer: (list, answerOptions) => service.answer(list, { ...answerOptions, toolChoice: 'required' }),
      },
    );
    const read = async (stream: boolean) =>
      (await (await ask('/api/chat', chat({ tools: only, options: longer, stream }))).text())
        .trimEnd()
        .split('\n')
        .map(line => JSON.parse(line));
    const [whole] = await read(false);
    expect(whole.message.tool_calls).toEqual([
      { id: expect.any(String), function: { index: 0, name: 'find_god', arguments: { name: expect.any(String) } } },
    ]);
    const parts = await read(true);
    expect(parts.filter(({ message }) => message.tool_calls)).toHaveLength(1);
    expect(parts.at(-2).message.tool_calls).toMatchObject([{ function: { name: 'find_god' } }]);
    expect(parts.at(-1)).toMatchObject({ done: true, done_reason: 'stop' });
  });

  it('follows a format: JSON, or a JSON Schema', async () => {
    const format = { ...god, additionalProperties: false };
    const answer = await json('/api/chat', chat({ format, stream: false, options: { num_predict: 200 } }));
    expect(['Odin', 'Thor']).toContain(JSON.parse(answer.message.content).name);
    const free = await json('/api/chat', chat({ format: '', stream: false }));
    expect(free.message.content).toBe(await openaiText());
  });

  it('has log probabilities if they are asked for', async () => {
    const { logprobs } = await json('/api/chat', chat({ stream: false, logprobs: true, top_logprobs: 2 }));
    expect(logprobs[0]).toMatchObject({ token: expect.any(String), logprob: expect.any(Number) });
    expect(logprobs[0].top_logprobs).toHaveLength(2);
  });

  it('without messages says that the model is loaded', async () => {
    const empty = { model: 'tiny:latest', keep_alive: '5m' };
    expect(await json('/api/chat', empty)).toMatchObject({ done: true, done_reason: 'load' });
    expect(await json('/api/chat', { ...empty, keep_alive: 0 })).toMatchObject({ done_reason: 'unload' });
    expect(await json('/api/generate', empty)).toMatchObject({ response: '', done: true, done_reason: 'load' });
  });

  it.each([
    [chat({ messages: [{ role: 'user', content: 'What is this?', images: ['iVBORw0KGgo='] }] }), 400, /images/],
    [chat({ model: 'other' }), 404, /not served/],
    [{ messages }, 400, /model/],
    [chat({ format: 'xml' }), 400, /format/],
    [chat({ messages: user('mead '.repeat(3000)) }), 400, /context/],
  ])('refuses %j in the shape of its errors', async (request, status, message) => {
    const response = await ask('/api/chat', request);
    expect(response.status).toBe(status);
    expect(await response.json()).toEqual({ error: expect.stringMatching(message) });
  });
});

describe('/api/generate', () => {
  const prompt = 'Who was Kvasir?';

  it('answers a prompt, with a system message or without', async () => {
    const plain = await json('/api/generate', { model: 'tiny', prompt, options, stream: false });
    expect(plain).toMatchObject({ response: await openaiText(), done: true });
    const system = 'Be brief.';
    const led = await json('/api/generate', { model: 'tiny', prompt, system, options, stream: false });
    expect(led.response).toBe(await openaiText({ messages: [{ role: 'system', content: system }, ...messages] }));
  });

  it('continues a raw prompt', async () => {
    const parts = await lines('/api/generate', { model: 'tiny', prompt, raw: true, options });
    const { choices } = await json('/v1/completions', { prompt, temperature: 0, max_tokens: 12 });
    expect(parts.map(({ response }) => response).join('')).toBe(choices[0].text);
    expect(parts.at(-1)).toMatchObject({ done: true, prompt_eval_count: prompt.length });
  });

  it('fills the gap before a suffix, if the model can', async () => {
    const request = { model: 'tiny', prompt: 'be', suffix: 're', options, stream: false };
    const refused = await ask('/api/generate', request);
    expect([refused.status, ((await refused.json()) as Json).error]).toEqual([400, expect.stringMatching(/middle/)]);
    const ids = { pre: 80, suf: 83, mid: 77 };
    const metadata = Object.fromEntries(
      Object.entries(ids).map(([name, id]) => [`tokenizer.ggml.fim_${name}_token_id`, id]),
    );
    const filling = await openServer({}, await openService(2, { metadata }));
    const { choices } = await filling.json('/v1/completions', { ...request, temperature: 0, max_tokens: 12 });
    expect((await filling.json('/api/generate', request)).response).toBe(choices[0].text);
    expect((await filling.json('/api/show', { model: 'tiny' })).capabilities).toContain('insert');
  });

  it.each([{ images: ['x'] }, { template: '{{ .Prompt }}' }, { context: [1, 2] }, { raw: true, format: 'json' }])(
    'refuses %j',
    async fields => {
      const response = await ask('/api/generate', { model: 'tiny', prompt, ...fields });
      expect(response.status).toBe(400);
      expect(((await response.json()) as Json).error).toContain(Object.keys(fields).at(-1));
    },
  );
});

describe('the model', () => {
  it('is listed under all its names', async () => {
    const { models } = await json('/api/tags');
    expect(models.map(({ name }: Json) => name)).toEqual(['tiny', 'alias', 'tiny.gguf']);
    expect(models[0]).toMatchObject({ model: 'tiny', details: { format: 'gguf', family: 'llama' } });
    expect(models[0].size).toBeGreaterThan(0);
    // Ollama's own program prints the first digits.
    expect(new Set(models.map(({ digest }: Json) => digest)).size).toBe(3);
    expect(models[0].digest).toMatch(/^[\da-f]{64}$/);
    expect((await json('/api/ps')).models).toMatchObject([{ name: 'tiny', context_length: 2048 }]);
  });

  it('tells its context and capabilities', async () => {
    const shown = await json('/api/show', { model: 'alias:latest' });
    expect(shown).toMatchObject({
      capabilities: ['completion', 'tools'],
      model_info: { 'general.architecture': 'llama', 'llama.context_length': 2048 },
      parameters: expect.stringMatching(/^num_ctx +2048$/),
    });
    expect((await ask('/api/show', { model: 'other' })).status).toBe(404);
  });

  it('tells whether it thinks', async () => {
    const metadata = { 'tokenizer.chat_template': '{{ messages[0].content }}<think></think>' };
    const thinking = await openServer({}, await openService(2, { metadata }));
    expect((await thinking.json('/api/show', { model: 'tiny' })).capabilities).toContain('thinking');
  });

  it('has the version of an API that clients accept', async () => {
    expect(await json('/api/version')).toEqual({ version: expect.stringMatching(/^\d+\.\d+\.\d+$/) });
  });
});

describe('embeddings', () => {
  it('are refused with the reason', async () => {
    const response = await ask('/v1/embeddings', { model: 'tiny', input: 'Hi' });
    expect(response.status).toBe(501);
    expect(await response.json()).toEqual({
      error: {
        message: expect.stringMatching(/no embeddings/),
        type: 'invalid_request_error',
        param: null,
        code: 'not_supported',
      },
    });
    for (const path of ['/api/embed', '/api/embeddings']) {
      const refused = await ask(path, { model: 'tiny', input: 'Hi' });
      expect([refused.status, await refused.json()]).toEqual([501, { error: expect.stringMatching(/no embeddings/) }]);
    }
  });
});

it('a heartbeat is a line that clients can read', async () => {
  const slow = {
    ...service,
    answer: (...args: Parameters<typeof service.answer>) => {
      const stream = service.answer(...args);
      let isFirst = true;
      const next = async () => {
        if (isFirst) await new Promise(resolve => setTimeout(resolve, 100));
        isFirst = false;
        return stream.next();
      };
      return { ...stream, next };
    },
  };
  const { ask } = await openServer({ heartbeatMs: 20 }, slow);
  const text = await (await ask('/api/chat', chat())).text();
  const [first] = text.split('\n');
  expect(JSON.parse(first)).toEqual({ message: { role: 'assistant', content: '' }, done: false });
});
