/** What a web page can make a browser send to a server that only this machine reaches: DNS rebinding and CSRF. */
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { createPageRules, isLoopback } from '../../../src/server/web-pages.ts';
import { greedy, type Json, openServer, openService, user } from './tiny-server.ts';

const CHAT = '/v1/chat/completions';
const ERASE = '/slots/0?action=erase';
const service = await openService(2);
const { json, app } = await openServer({}, service);

/** What a browser sends for a page, as it is. */
const send = (path: string, headers: Record<string, string>, body?: string, method = 'POST', to = app) =>
  to.fetch(new Request(`http://127.0.0.1:8080${path}`, { method, headers, body }));

const errorOf = async (response: Response) => ((await response.json()) as Json).error;

/** Opens slot 0. */
const fillSlot = () => json(CHAT, { messages: user('Hi'), id_slot: 0, ...greedy(2) });
const heldSlots = async () => (await json('/slots')).length;

describe('without keys', () => {
  it('a page of another site erases no slot, whatever it sends', async () => {
    await fillSlot();
    const attempts: [Record<string, string>, string | undefined][] = [
      // A form, and fetch with `mode: 'no-cors'`: neither asks first.
      [{ 'content-type': 'text/plain' }, '{}'],
      [{ 'content-type': 'application/x-www-form-urlencoded' }, '{}'],
      [{ origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' }, undefined],
      [{ origin: 'http://localhost:3000', 'sec-fetch-site': 'same-site' }, undefined],
      // Over plain HTTP browsers do not send Sec-Fetch-Site.
      [{ origin: 'https://evil.example' }, undefined],
      [{ origin: 'null' }, undefined],
      // The name of the page points to this machine.
      [{ host: 'evil.example:8080', 'content-type': 'application/json' }, '{}'],
      [{ host: '127.0.0.1.evil.example', 'content-type': 'application/json' }, '{}'],
    ];
    for (const [headers, body] of attempts) {
      const { status } = await send(ERASE, headers, body);
      expect([403, 415], JSON.stringify(headers)).toContain(status);
    }
    expect(await heldSlots()).toBe(1);
  });

  it('a body is JSON, and says so', async () => {
    const question = JSON.stringify({ messages: user('Hi'), ...greedy(1) });
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonp', 'multipart/json'])
      expect((await send(CHAT, { 'content-type': type }, question)).status).toBe(415);
    // A Blob without a type.
    const untyped = new Request(`http://127.0.0.1:8080${CHAT}`, { method: 'POST', body: new Blob([question]) });
    expect((await app.fetch(untyped)).status).toBe(415);
    for (const type of ['application/json', 'application/json; charset=utf-8', 'Application/JSON'])
      expect((await send(CHAT, { 'content-type': type }, question)).status).toBe(200);
  });

  it('no route answers to a foreign name, and the refusal says what to do', async () => {
    for (const path of ['/', '/status', '/slots', '/metrics', '/v1/models', '/nowhere']) {
      const response = await send(path, { host: 'evil.example' }, undefined, 'GET');
      expect(response.status, path).toBe(403);
      expect((await errorOf(response)).message).toMatch(/"evil\.example".*--allowed-hosts.*--api-key/);
    }
  });

  it('the app of the server itself and other clients are answered', async () => {
    const own = { origin: 'http://127.0.0.1:8080', 'sec-fetch-site': 'same-origin' };
    const clients: Record<string, string>[] = [
      own,
      { origin: 'http://127.0.0.1:8080' },
      { 'sec-fetch-site': 'none' },
      {},
    ];
    for (const headers of clients) {
      await fillSlot();
      expect((await send(ERASE, headers)).status).toBe(200);
    }
  });

  it('names of this machine, of its address and configured ones are its own', () => {
    const accepts = (hosts: string[], host: string): boolean => {
      try {
        createPageRules({ hosts, cors: [] }).checkHost(new Request('http://localhost/', { headers: { host } }));
        return true;
      } catch {
        return false;
      }
    };
    for (const host of [
      'localhost',
      'LOCALHOST:8080',
      'app.localhost',
      'localhost.',
      '127.0.0.1:1',
      '127.8.9.1',
      '[::1]:80',
    ])
      expect(accepts([], host), host).toBe(true);
    for (const host of ['10.0.0.5', 'nas.local', '127.evil.example', 'localhost.evil.example', 'a b', ''])
      expect(accepts([], host), host).toBe(false);
    expect(accepts(['10.0.0.5', 'NAS.local'], '10.0.0.5:8080')).toBe(true);
    expect(accepts(['10.0.0.5', 'NAS.local'], 'nas.local')).toBe(true);
    expect(accepts(['nas.local:8080', '[fe80::1]:80'], 'nas.local')).toBe(true);
    expect(accepts(['nas.local:8080', '[fe80::1]:80'], '[fe80::1]')).toBe(true);
    expect(accepts(['0.0.0.0'], '10.0.0.5:8080')).toBe(true);
    expect(accepts(['::'], '[fe80::1]:8080')).toBe(true);
    expect(accepts(['0.0.0.0'], 'evil.example')).toBe(false);
    expect(isLoopback('127.evil.example')).toBe(false);
  });
});

describe('with keys', () => {
  it('any name is answered: a page has no key', async () => {
    const { app } = await openServer({ tenants: [{ name: 'a', keys: ['a-long-key'] }] }, service);
    const headers = { host: 'api.example', authorization: 'Bearer a-long-key' };
    expect((await send('/slots', headers, undefined, 'GET', app)).status).toBe(200);
    expect((await send('/slots', { host: 'api.example' }, undefined, 'GET', app)).status).toBe(401);
  });
});

describe('pages of other origins', () => {
  const preflight = (origin: string, to = app) =>
    send(CHAT, { origin, 'access-control-request-method': 'POST' }, undefined, 'OPTIONS', to);
  const allowedOrigin = (response: Response) => response.headers.get('access-control-allow-origin');
  const question = JSON.stringify({ messages: user('Hi'), ...greedy(1) });
  const ask = (origin: string, to: typeof app) =>
    send(CHAT, { origin, 'sec-fetch-site': 'cross-site', 'content-type': 'application/json' }, question, 'POST', to);

  it('may neither ask nor read, unless their origin is allowed', async () => {
    const { app: open } = await openServer({ cors: ['http://a.test'] }, service);
    expect(allowedOrigin(await send('/live', { origin: 'http://a.test' }, undefined, 'GET'))).toBe(null);
    expect(allowedOrigin(await ask('http://a.test', open))).toBe('http://a.test');
    expect((await ask('http://a.test', open)).status).toBe(200);
    const refused = await ask('http://b.test', open);
    expect([refused.status, allowedOrigin(refused)]).toEqual([403, null]);
    expect((await preflight('http://a.test', open)).status).toBe(204);
  });

  it('are allowed as a user writes their origin; what is none is an error', async () => {
    const { app: open } = await openServer({ cors: ['https://Chat.test/'] }, service);
    expect((await ask('https://chat.test', open)).status).toBe(200);
    for (const origin of ['chat.test', 'https://chat.test/app', ''])
      expect(() => createPageRules({ hosts: [], cors: [origin] })).toThrow(/not the origin of a web page/);
  });

  it('without a name are refused without a wrong advice', async () => {
    const unnamed: Record<string, string>[] = [{ 'sec-fetch-site': 'cross-site' }, { origin: 'null' }];
    for (const headers of unnamed) {
      const { message } = await errorOf(await send(ERASE, headers));
      expect(message).toBe(
        'Web pages of other origins may not use this server. Open the page from an origin that --cors names.',
      );
    }
  });

  it('are all allowed by *', async () => {
    const { app: open } = await openServer({ cors: ['*'] }, service);
    expect(allowedOrigin(await preflight('https://any.test', open))).toBe('*');
    const answer = await ask('https://any.test', open);
    expect([answer.status, allowedOrigin(answer)]).toEqual([200, '*']);
  });

  it('need no key for a preflight', async () => {
    const tenants = [{ name: 'a', keys: ['a-long-key'] }];
    const { app: locked } = await openServer({ cors: ['http://a.test'], tenants }, service);
    expect((await preflight('http://a.test', locked)).status).toBe(204);
  });

  it('a refused preflight says how to allow the origin, once in the log', async () => {
    const lines: string[] = [];
    const logger = pino({ level: 'info' }, { write: (line: string) => lines.push(line) });
    const { app: logged } = await openServer({ logger }, service);
    for (let i = 0; i < 3; i++) {
      const response = await preflight('https://chat.test', logged);
      expect(response.status).toBe(403);
      expect((await errorOf(response)).message).toContain('--cors https://chat.test');
    }
    expect(lines).toHaveLength(1);
    expect(lines[0]).toContain('--cors https://chat.test');
    for (let i = 0; i < 100; i++) await preflight(`https://${i}.test`, logged);
    expect(lines.length).toBeLessThan(20);
  });
});
