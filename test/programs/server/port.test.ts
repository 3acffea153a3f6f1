/** The server on a port: clients that leave, that do not read, that never stop; and the end of the server. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { type HttpServer, listen } from '../../../src/server/serve.ts';
import { ALL_CASES, LONG_CASES } from '../../support/matrix.ts';
import { greedy, type Json, openServer, openService, user } from './tiny-server.ts';

const CHAT = '/v1/chat/completions';
const service = await openService(4);
const { app } = await openServer({}, service);
const open = (used = app) => listen(used, { host: '127.0.0.1', port: 0, requestMs: 60_000 });
const server = await open();
afterAll(() => server.stop());

const post = (to: HttpServer, path: string, body: unknown, signal?: AbortSignal) =>
  fetch(to.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
    signal,
  });

/** Waits until nothing runs, and returns what is held besides pages that can be evicted. */
async function heldBytes(): Promise<number> {
  for (let i = 0; i < 500; i++) {
    const { running, waiting, used, cachedBytes, sharedLeaves } = await service.stats();
    if (running + waiting + app.jobs.active === 0) return sharedLeaves + used - cachedBytes;
    await new Promise(resolve => setTimeout(resolve, 10));
  }
  throw new Error('requests are still running');
}

const question = { messages: user('Who was Kvasir?'), ...greedy(24) };
const ask = async (): Promise<string> =>
  ((await (await post(server, CHAT, question)).json()) as Json).choices[0].message.content;

describe('a client that leaves', () => {
  it('while it waits frees everything at once', async () => {
    const leave = new AbortController();
    const answer = post(server, CHAT, { messages: user('x'.repeat(900)), ...greedy(1000) }, leave.signal);
    while (app.jobs.active === 0) await new Promise(resolve => setImmediate(resolve));
    leave.abort();
    await expect(answer).rejects.toThrow();
    expect(await heldBytes()).toBe(0);
  });

  it('in mid-stream frees everything at once', async () => {
    const response = await post(server, CHAT, { messages: user('Hi'), ...greedy(1900), stream: true });
    const reader = response.body!.getReader();
    await reader.read();
    expect(app.jobs.active).toBe(1);
    await reader.cancel();
    expect(await heldBytes()).toBe(0);
  });
});

/** A client that writes bytes by hand. */
async function openSocket(text: string): Promise<Socket> {
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.write(text);
  return socket;
}

const head = (length: number) =>
  `POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${length}\r\n\r\n`;

describe('a hostile client', () => {
  it('that announces 100 MB is refused before it sends them', async () => {
    const socket = await openSocket(head(100 * 2 ** 20));
    const [answer] = await once(socket, 'data');
    expect(String(answer)).toMatch(/^HTTP\/1.1 413 /);
    await once(socket, 'close');
  });

  it('that sends 100 MB without a length is cut off', async () => {
    const chunk = `100000\r\n${'x'.repeat(2 ** 20)}\r\n`;
    const socket = await openSocket(`POST ${CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n`);
    // The answer may be lost when the connection is reset.
    socket.resume();
    const closed = new Promise<void>(resolve => socket.once('close', () => resolve()));
    for (let i = 0; i < 100 && !socket.destroyed; i++)
      if (!socket.write(chunk)) await Promise.race([new Promise(resolve => socket.once('drain', resolve)), closed]);
    await closed;
    expect(socket.bytesWritten).toBeLessThan(64 * 2 ** 20);
    expect(await heldBytes()).toBe(0);
  });

  it('with large headers is refused', async () => {
    const socket = await openSocket(`GET /health HTTP/1.1\r\nhost: localhost\r\na: ${'x'.repeat(20_000)}\r\n\r\n`);
    const [answer] = await once(socket, 'data');
    expect(String(answer)).toMatch(/^HTTP\/1.1 431 /);
  });

  it('that does not read slows down nobody else', async () => {
    const body = JSON.stringify({ messages: user('Hi'), n: 3, ...greedy(1900), stream: true });
    const socket = await openSocket(head(body.length) + body);
    socket.pause();
    const expected = await ask();
    expect(await ask()).toBe(expected);
    socket.destroy();
    expect(await heldBytes()).toBe(0);
  });
});

