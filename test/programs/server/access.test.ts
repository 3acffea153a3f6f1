/** Keys, tenants, quotas, limits: who may ask for how much. */
import { describe, expect, it } from 'vitest';
import { createKeyring, parseTenants } from '../../../src/server/tenants.ts';
import { greedy, type Json, openServer, openService, user } from './tiny-server.ts';

const CHAT = '/v1/chat/completions';
const service = await openService(2);
const tenants = [
  { name: 'alice', keys: ['alice-key-1', 'alice-key-2'] },
  { name: 'bob', keys: ['bob-key-1'], maxRequests: 1, maxQueuedTokens: 50 },
];
const bearer = (key: string) => ({ authorization: `Bearer ${key}` });

describe('keys', async () => {
  const { ask, json } = await openServer({ tenants }, service);

  it('are needed by every route but /health and /live', async () => {
    const { paths } = await json('/openapi.json', undefined, bearer('bob-key-1'));
    for (const [path, methods] of Object.entries<Json>(paths))
      for (const method of Object.keys(methods)) {
        const send = (headers?: Record<string, string>) =>
          ask(path.replace('{id}', '0'), method === 'post' ? '{' : undefined, headers);
        const isPublic = path === '/health' || path === '/live';
        expect((await send()).status, path).toBe(isPublic ? 200 : 401);
        expect((await send(bearer('wrong-key'))).status, path).toBe(isPublic ? 200 : 401);
        expect((await send({ 'x-api-key': 'alice-key-2' })).status, path).not.toBe(401);
      }
    expect((await ask('/openapi.json')).status).toBe(401);
  });

  it('are refused with a code that clients know', async () => {
    expect((await json(CHAT, {}, bearer('wrong-key'))).error).toMatchObject({ code: 'invalid_api_key' });
    expect((await json('/v1/messages', {})).error).toMatchObject({ type: 'authentication_error' });
  });

  it('must be long enough, and belong to one tenant', () => {
    expect(() => createKeyring([{ name: 'a', keys: ['short'] }])).toThrow(/at least 8 characters/);
    expect(() => createKeyring([...tenants, { name: 'c', keys: ['bob-key-1'] }])).toThrow(/belongs to one tenant/);
  });

  it('are read from a file, whose mistakes are named', () => {
    const file = JSON.stringify({ tenants: [{ name: 'alice', keys: ['alice-key-1'], maxRequests: 3 }] });
    expect(parseTenants(file, 'keys.json')).toEqual([{ name: 'alice', keys: ['alice-key-1'], maxRequests: 3 }]);
    const secret = () => parseTenants('{"keys": ["a-secret-key"} ]', 'keys.json');
    expect(secret).toThrow(/keys.json is not valid JSON/);
    expect(secret).not.toThrow(expect.objectContaining({ cause: expect.anything() }));
    expect(() => parseTenants('{"tenants": [{"name": "a b", "keys": ["12345678"]}]}', 'k')).toThrow(/letters, digits/);
    expect(() => parseTenants('{"tenants": [{"name": "a", "keys": ["12345678"], "quota": 1}]}', 'k')).toThrow(/quota/);
  });
});

