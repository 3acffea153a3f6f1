/** POST /v1/chat/completions on a tiny random model. */
import { describe, expect, it } from 'vitest';
import { greedy, type Json, openServer, readEvents, user } from './tiny-server.ts';

const PATH = '/v1/chat/completions';
const { ask, json, service } = await openServer();
const messages = user('Who was Kvasir?');

describe('an answer', () => {
  it("has OpenAI's shape, and the text of the library", async () => {
    const answer = await json(PATH, { model: 'alias', messages, ...greedy(12) });
    const expected = await service.answer(messages, { temperature: 0, maxTokens: 12, ignoreEos: true }).result();
    expect(answer).toMatchObject({
      id: expect.stringMatching(/^chatcmpl-/),
      object: 'chat.completion',
      model: 'alias',
      choices: [
        { index: 0, message: { role: 'assistant', content: expected.text }, logprobs: null, finish_reason: 'length' },
      ],
      usage: { prompt_tokens: expected.usage.promptTokens, completion_tokens: 12 },
    });
    expect(answer.usage.total_tokens).toBe(answer.usage.prompt_tokens + 12);
  });

  it('ends at a stop string', async () => {
    const { choices } = await json(PATH, { messages, ...greedy(40) });
    const { content } = choices[0].message;
    const stop = content.slice(3, 5);
    const stopped = await json(PATH, { messages, ...greedy(40), stop: [stop] });
    expect(stopped.choices[0]).toMatchObject({
      message: { content: content.slice(0, content.indexOf(stop)) },
      finish_reason: 'stop',
    });
  });

  it('is repeated by its seed, and differs without', async () => {
    const sampled = async (seed?: number) =>
      (await json(PATH, { messages, max_tokens: 20, ignore_eos: true, seed })).choices[0].message.content;
    expect(await sampled(7)).toBe(await sampled(7));
    expect(await sampled()).not.toBe(await sampled());
  });

  it('has the most likely tokens with top_p: 0', async () => {
    const { choices } = await json(PATH, { messages, ...greedy(12) });
    const sampled = await json(PATH, { messages, ...greedy(12), temperature: 1, top_p: 0 });
    expect(sampled.choices[0].message.content).toBe(choices[0].message.content);
    const anthropic = { messages, max_tokens: 2, top_p: 0 };
    expect((await ask('/v1/messages', anthropic)).status).toBe(200);
  });

  it('takes null for fields that are not used, and ignores unknown ones', async () => {
    const response = await ask(PATH, {
      messages,
      ...greedy(2),
      stop: null,
      seed: null,
      tools: null,
      store: true,
      user: 'x',
    });
    expect(response.status).toBe(200);
  });

  it("takes what OpenAI's clients send by default, and has the same answer", async () => {
    const fields = {
      ...{ store: false, metadata: { run: 'a' }, prompt_cache_key: 'k', safety_identifier: 's', service_tier: 'auto' },
      ...{ verbosity: 'low', reasoning_effort: 'low', parallel_tool_calls: false, prompt_cache_retention: '24h' },
      ...{ modalities: ['text'], prediction: null, audio: null, web_search_options: null },
      stream_options: { include_usage: true, include_obfuscation: false },
    };
    const { choices } = await json(PATH, { messages, ...greedy(4) });
    const { content } = choices[0].message;
    expect((await json(PATH, { messages, ...greedy(4), ...fields })).choices[0].message.content).toBe(content);
    const events = await readEvents(await ask(PATH, { messages, ...greedy(4), ...fields, stream: true }));
    expect(events.map(event => event.choices?.[0]?.delta.content ?? '').join('')).toBe(content);
    const { stream_options: _, ...others } = fields;
    const response = await ask('/v1/responses', {
      ...{ input: 'Who?', max_output_tokens: 4, truncation: 'auto', max_tool_calls: 3, user: 'u', ...others },
      ...{ text: { format: { type: 'text' }, verbosity: 'low' }, reasoning: { effort: 'low', summary: 'auto' } },
      ...{ include: ['reasoning.encrypted_content'], stream: true, stream_options: { include_obfuscation: false } },
    });
    expect(response.status, await response.clone().text()).toBe(200);
    expect((await readEvents(response)).at(-1).type).toMatch(/^response\.(completed|incomplete)$/);
  });

  it('tells the template how much to reason', async () => {
    const asked: unknown[] = [];
    const answer: typeof service.answer = (list, options) => {
      asked.push(options?.render?.variables);
      return service.answer(list, options);
    };
    const { json } = await openServer({}, { ...service, answer });
    const chat = { messages, ...greedy(1) };
    await json(PATH, { ...chat, reasoning_effort: 'high' });
    await json(PATH, { ...chat, reasoning_effort: 'none' });
    await json(PATH, { ...chat, reasoning_effort: 'low', chat_template_kwargs: { enable_thinking: false } });
    await json('/v1/responses', { input: 'Who?', max_output_tokens: 1, reasoning: { effort: 'high' } });
    expect(asked).toEqual([
      { enable_thinking: true, reasoning_effort: 'high' },
      { enable_thinking: false, reasoning_effort: 'none' },
      { enable_thinking: false, reasoning_effort: 'low' },
      { enable_thinking: true, reasoning_effort: 'high' },
    ]);
  });

  it('goes on with the beginning that the last message has', async () => {
    // Of bytes that are no text, a message cannot have the same.
    const letters = await service.tokenize('abcdefghijklmnopqrstuvwxyz');
    const slot = { id_slot: 7, logit_bias: Object.fromEntries(letters.map(id => [id, 100])) };
    const whole = await json(PATH, { messages, ...greedy(12), ...slot });
    const first = await json(PATH, { messages, ...greedy(5), ...slot });
    const begun = [...messages, first.choices[0].message];
    const rest = await json(PATH, { messages: begun, ...greedy(7), ...slot, continue_final_message: true });
    expect(first.choices[0].message.content + rest.choices[0].message.content).toBe(whole.choices[0].message.content);
    expect(await json(PATH, { messages, ...greedy(5), continue_final_message: true })).toMatchObject({
      error: {
        message: expect.stringMatching(/^continue_final_message needs a last message with the role 'assistant'/),
      },
    });
    // As llama.cpp's server, also by itself.
    const byItself = await json(PATH, { messages: begun, ...greedy(7), ...slot });
    expect(byItself.choices[0].message.content).toBe(rest.choices[0].message.content);
    const { prompt_tokens: another } = (
      await json(PATH, { messages: begun, ...greedy(1), continue_final_message: false })
    ).usage;
    expect(another).toBeGreaterThan(rest.usage.prompt_tokens);
    const format = { type: 'json_object' };
    // A form is not that of a text that has begun: it is of an answer that follows.
    const object = await json(PATH, { messages: begun, max_tokens: 60, response_format: format });
    expect(object.usage.prompt_tokens).toBe(another);
    expect(await json(PATH, { messages: begun, continue_final_message: true, response_format: format })).toMatchObject({
      error: { param: 'continue_final_message', message: expect.stringMatching(/cannot be used with a schema/) },
    });
  });

  it('ends when it repeats itself, with stop_loops', async () => {
    const endless = { messages, ...greedy(100), logit_bias: { 65: 100 } };
    const { choices, usage } = await json(PATH, { ...endless, stop_loops: true });
    expect(choices[0]).toMatchObject({ finish_reason: 'length', stop_reason: 'loop' });
    expect(usage.completion_tokens).toBe(60);
    const events = await readEvents(await ask(PATH, { ...endless, stop_loops: true, stream: true }));
    expect(events.at(-2).choices[0]).toMatchObject({ finish_reason: 'length', stop_reason: 'loop' });
    expect((await json(PATH, endless)).usage.completion_tokens).toBe(100);
    const { notices } = await service
      .answer(messages, { ignoreEos: true, logitBias: { 65: 100 }, stopLoops: true })
      .result();
    expect(notices).toEqual(['The answer was ended after 60 tokens: it repeated itself.']);
  });

  it('takes max_completion_tokens, which wins over max_tokens', async () => {
    const { usage } = await json(PATH, { messages, ...greedy(9), max_completion_tokens: 3 });
    expect(usage.completion_tokens).toBe(3);
  });

  it('takes messages with parts, tool calls and unknown fields', async () => {
    const response = await ask(PATH, {
      ...greedy(2),
      messages: [
        { role: 'system', content: [{ type: 'text', text: 'Be brief.' }] },
        { role: 'user', content: 'Hi', annotations: [] },
        {
          role: 'assistant',
          content: null,
          refusal: null,
          tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }],
        },
        { role: 'tool', tool_call_id: 'a', content: '42' },
        { role: 'assistant', content: null },
        ...user('Go on'),
      ],
    });
    expect(response.status).toBe(200);
  });
});