/** Bodies that are nearly right, or not at all. */
const anything = fc.jsonValue({ maxDepth: 3 });
const fuzzedBody = fc.oneof(
  fc.string(),
  fc.json(),
  fc.record(
    {
      messages: fc.oneof(
        fc.constant(user('Hi')),
        fc.array(fc.record({ role: fc.string(), content: anything })),
        anything,
      ),
      prompt: fc.oneof(fc.string(), fc.array(fc.nat(300)), anything),
      max_tokens: fc.oneof(fc.integer({ min: 1, max: 8 }), anything),
      temperature: fc.oneof(fc.constant(0), fc.double(), anything),
      stop: fc.oneof(fc.string(), fc.array(fc.string(), { maxLength: 30 }), anything),
      n: fc.oneof(fc.nat(3), anything),
      stream: fc.oneof(fc.boolean(), anything),
      logprobs: anything,
      logit_bias: anything,
      tools: anything,
      tool_choice: anything,
      response_format: anything,
      seed: anything,
      id_slot: fc.oneof(fc.constant(-1), anything),
      tokens: fc.oneof(fc.array(fc.nat(300)), anything),
      content: fc.oneof(fc.string(), anything),
      system: anything,
      model: fc.constantFrom('tiny', undefined, 'x'),
    },
    { requiredKeys: ['max_tokens'] },
  ),
);
const fuzzedPath = fc.constantFrom(
  CHAT,
  '/v1/completions',
  '/v1/messages',
  '/v1/messages/count_tokens',
  '/tokenize',
  '/detokenize',
);

const runs = LONG_CASES ? 10_000 : ALL_CASES ? 3000 : 300;

it(
  `${runs} fuzzed bodies and disconnects change nothing for others`,
  async () => {
    const expected = await ask();
    const statuses = new Set<number>();
    let left = 0;
    await fc.assert(
      fc.asyncProperty(fuzzedPath, fuzzedBody, fc.option(fc.nat(12)), async (path, body, leaveAfter) => {
        const leave = new AbortController();
        const timer = leaveAfter === null ? undefined : setTimeout(() => leave.abort(), leaveAfter);
        try {
          const response = await post(server, path, body, leave.signal);
          statuses.add(response.status);
          await response.text();
        } catch (error) {
          if (!leave.signal.aborted) throw error;
          left++;
        } finally {
          clearTimeout(timer);
        }
      }),
      { numRuns: runs },
    );
    expect([...statuses].filter(status => ![200, 400, 404].includes(status))).toEqual([]);
    expect(left).toBeGreaterThan(0);
    expect(await ask()).toBe(expected);
    for (const { slot } of await service.slots('default')) await service.eraseSlot(slot, 'default');
    expect(await heldBytes()).toBe(0);
  },
  60_000 + runs * 100,
);

describe('the end', () => {
  it('lets answers finish, and refuses new ones', async () => {
    const { app } = await openServer({}, service);
    const draining = await open(app);
    const running = await post(draining, CHAT, { ...question, stream: true, max_tokens: 300 });
    const ended = draining.drain();
    expect((await app.fetch(new Request('http://localhost/ready'))).status).toBe(503);
    const refused = await app.fetch(
      new Request(`http://localhost${CHAT}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(question),
      }),
    );
    expect(refused.status).toBe(503);
    await expect(post(draining, '/health', '')).rejects.toThrow();
    expect(await running.text()).toContain('[DONE]');
    await ended;
  });

  it('does not wait for connections without a request', async () => {
    const { app } = await openServer({}, service);
    const draining = await open(app);
    const unused = connect(Number(new URL(draining.url).port), '127.0.0.1');
    await once(unused, 'connect');
    const closed = once(unused, 'close');
    // One that has had a request is closed as well.
    await (await fetch(`${draining.url}/health`)).text();
    await draining.drain();
    await closed;
  });

  it('can be at once', async () => {
    const { app } = await openServer({}, service);
    const stopping = await open(app);
    const running = await post(stopping, CHAT, { ...question, stream: true, max_tokens: 1900 });
    const text = running.text().catch(error => error);
    await stopping.stop();
    expect(await text).toSatisfy(found => found instanceof Error || String(found).includes('shutting down'));
    expect(await heldBytes()).toBe(0);
  });
});
