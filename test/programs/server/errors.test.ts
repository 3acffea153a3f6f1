/** What clients are told when something is wrong: the status by which they decide to try again, and words of their API. */
import { describe, expect, it } from 'vitest';
import { readyBackend } from '../../../src/server/backend.ts';
import { toApiError } from '../../../src/server/errors.ts';
import {
  CapacityError,
  ContextError,
  DeviceError,
  InputError,
  optionError,
  QualityError,
} from '../../../src/util/errors.ts';
import type { ModelService } from '../../../src/worker/service.ts';
import { cpuTime } from '../../support/cpu-time.ts';
import { greedy, type Json, openServer, openService, user } from './tiny-server.ts';

const CHAT = '/v1/chat/completions';
const service = await openService(2);
const { json, ask } = await openServer({}, service);
const messages = user('Hi');

/** Statuses that the clients of OpenAI, Anthropic, the AI SDK or LangChain repeat a request after. */
const isRepeated = (status: number) => [408, 409, 425, 429].includes(status) || status >= 500;

describe('an unknown name of the model', () => {
  it('gets the model that there is, and the answer says its name', async () => {
    for (const path of [CHAT, '/v1/completions', '/v1/messages']) {
      const answer = await json(path, { model: 'gpt-4o', messages, prompt: 'Hi', ...greedy(1) });
      expect(answer.model, path).toBe('tiny');
    }
    expect((await json(CHAT, { model: 'alias', messages, ...greedy(1) })).model).toBe('alias');
    expect((await ask('/v1/messages/count_tokens', { model: 'claude', messages })).status).toBe(200);
  });

  it('is a 404 that lists the names, if names are strict', async () => {
    const strict = await openServer({ strictModel: true }, service);
    const { error } = await strict.json(CHAT, { model: 'gpt-4o', messages });
    expect(error).toMatchObject({ code: 'model_not_found', param: 'model' });
    expect(error.message).toContain('"tiny", "alias", "tiny.gguf"');
    expect((await strict.ask(CHAT, { model: 'gpt-4o', messages })).status).toBe(404);
    const anthropic = await strict.json('/v1/messages', { model: 'claude', messages, max_tokens: 1 });
    expect(anthropic.error.type).toBe('not_found_error');
  });
});

describe('the status', () => {
  it('of a prompt that is too long is one that no client repeats', () => {
    const error = toApiError(new ContextError('Too long.'), { context: 2048 });
    expect(error).toMatchObject({ status: 400, code: 'context_length_exceeded' });
    expect(isRepeated(error.status)).toBe(false);
  });

  it('of a device or disk that is full is 503: the request is not at fault', async () => {
    const full = new CapacityError('The GPU has no memory left.');
    expect(toApiError(full)).toMatchObject({
      status: 503,
      code: 'insufficient_capacity',
      retryAfter: expect.any(Number),
    });
    const answer: ModelService['answer'] = () => {
      throw full;
    };
    const broken = await openServer({ backend: readyBackend({ ...service, answer }) }, service);
    const response = await broken.ask(CHAT, { messages });
    expect(response.status).toBe(503);
    expect(response.headers.get('retry-after')).toMatch(/^\d+$/);
    expect(((await response.json()) as Json).error.message).toBe('The GPU has no memory left.');
  });

  it('of a codec that does not suit the model is one that no client repeats', () => {
    const error = toApiError(new QualityError('tq2 does not suit this model.'));
    expect(error).toMatchObject({ status: 400, code: 'codec_not_suitable', message: 'tq2 does not suit this model.' });
    expect(isRepeated(error.status)).toBe(false);
  });

  it('of a lost device is 503', () => {
    expect(toApiError(new DeviceError('Lost.'))).toMatchObject({ status: 503, code: 'engine_failed' });
  });
});

