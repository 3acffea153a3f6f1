/** The small routes: models, tokens, slots, probes, metrics, the OpenAPI document. */
import { mkdtemp, readdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { describe, expect, it } from 'vitest';
import { type Backend, readyBackend } from '../../../src/server/backend.ts';
import { routes } from '../../../src/server/routes.ts';
import { CapacityError } from '../../../src/util/errors.ts';
import { greedy, type Json, openServer, user } from './tiny-server.ts';

const slotPath = await mkdtemp(join(tmpdir(), 'kvasir-slots-'));
const { app, ask, json, service } = await openServer({ slotPath });

describe('/v1/models', () => {
  it('lists all names', async () => {
    const { data } = await json('/v1/models');
    expect(data.map(({ id }: Json) => id)).toEqual(['tiny', 'alias', 'tiny.gguf']);
    expect(await json('/v1/models/tiny.gguf')).toMatchObject({ id: 'tiny.gguf', root: 'tiny', max_model_len: 2048 });
    expect((await ask('/v1/models/other')).status).toBe(404);
  });
});

describe('/tokenize and /detokenize', () => {
  it('are inverse', async () => {
    const { tokens, count } = await json('/tokenize', { content: 'Odin ᚬ' });
    expect(count).toBe(tokens.length);
    expect(await json('/detokenize', { tokens })).toEqual({ content: 'Odin ᚬ' });
    expect(await json('/tokenize', { text: 'Odin ᚬ' })).toMatchObject({ tokens });
  });

  it('count messages as the model reads them', async () => {
    const { count } = await json('/tokenize', { messages: user('Hi') });
    const { usage } = await json('/v1/chat/completions', { messages: user('Hi'), ...greedy(1) });
    expect(count).toBe(usage.prompt_tokens);
    const tools = [{ type: 'function', function: { name: 'find' } }];
    const told = await json('/v1/chat/completions', { messages: user('Hi'), tools, max_tokens: 1 });
    expect(await json('/tokenize', { messages: user('Hi'), tools })).toMatchObject({ count: told.usage.prompt_tokens });
  });

  it('refuse other bodies', async () => {
    expect((await ask('/tokenize', {})).status).toBe(400);
    expect((await ask('/detokenize', { tokens: ['x'] })).status).toBe(400);
    expect((await ask('/detokenize', { tokens: [1e7] })).status).toBe(400);
  });
});

describe('/slots', () => {
  it('saves, erases and restores a conversation', async () => {
    const request = { messages: user('mead '.repeat(60)), id_slot: 2, ...greedy(6) };
    const first = await json('/v1/chat/completions', request);
    const [slot] = await json('/slots');
    expect(slot).toMatchObject({ id: 2, is_processing: false });
    const saved = await json('/slots/2?action=save', { filename: 'talk.bin' });
    expect(saved).toMatchObject({ id_slot: 2, filename: 'talk.bin', n_saved: slot.n_tokens });
    expect(await readdir(slotPath)).toContain('talk.bin');
    expect(await json('/slots/2?action=erase', '')).toEqual({ id_slot: 2, n_erased: slot.n_tokens });
    expect(await json('/slots')).toEqual([]);
    expect(await json('/slots/3?action=restore', { filename: 'talk.bin' })).toMatchObject({
      n_restored: slot.n_tokens,
    });
    const again = await json('/v1/chat/completions', { ...request, id_slot: 3 });
    expect(again.choices).toEqual(first.choices);
  });

  it('takes no paths, unknown actions or numbers', async () => {
    for (const filename of ['../x', '/etc/passwd', '.hidden', 'a/b', '', 'a\0b', 'x'.repeat(300)])
      expect((await ask('/slots/0?action=save', { filename })).status).toBe(400);
    expect((await ask('/slots/0?action=drop', {})).status).toBe(400);
    const unknown = await ask('/slots/x?action=erase', {});
    expect([unknown.status, ((await unknown.json()) as Json).error.message]).toEqual([
      400,
      'The path needs the number of a slot, as in /slots/0.',
    ]);
    // Where the files are is not told.
    expect((await json('/slots/0?action=restore', { filename: 'missing' })).error).toMatchObject({
      message: 'missing cannot be read (ENOENT). Check the path.',
      param: 'filename',
    });
  });

  it('says in words of the server that there is no room', async () => {
    const restoreSlot = async () => {
      throw new CapacityError(option => `The session is too long. Use a larger ${option('context')}.`);
    };
    const { ask } = await openServer({ slotPath, backend: readyBackend({ ...service, restoreSlot }) }, service);
    const response = await ask('/slots/0?action=restore', { filename: 'x' });
    expect([response.status, ((await response.json()) as Json).error]).toEqual([
      507,
      expect.objectContaining({
        message: 'The session is too long. Use a larger `kvasir serve --context`.',
        code: 'insufficient_storage',
      }),
    ]);
  });

  it('saves nothing without a folder', async () => {
    const { ask } = await openServer({}, service);
    expect((await ask('/slots/0?action=save', { filename: 'x' })).status).toBe(501);
  });
});

describe('probes', () => {
  it('tell a process that lives from one that answers; /health waits for the model', async () => {
    const backend: { -readonly [key in keyof Backend]: Backend[key] } = { state: 'loading', restarts: 0 };
    const { ask, json } = await openServer({ backend }, service);
    for (const state of ['loading', 'restarting', 'failed'] as const) {
      Object.assign(backend, { state, reason: 'the device is lost' });
      expect((await ask('/live')).status).toBe(200);
      expect((await ask('/health')).status).toBe(503);
      expect(await json('/health')).toEqual({ status: state });
      expect((await ask('/ready')).status).toBe(503);
      expect(await json('/ready')).toMatchObject({ status: state, reason: 'the device is lost' });
      const refused = await ask('/v1/chat/completions', { messages: user('Hi') });
      expect(refused.status).toBe(503);
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
      expect((await ask('/metrics')).status).toBe(200);
    }
    Object.assign(backend, { state: 'ready', service, reason: undefined });
    expect((await ask('/ready')).status).toBe(200);
    expect(await json('/health')).toEqual({ status: 'ok' });
  });
});

describe('/metrics', () => {
  it("has vLLM's names, and counts what was reused", async () => {
    const { ask } = await openServer({}, service);
    const request = { messages: user('honey '.repeat(60)), ...greedy(5) };
    await ask('/v1/chat/completions', request);
    await ask('/v1/chat/completions', request);
    const text = await (await ask('/metrics')).text();
    const metric = (name: string) => Number(text.match(new RegExp(`^${name}(?:\\{.*\\})? (.*)$`, 'm'))?.[1]);
    for (const name of [
      'vllm:num_requests_running',
      'vllm:num_requests_waiting',
      'vllm:kv_cache_usage_perc',
      'vllm:num_preemptions_total',
      'vllm:spec_decode_num_draft_tokens_total',
      'vllm:time_to_first_token_seconds_count',
      'vllm:inter_token_latency_seconds_count',
      'vllm:e2e_request_latency_seconds_count',
      'kvasir_leaf_bytes',
      'kvasir_engine_restarts_total',
    ])
      expect(metric(name), name).toBeGreaterThanOrEqual(0);
    expect(metric('vllm:generation_tokens_total')).toBe(10);
    expect(metric('vllm:prefix_cache_queries_total')).toBe(metric('vllm:prompt_tokens_total'));
    expect(metric('vllm:prefix_cache_hits_total')).toBeGreaterThan(200);
    expect(text).toMatch(/vllm:request_success_total\{.*finished_reason="length".*\} 2/);
    expect(text).toContain('model_name="tiny"');
  });
});

describe('the metrics of a prompt that was cancelled', () => {
  it('count what was read, not what was sent', async () => {
    const { ask, app } = await openServer({}, service);
    const leave = new AbortController();
    const body = JSON.stringify({
      messages: user('x'.repeat(1900)),
      stream: true,
      return_progress: true,
      ...greedy(50),
    });
    const headers = { 'content-type': 'application/json' };
    const request = new Request('http://localhost/v1/chat/completions', {
      ...{ method: 'POST', headers, body, signal: leave.signal },
    });
    // The first event is the progress of the first chunk.
    const reader = (await app.fetch(request)).body!.getReader();
    const first = new TextDecoder().decode((await reader.read()).value);
    const { processed, total } = JSON.parse(first.slice('data: '.length)).prompt_progress;
    expect(processed).toBeLessThan(total);
    await reader.cancel();
    const text = await (await ask('/metrics')).text();
    const counted = Number(text.match(/^vllm:prompt_tokens_total\{.*\} (.*)$/m)?.[1]);
    expect(counted).toBeGreaterThanOrEqual(processed);
    expect(counted).toBeLessThan(total);
  });
});

describe('/openapi.json', () => {
  it('has every route, and schemas that a validator takes', async () => {
    const document = await json('/openapi.json');
    expect(document).toMatchObject({ openapi: '3.1.0', info: { title: 'Kvasir' } });
    const listed = Object.entries<Json>(document.paths).flatMap(([path, methods]) =>
      Object.keys(methods).map(method => `${method} ${path}`),
    );
    const expected = routes.map(({ method, path }) => `${method} ${path.replace(/:(\w+)(\{[^}]*\})?/g, '{$1}')}`);
    expect(listed.sort()).toEqual(expected.sort());
    const chat = document.paths['/v1/chat/completions'].post.requestBody.content['application/json'].schema;
    const validate = new Ajv2020({ strict: false }).compile(chat);
    expect(validate({ messages: user('Hi'), temperature: 0 })).toBe(true);
    expect(validate({ messages: 'Hi' })).toBe(false);
  });
});

it('answers unknown paths and methods', async () => {
  expect((await ask('/v2/chat')).status).toBe(404);
  const response = await ask('/v1/chat/completions');
  expect(response.status).toBe(405);
  expect(response.headers.get('allow')).toBe('POST');
  const messageOf = async (path: string) => (await json(path, {})).error.message;
  for (const path of ['/chat/completions', '/v1/v1/chat/completions'])
    expect(await messageOf(path)).toBe(`There is no ${path} here. Did you mean /v1/chat/completions?`);
  expect(await messageOf('/v1/images/generations')).toBe(
    'There is no /v1/images/generations here. GET /openapi.json lists what there is.',
  );
  expect(await messageOf('/v1/chat/completions')).toBe('messages is missing: it must be an array.');
});

it('refuses a method that a path does not take, also of paths with an id', async () => {
  for (const [path, method, allow] of [
    ['/slots/0', 'GET', 'POST'],
    ['/v1/models/tiny', 'DELETE', 'GET'],
    ['/v1/responses/resp_1', 'POST', 'GET, DELETE'],
  ] as const) {
    const response = await app.fetch(new Request(`http://localhost${path}`, { method }));
    expect([response.status, response.headers.get('allow')], path).toEqual([405, allow]);
  }
  expect((await ask('/slots/0/1')).status).toBe(404);
});

it('refuses a path in the shape of its API', async () => {
  expect(await json('/api/pull', {})).toEqual({ error: expect.stringMatching(/^There is no \/api\/pull here/) });
  expect(await json('/api/chat')).toEqual({ error: '/api/chat takes POST, not GET.' });
  expect(await json('/v1/messages/batches', {})).toMatchObject({ type: 'error', error: { type: 'not_found_error' } });
  expect(await json('/v1/messages')).toMatchObject({ type: 'error', error: { type: 'invalid_request_error' } });
  expect(await json('/v1/files')).toMatchObject({ error: { type: 'invalid_request_error', param: null } });
});
