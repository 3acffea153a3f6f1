/** The header `x-explain-cache`: where a prompt departs from the nearest one in the cache. */
import { expect, it } from 'vitest';
import { openServer, openService, user } from './tiny-server.ts';

const service = await openService();
const { ask } = await openServer({}, service);
const explain = { 'x-explain-cache': '1' };
const long = 'The mead of poetry was brewed from his blood. '.repeat(8);
const dated = (date: string) => [
  { role: 'system', content: `${long}Today is ${date}. ${long}` },
  ...user('Who was Kvasir?'),
];

/** In the body, letters are as they are. */
const unescaped = (header: string) => JSON.stringify(JSON.parse(header));

const differenceOf = async (path: string, request: object, headers: Record<string, string> = explain) => {
  const response = await ask(path, request, headers);
  expect(response.status).toBe(200);
  await response.text();
  const header = response.headers.get('x-cache-difference');
  return header === null ? undefined : JSON.parse(header);
};

it('names the tokens at which a template with a date departs from the prompt of yesterday', async () => {
  const chat = (date: string, fields: object = {}) => ({
    messages: dated(date),
    max_tokens: 1,
    cache_salt: 'a',
    ...fields,
  });
  const path = '/v1/chat/completions';
  const first = await differenceOf(path, chat('17 November'));
  expect(first).toMatchObject({ shared_tokens: 0, cached: '' });
  const second = await differenceOf(path, chat('18 November', { stream: true }));
  expect(second).toEqual({
    prompt_tokens: first.prompt_tokens,
    shared_tokens: expect.any(Number),
    before: 'day is 1',
    prompt: '8 Novemb',
    cached: '7 Novemb',
  });
  const told = async (stream: boolean) => {
    const usage = { stream, stream_options: { include_usage: true } };
    const text = await (await ask(path, chat('18 November', usage), explain)).text();
    const [, json] = text.match(/"cached_tokens":\d+,"cache_difference":({.*?})/) ?? [];
    return JSON.parse(json ?? 'null')?.shared_tokens;
  };
  expect([await told(false), await told(true)]).toEqual([first.prompt_tokens, first.prompt_tokens]);
  const again = await differenceOf(path, chat('18 November'));
  expect(again.shared_tokens).toBe(again.prompt_tokens);
  expect(again.prompt).toBe('');
});

it('is told by all APIs, in ASCII, and only if asked', async () => {
  const messages = [{ role: 'user', content: `${long}ᚠ` }];
  const other = [{ role: 'user', content: `${long}ᚢ` }];
  const [prompt, otherPrompt] = [messages[0].content, other[0].content];
  for (const [path, request, changed] of [
    ['/v1/completions', { prompt, max_tokens: 1 }, { prompt: otherPrompt, max_tokens: 1 }],
    ['/v1/messages', { messages, max_tokens: 1 }, { messages: other, max_tokens: 1 }],
    ['/v1/responses', { input: messages, max_output_tokens: 1 }, { input: other, max_output_tokens: 1 }],
    ['/api/chat', { model: 'tiny', messages, options: { num_predict: 1 } }, { model: 'tiny', messages: other }],
    [
      '/api/generate',
      { model: 'tiny', prompt, raw: true, options: { num_predict: 1 } },
      { model: 'tiny', prompt: otherPrompt, raw: true, options: { num_predict: 1 } },
    ],
  ] as const) {
    const { ask } = await openServer({ tenants: [{ name: path.replace(/\W/g, ''), keys: ['a-long-key'] }] }, service);
    const send = async (body: object) => {
      const response = await ask(path, body, { ...explain, 'x-api-key': 'a-long-key' });
      const header = response.headers.get('x-cache-difference') ?? '';
      if (!path.startsWith('/api/'))
        expect(await response.text(), path).toContain(`"cache_difference":${unescaped(header)}`);
      else await response.text();
      return header;
    };
    await send(request);
    const header = await send(changed);
    expect(header, path).toMatch(/^[ -~]+$/);
    expect(JSON.parse(header).shared_tokens, path).toBeGreaterThan(long.length);
  }
  expect(await differenceOf('/v1/chat/completions', { messages, max_tokens: 1 }, {})).toBeUndefined();
});

it('names the tokens at which a raw prompt differs, whether it is a text or token ids', async () => {
  const path = '/v1/completions';
  const complete = (prompt: unknown, fields: object = {}) => ({ prompt, max_tokens: 1, cache_salt: 'b', ...fields });
  const text = (date: string) => `${long}Today is ${date}. ${long}`;
  const first = await differenceOf(path, complete(text('17 November')));
  expect(first).toMatchObject({ shared_tokens: 0, cached: '' });
  // Of the cached text, up to the end of its page.
  const parts = { before: 'day is 1', prompt: '8 Novemb', cached: expect.stringMatching(/^7 Nov/) };
  const second = await differenceOf(path, complete(text('18 November')));
  expect(second).toEqual({ prompt_tokens: first.prompt_tokens, shared_tokens: expect.any(Number), ...parts });
  const ids = await service.tokenizePrompt(text('19 November'), { parseSpecialTokens: true });
  expect(ids).toHaveLength(first.prompt_tokens);
  expect((await differenceOf(path, complete([ids, ids]))).shared_tokens).toBe(second.shared_tokens);
  const usage = { stream: true, stream_options: { include_usage: true } };
  const streamed = await (await ask(path, complete(text('18 November'), usage), explain)).text();
  expect(streamed).toContain(
    `"cache_difference":{"prompt_tokens":${first.prompt_tokens},"shared_tokens":${ids.length}`,
  );
});

it("never tells of another tenant's texts", async () => {
  const tenants = ['alice', 'bob'].map(name => ({ name, keys: [`${name}-long-key`] }));
  const { ask } = await openServer({ tenants }, service);
  const request = { messages: dated('1 May'), max_tokens: 1 };
  const send = async (name: string) => {
    const response = await ask('/v1/chat/completions', request, { ...explain, 'x-api-key': `${name}-long-key` });
    await response.text();
    return JSON.parse(response.headers.get('x-cache-difference') ?? '');
  };
  await send('alice');
  expect((await send('alice')).shared_tokens).toBeGreaterThan(0);
  expect(await send('bob')).toMatchObject({ shared_tokens: 0, cached: '' });
});