describe('words', () => {
  const schema = { type: 'array', uniqueItems: true };
  const parameters = { type: 'object', properties: { a: schema } };

  it("are OpenAI's on OpenAI's routes", async () => {
    const tools = [{ type: 'function', function: { name: 'find', parameters, strict: true } }];
    const tool = await json(CHAT, { messages, tools });
    expect(tool.error.message).toMatch(/^tools\[0\]\.function\.parameters\./);
    expect(tool.error.param).toBe('tools[0].function.parameters');
    const named = { type: 'function', function: { name: 'other' } };
    const okTools = [{ type: 'function', function: { name: 'find' } }];
    const { error } = await json(CHAT, { messages, tools: okTools, tool_choice: named });
    expect(error).toMatchObject({
      message: expect.stringMatching(/^tool_choice names .*"other"/),
      param: 'tool_choice',
    });
    expect((await json(CHAT, { messages, tool_choice: 'required' })).error.message).toMatch(/^tool_choice asks/);
    const { error: reserved } = await json(CHAT, { messages, chat_template_kwargs: { messages: [] } });
    expect(reserved.message).toMatch(/^chat_template_kwargs cannot set messages/);
    const format = { type: 'json_schema', json_schema: { name: 'x', schema } };
    const { error: refused } = await json(CHAT, { messages, response_format: format });
    expect(refused.param).toBe('response_format.json_schema.schema');
    expect(refused.message).toMatch(/^response_format\.json_schema\.schema\.uniqueItems /);
  });

  it("are Anthropic's on Anthropic's routes", async () => {
    const base = { messages, max_tokens: 5 };
    const strict = { name: 'find', input_schema: parameters, strict: true };
    const bad = await json('/v1/messages', { ...base, tools: [strict] });
    expect(bad.error.message).toMatch(/^tools\[0\]\.input_schema\./);
    const tools = [{ name: 'find', input_schema: { type: 'object' } }];
    const choice = await json('/v1/messages', { ...base, tools, tool_choice: { type: 'tool', name: 'other' } });
    expect(choice.error.message).toMatch(/^tool_choice names .*"other"/);
  });

  it("are the request's own on the other routes", async () => {
    const reserved = { chat_template_kwargs: { messages: [] } };
    const strict = { type: 'function', function: { name: 'find', parameters, strict: true } };
    const explained = { 'x-explain-cache': '1' };
    for (const [path, body, message, headers] of [
      ['/v1/responses', { input: 'Hi', ...reserved }, /^chat_template_kwargs cannot set messages/],
      ['/v1/responses', { input: 'Hi', ...reserved }, /^chat_template_kwargs cannot set messages/, explained],
      [CHAT, { messages, ...reserved }, /^chat_template_kwargs cannot set messages/, explained],
      ['/tokenize', { messages, ...reserved }, /^chat_template_kwargs cannot set messages/],
      ['/api/chat', { model: 'tiny', messages, tools: [{ type: 'web_search' }, strict] }, /^tools\[1\]\.function\.par/],
      ['/api/chat', { model: 'tiny', messages, format: schema }, /^format\.uniqueItems /],
      ['/api/generate', { model: 'tiny', prompt: 'Hi', format: schema }, /^format\.uniqueItems /],
      [
        '/v1/responses',
        { input: 'Hi', text: { format: { type: 'json_schema', name: 'a', schema } } },
        /^text\.format\.sch/,
      ],
    ] as const) {
      const { error } = await json(path, body, headers);
      expect(error.message ?? error, path).toMatch(message);
    }
  });

  it('for the operator name options of the server', () => {
    const { message } = toApiError(
      new ContextError(option => `Raise ${option('kvMemory')}, or use ${option('overflow', 'slide')}.`),
    );
    expect(message).toBe('Raise `kvasir serve --kv-memory`, or use `kvasir serve --overflow slide`.');
    expect(toApiError(optionError('kv', 'is wrong.'))).toMatchObject({
      message: '`kvasir serve --kv` is wrong.',
      param: undefined,
    });
    expect(toApiError(optionError('maxTokens', 'must be 1 or more; got 0.'))).toMatchObject({
      message: 'max_tokens must be 1 or more; got 0.',
      param: 'max_tokens',
    });
  });

  it('say what a field must be, and what it is', async () => {
    const messageOf = async (path: string, body: unknown) => {
      const response = await ask(path, body);
      expect(response.status).toBe(400);
      return ((await response.json()) as Json).error;
    };
    const short = { messages, max_tokens: 1 };
    for (const [fields, param, message] of [
      [{ max_tokens: '3' }, 'max_tokens', 'max_tokens must be a number; got the string "3".'],
      [{ max_tokens: 3.5 }, 'max_tokens', 'max_tokens must be an integer; got the number 3.5.'],
      [{ max_tokens: -2 }, 'max_tokens', 'max_tokens must be -1 or more; got the number -2.'],
      [{ n: 17 }, 'n', 'n must be at most 16; got the number 17.'],
      [{ repetition_penalty: 0 }, 'repetition_penalty', 'repetition_penalty must be above 0; got the number 0.'],
      [{ stream: 'true' }, 'stream', 'stream must be true or false; got the string "true".'],
      [{ messages: [] }, 'messages', 'messages must have 1 or more entries; got an empty array.'],
      [{ messages: 'Hi' }, 'messages', 'messages must be an array; got the string "Hi".'],
      [{ messages: [{}] }, 'messages[0].role', 'messages[0].role is missing: it must be a string.'],
      [{ logit_bias: { a: 1 } }, 'logit_bias', 'logit_bias has the key "a": its keys must be token ids.'],
      [{ logit_bias: { 300: 1 } }, 'logit_bias', 'logit_bias has the token 300; ids are 0 to 256.'],
      [
        { response_format: { type: 'grammar' } },
        'response_format.type',
        'response_format.type must be "text", "json_object" or "json_schema"; got the string "grammar".',
      ],
      [
        { response_format: 'json' },
        'response_format',
        'response_format must have the type "text", "json_object" or "json_schema"; got the string "json".',
      ],
      [{ tools: {} }, 'tools', 'tools must be an array; got an empty object.'],
      [
        { response_format: { type: 'json_schema', json_schema: {} } },
        'response_format.json_schema.schema',
        'response_format.json_schema.schema is missing: it must be an object.',
      ],
      [
        { messages: [{ role: 'user' }] },
        'messages[0].content',
        'messages[0].content must be a string, or an array of text parts; got null.',
      ],
      [
        { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
        'messages[0].content[0]',
        "messages[0].content[0] has the type 'image_url', which is not supported: only text is.",
      ],
    ] as const)
      expect(await messageOf(CHAT, { ...short, ...fields })).toMatchObject({ param, message });
    expect(await messageOf(CHAT, '[]')).toMatchObject({
      param: null,
      message: 'The body must be an object; got an empty array.',
    });
    expect(await messageOf('/v1/completions', { prompt: [500] })).toMatchObject({ param: 'prompt' });
    const image = { type: 'tool_result', tool_use_id: 'a', content: [{ type: 'image', source: {} }] };
    expect(
      await messageOf('/v1/messages', {
        messages: [{ role: 'user', content: [{ type: 'text', text: 'Hi' }, image] }],
        max_tokens: 1,
      }),
    ).toMatchObject({ message: expect.stringMatching(/^messages\[0\]\.content block 1 must be text, tool_use/) });
  });

  it('do not take long to find for very many wrong values', async () => {
    for (const [path, body, param] of [
      ['/v1/completions', { prompt: Array(240_000).fill(true) }, 'prompt'],
      ['/v1/completions', { prompt: Array(120_000).fill([true]) }, 'prompt'],
      [
        CHAT,
        { messages, logit_bias: Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [i, 1])) },
        'logit_bias',
      ],
    ] as const) {
      const text = JSON.stringify(body);
      const started = cpuTime();
      expect((await json(path, text)).error, path).toMatchObject({ param });
      expect(cpuTime() - started).toBeLessThan(500);
    }
  });

  it('name the field that is read as the prompt, if it is too long', async () => {
    const long = 'mead '.repeat(3000);
    for (const [path, body, param] of [
      [CHAT, { messages: user(long) }, 'messages'],
      ['/v1/completions', { prompt: long }, 'prompt'],
      ['/v1/responses', { input: long }, 'input'],
      ['/tokenize', { content: long }, 'content'],
    ] as const)
      expect((await json(path, body)).error, path).toMatchObject({ code: 'context_length_exceeded', param });
  });

  it('that are not names of options stay', () => {
    const text = 'The schema allows too many readings of the same text to be followed.';
    expect(toApiError(new InputError(text))).toMatchObject({ message: text, param: undefined });
  });
});