describe('tenants', async () => {
  const { json, ask } = await openServer({ tenants }, service);
  const cachedTokens = async (key: string, fields: object = {}) => {
    const request = { messages: user('ale '.repeat(40)), ...greedy(1), ...fields };
    return (await json(CHAT, request, bearer(key))).usage.prompt_tokens_details.cached_tokens;
  };

  it('share prefixes within, never across; a salt makes them private', async () => {
    expect(await cachedTokens('alice-key-1')).toBe(0);
    expect(await cachedTokens('alice-key-2')).toBeGreaterThan(100);
    expect(await cachedTokens('bob-key-1')).toBe(0);
    expect(await cachedTokens('alice-key-1', { cache_salt: 'x' })).toBe(0);
    expect(await cachedTokens('alice-key-1', { cache_salt: 'x' })).toBeGreaterThan(100);
  });

  it('have slots of their own', async () => {
    await json(CHAT, { messages: user('Hi'), id_slot: 0, ...greedy(2) }, bearer('alice-key-1'));
    expect(await json('/slots', undefined, bearer('alice-key-2'))).toHaveLength(1);
    expect(await json('/slots', undefined, bearer('bob-key-1'))).toEqual([]);
    await json('/slots/0?action=erase', {}, bearer('alice-key-1'));
  });

  it('have quotas of answers and of waiting tokens', async () => {
    const two = await ask(CHAT, { messages: user('Hi'), n: 2, ...greedy(1) }, bearer('bob-key-1'));
    expect(two.status).toBe(429);
    expect(Number(two.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    const long = await ask(CHAT, { messages: user('x'.repeat(400)), ...greedy(1) }, bearer('bob-key-1'));
    expect(long.status).toBe(429);
    expect((await ask(CHAT, { messages: user('Hi'), ...greedy(1) }, bearer('bob-key-1'))).status).toBe(200);
  });
});

describe('what all tenants do', () => {
  const METRICS = /vllm:num_requests_running/;
  const withOperator = [...tenants, { name: 'ops', keys: ['ops-key-1'], operator: true }];

  it('is shown to no tenant among others', async () => {
    const { ask, json } = await openServer({ tenants: withOperator }, service);
    const refused = await ask('/metrics', undefined, bearer('alice-key-1'));
    expect(refused.status).toBe(403);
    expect(await refused.text()).toMatch(/operators_only/);
    const status = await json('/status', undefined, bearer('alice-key-1'));
    expect(status).toMatchObject({ status: 'ready', info: { kv: 'tq4' } });
    expect(status.stats).toBeUndefined();
  });

  it('is shown to operators, by a key of their own', async () => {
    const { ask, json } = await openServer({ tenants: withOperator }, service);
    expect(await (await ask('/metrics', undefined, bearer('ops-key-1'))).text()).toMatch(METRICS);
    expect((await json('/status', undefined, bearer('ops-key-1'))).stats).toMatchObject({ running: 0 });
  });

  it('is shown to a tenant without others, and without keys', async () => {
    const alone = await openServer({ tenants: [tenants[0]] }, service);
    expect(await (await alone.ask('/metrics', undefined, bearer('alice-key-2'))).text()).toMatch(METRICS);
    const open = await openServer({}, service);
    expect(await (await open.ask('/metrics')).text()).toMatch(METRICS);
  });

  it("is shown on the operators' port without a key, which answers nothing else", async () => {
    const { app } = await openServer({ tenants }, service);
    const ask = (path: string, init: RequestInit = {}) =>
      app.fetchForOperators(new Request(`http://10.0.0.7${path}`, { ...init, headers: { host: 'localhost' } }));
    expect(await (await ask('/metrics')).text()).toMatch(METRICS);
    for (const path of ['/live', '/health', '/ready', '/status']) expect((await ask(path)).status, path).toBe(200);
    for (const path of ['/slots', '/v1/models', '/', CHAT]) expect((await ask(path)).status, path).toBe(404);
    const refused = await ask(CHAT, { method: 'POST', body: '{}' });
    expect([refused.status, ((await refused.json()) as Json).error.message]).toEqual([
      404,
      'This port answers GET /live, /health, /ready, /status, /metrics, not POST /v1/chat/completions.',
    ]);
    // It has no keys, so that a web page must not reach it by another name.
    expect((await app.fetchForOperators(new Request('http://evil.example/metrics'))).status).toBe(403);
  });
});

describe('limits', () => {
  it('the queue is bounded', async () => {
    const { ask, app } = await openServer({ limits: { queue: 1 } }, service);
    const request = { messages: user('Hi'), ...greedy(20) };
    const statuses = await Promise.all(Array.from({ length: 6 }, async () => (await ask(CHAT, request)).status));
    expect(statuses.filter(status => status === 200)).toHaveLength(3);
    expect(statuses.filter(status => status === 429)).toHaveLength(3);
    expect(app.jobs.active).toBe(0);
  });

  it('a body is not read beyond its limit', async () => {
    const { app } = await openServer({ limits: { body: 1000 } }, service);
    let pulled = 0;
    const endless = new ReadableStream({
      pull(controller) {
        pulled++;
        controller.enqueue(new Uint8Array(400));
      },
    });
    const init = { method: 'POST', body: endless, duplex: 'half' } as RequestInit;
    const response = await app.fetch(new Request(`http://localhost${CHAT}`, init));
    expect(response.status).toBe(413);
    expect(pulled).toBeLessThan(10);
  });

  it('an announced length is enough to refuse', async () => {
    const { ask } = await openServer({ limits: { body: 10 } }, service);
    expect((await ask(CHAT, { messages: user('Hi') }, { 'content-length': '1000' })).status).toBe(413);
  });

  it('JSON is bounded in depth and size, and changes no prototype', async () => {
    const { ask, json } = await openServer({}, service);
    const deep = `{"messages":${'['.repeat(1e5)}${']'.repeat(1e5)}}`;
    const wide = JSON.stringify({ messages: Array(250_001).fill(0) });
    for (const body of [deep, wide, '{"__proto__": {"stream": true}}', '{"a": {"__proto__": 1}}', '[]', '"x"', '{'])
      expect((await ask(CHAT, body)).status).toBe(400);
    expect((await json(CHAT, '{')).error.code).toBe('invalid_json');
  });

  it('answers have a length, whatever is asked for', async () => {
    const { json } = await openServer({ limits: { output: 5 } }, service);
    for (const max_tokens of [undefined, 3, 1e9]) {
      const { usage } = await json(CHAT, { messages: user('Hi'), max_tokens, ignore_eos: true });
      expect(usage.completion_tokens).toBe(max_tokens === 3 ? 3 : 5);
    }
  });

  it('requests have a time', async () => {
    const { ask, app } = await openServer({ limits: { time: 30 } }, service);
    const request = { messages: user('x'.repeat(1000)), ...greedy(900) };
    const late = await ask(CHAT, request);
    // Not 408 or 504: the clients of OpenAI and Anthropic would send it again, three times in all.
    expect(late.status).toBe(400);
    expect(((await late.json()) as Json).error.code).toBe('request_timeout');
    const stream = await (await ask(CHAT, { ...request, messages: user('Hi'), stream: true })).text();
    expect(stream).toContain('request_timeout');
    expect(app.jobs.active).toBe(0);
    expect(await service.stats()).toMatchObject({ running: 0, waiting: 0 });
  });
});