describe('n answers', () => {
  it('share their prompt, and have seeds of their own', async () => {
    const long = user('mead '.repeat(80));
    const request = { messages: long, max_tokens: 12, ignore_eos: true, cache_salt: 'n answers' };
    const { choices, usage } = await json(PATH, { ...request, n: 3, seed: 5 });
    const texts = choices.map(({ message }: Json) => message.content);
    expect(new Set(texts).size).toBe(3);
    expect(usage).toMatchObject({ completion_tokens: 36, prompt_tokens_details: { cached_tokens: 0 } });
    const alone = await json(PATH, { ...request, seed: 6 });
    expect(alone.choices[0].message.content).toBe(texts[1]);
    expect(alone.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(300);
  });
});

describe('log probabilities', () => {
  it('have tokens, bytes and alternatives', async () => {
    const { choices } = await json(PATH, { messages, ...greedy(6), logprobs: true, top_logprobs: 2 });
    const { content } = choices[0].logprobs;
    expect(content).toHaveLength(6);
    for (const { token, bytes, logprob, top_logprobs } of content) {
      expect(new TextDecoder().decode(Uint8Array.from(bytes))).toBe(token);
      expect(logprob).toBeLessThanOrEqual(0);
      // Greedy: the token is the most likely one.
      expect(top_logprobs[0]).toEqual({ token, bytes, logprob });
      expect(top_logprobs).toHaveLength(2);
    }
    const all = Uint8Array.from(content.flatMap(({ bytes }: Json) => bytes));
    expect(new TextDecoder().decode(all)).toBe(choices[0].message.content);
  });

  it('are streamed with their parts', async () => {
    const events = await readEvents(await ask(PATH, { messages, ...greedy(6), logprobs: true, stream: true }));
    const tokens = events.flatMap(event => event.choices?.[0]?.logprobs?.content ?? []);
    expect(tokens).toHaveLength(6);
  });
});

describe('a stream', () => {
  it('begins with the role, and ends with a reason, the usage and [DONE]', async () => {
    const request = { messages, ...greedy(12), stream: true, stream_options: { include_usage: true } };
    const response = await ask(PATH, request);
    expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    const events = await readEvents(response);
    const whole = await json(PATH, { messages, ...greedy(12) });
    expect(events[0].choices[0].delta).toEqual({ role: 'assistant', content: '' });
    expect(events.at(-3).choices[0]).toMatchObject({ delta: {}, finish_reason: 'length' });
    expect(events.at(-2)).toMatchObject({ choices: [], usage: { completion_tokens: 12 } });
    expect(events.at(-1)).toBe('[DONE]');
    const text = events.map(event => event.choices?.[0]?.delta.content ?? '').join('');
    expect(text).toBe(whole.choices[0].message.content);
    expect(new Set(events.slice(0, -1).map(({ id }) => id)).size).toBe(1);
  });

  it('has all answers of a request', async () => {
    const events = await readEvents(await ask(PATH, { messages, n: 2, max_tokens: 5, ignore_eos: true, stream: true }));
    const finished = events.filter(event => event.choices?.[0]?.finish_reason).map(({ choices }) => choices[0].index);
    expect(finished.sort()).toEqual([0, 1]);
  });

  it('sends heartbeats while nothing else is sent', async () => {
    const slow = await openServer({ heartbeatMs: 1 }, service);
    const response = await slow.ask(PATH, { messages: user('x'.repeat(900)), ...greedy(3), stream: true });
    const text = await response.text();
    expect(text).toContain(': heartbeat\n\n');
    expect(text).toMatch(/data: \[DONE\]\n\n$/);
  });
});

describe('errors', () => {
  const errorOf = async (body: unknown) => {
    const response = await ask(PATH, body);
    return { status: response.status, ...((await response.json()) as Json).error };
  };

  it('name the field that is wrong', async () => {
    expect(await errorOf({ messages, max_tokens: 'x' })).toMatchObject({ status: 400, param: 'max_tokens' });
    expect(await errorOf({ messages: [{ role: 'user', content: 5 }] })).toMatchObject({ param: 'messages[0].content' });
    expect(await errorOf({})).toMatchObject({ status: 400, type: 'invalid_request_error', param: 'messages' });
    expect(await errorOf({ messages, n: 1e9 })).toMatchObject({ status: 400, param: 'n' });
    expect(await errorOf({ messages, temperature: -1 })).toMatchObject({ status: 400, param: 'temperature' });
    expect(await errorOf({ messages, stop: Array(100).fill('x') })).toMatchObject({ status: 400, param: 'stop' });
    expect(await errorOf({ messages, top_logprobs: 2 })).toMatchObject({ status: 400, param: 'top_logprobs' });
  });

  it('say that a prompt is too long', async () => {
    const long = { messages: user('x'.repeat(3000)), ...greedy(3) };
    const expected = {
      status: 400,
      code: 'context_length_exceeded',
      message: expect.stringMatching(/maximum context length is 2048/),
    };
    expect(await errorOf(long)).toMatchObject(expected);
    expect(await errorOf({ ...long, stream: true })).toMatchObject(expected);
  });

  it('say that only text is supported', async () => {
    const image = [{ type: 'image_url', image_url: { url: 'data:' } }];
    expect(await errorOf({ messages: [{ role: 'user', content: image }] })).toMatchObject({
      status: 400,
      message: expect.stringContaining('image_url'),
    });
  });
});
