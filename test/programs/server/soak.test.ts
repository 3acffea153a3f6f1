/**
 * The server under clients that leave, hostile requests and a long queue: nothing is lost or kept, and others get the same
 * answers. KVASIR_LONG runs 10,000 disconnects, and the queue on a process whose memory is measured.
 */
import { existsSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, expect, it } from 'vitest';
import { listen } from '../../../src/server/serve.ts';
import { writeTempModel } from '../../support/gguf-writer.ts';
import { itAll } from '../../support/matrix.ts';
import { type Random, seeded } from '../../support/random.ts';
import { hostile } from '../../support/schemas.ts';
import { startServer } from '../../support/serve.ts';
import { tinyModel } from '../../support/tiny-model.ts';
import { greedy, type Json, openServer, openService, user } from './tiny-server.ts';

const LONG = process.env.KVASIR_LONG === '1';
const DISCONNECTS = LONG ? 10_000 : 500;
const QUEUED = 500;
const CHAT = '/v1/chat/completions';

const service = await openService(4);
const { app } = await openServer({}, service);
const server = await listen(app, { host: '127.0.0.1', port: 0, requestMs: 600_000 });
afterAll(() => server.stop());

const JSON_HEADERS = { 'content-type': 'application/json' };
const post = (url: string, path: string, body: unknown, signal?: AbortSignal) =>
  fetch(url + path, { method: 'POST', headers: JSON_HEADERS, body: JSON.stringify(body), signal });
const question = { messages: user('Who was Kvasir?'), ...greedy(24) };
const ask = async (url = server.url): Promise<string> =>
  ((await (await post(url, CHAT, question)).json()) as Json).choices[0].message.content;
const wait = (ms: number) => new Promise(resolve => setTimeout(resolve, ms));

/** Waits until nothing runs: everything in the cache can be evicted, and nothing else is held. */
async function expectIdle(): Promise<void> {
  await expect.poll(() => app.jobs.active, { timeout: 30_000 }).toBe(0);
  const { running, waiting, used, cachedBytes, sharedLeaves } = await service.stats();
  expect({ running, waiting, sharedLeaves, held: used - cachedBytes }).toEqual({
    running: 0,
    waiting: 0,
    sharedLeaves: 0,
    held: 0,
  });
}

/** A client that leaves: in mid-request, while it waits, or after some events. */
async function leave({ below }: Random): Promise<void> {
  const [path, prompt] = [
    [CHAT, { messages: user('x'.repeat(below(300))) }],
    ['/v1/completions', { prompt: 'x'.repeat(1 + below(300)) }],
    ['/v1/messages', { messages: user('mead '.repeat(below(60))) }],
  ][below(3)] as [string, object];
  const body = { ...prompt, ...greedy(500), n: 1 + below(2), stream: below(2) === 0 };
  if (below(4) === 0) {
    const text = JSON.stringify(body);
    const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
    const closed = new Promise(resolve => socket.once('close', resolve));
    socket.on('error', () => {});
    const sent = below(text.length + 1);
    socket.write(
      `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${text.length}\r\n\r\n${text.slice(0, sent)}`,
    );
    await wait(below(10));
    socket.destroy();
    await closed;
    return;
  }
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), below(20));
  try {
    const response = await post(server.url, path, body, stop.signal);
    const reader = response.body!.getReader();
    for (let events = below(5); events > 0; events--) await reader.read();
    await reader.cancel();
  } catch (error) {
    if (!stop.signal.aborted) throw error;
  } finally {
    clearTimeout(timer);
  }
}

itAll(
  `${DISCONNECTS} random disconnects free everything, and change nothing for others`,
  { timeout: DISCONNECTS * 200 },
  async () => {
    const expected = await ask();
    const random = seeded(1);
    let left = 0;
    const leaving = Array.from({ length: 8 }, async () => {
      while (left++ < DISCONNECTS) await leave(random);
    });
    const others = (async () => {
      while (left < DISCONNECTS) expect(await ask()).toBe(expected);
    })();
    await Promise.all([...leaving, others]);
    await expectIdle();
    expect(await ask()).toBe(expected);
  },
);

const json = (schema: object) => ({ response_format: { type: 'json_schema', json_schema: { schema } } });
const tool = (parameters: object) => ({ tools: [{ type: 'function', function: { name: 'f', parameters } }] });
const strict = (parameters: object) => ({
  tools: [{ type: 'function', function: { name: 'f', parameters, strict: true } }],
});
const loop = { $ref: '#/$defs/a', $defs: { a: { $ref: '#/$defs/a' } } };
const tree = { $ref: '#/$defs/n', $defs: { n: { type: 'object', properties: { n: { $ref: '#/$defs/n' } } } } };
const endless = { ...tree, $defs: { n: { ...tree.$defs.n, required: ['n'] } } };

it('absurd requests are answered or refused, and the server goes on', async () => {
  const expected = await ask();
  const status = async (fields: object) => {
    const response = await post(server.url, CHAT, { messages: user('Hi'), max_tokens: 4, ...fields });
    await response.text();
    return response.status;
  };
  const refused = [
    { n: 1e9 },
    { n: -1 },
    { n: 0.5 },
    { max_tokens: -2 },
    { max_tokens: 1e300 },
    { stop: Array(17).fill('x') },
    { stop: 'x'.repeat(1001) },
    { logit_bias: { 999999999: 1 } },
    { logit_bias: { x: 1 } },
    { temperature: 1e9 },
    { top_logprobs: 1e9, logprobs: true },
    { messages: Array(10_001).fill({ role: 'user', content: '' }) },
    { messages: user('x'.repeat(2_000_000)) },
    { tools: Array(129).fill(tool({}).tools[0]) },
    json(loop),
    json(endless),
    strict(loop),
    strict(endless),
    json({ enum: Array.from({ length: 20_001 }, (_, i) => i) }),
    json({ const: 'x'.repeat(300_000) }),
    json({ allOf: Array(3000).fill(tree), ...tree }),
    json({ type: 'string', minLength: 1e9 }),
  ];
  for (const fields of refused) expect(await status(fields), JSON.stringify(fields).slice(0, 100)).toBe(400);
  const answered = [
    { max_tokens: Number.MAX_SAFE_INTEGER, stop: Array(16).fill('x'.repeat(1000)), ignore_eos: true },
    { logit_bias: Object.fromEntries(Array.from({ length: 257 }, (_, id) => [id, 1])) },
    json(tree),
    ...hostile.map(json),
    { stop: [''] },
    ...[loop, endless, ...hostile].map(tool),
  ];
  for (const fields of answered)
    expect([200, 400], JSON.stringify(fields).slice(0, 100)).toContain(await status(fields));
  expect(await ask()).toBe(expected);
  await expectIdle();
});

it('keeps no request that was answered', async () => {
  setFlagsFromString('--expose-gc');
  const collect: () => void = runInNewContext('gc');
  const answered: WeakRef<Request>[] = [];
  const watched = {
    jobs: app.jobs,
    fetch(request: Request) {
      answered.push(new WeakRef(request));
      return app.fetch(request);
    },
  };
  const other = await listen(watched, { host: '127.0.0.1', port: 0, requestMs: 60_000 });
  await Promise.all(Array.from({ length: 10 }, () => ask(other.url)));
  await other.stop();
  await expect
    .poll(() => {
      collect();
      return answered.filter(request => request.deref()).length;
    })
    .toBe(0);
});

/** Asks so many times at once, and expects an answer each time. */
async function queue(url: string, count: number): Promise<void> {
  const expected = await ask(url);
  const answers = await Promise.all(Array.from({ length: count }, () => ask(url)));
  expect(answers.filter(answer => answer !== expected)).toEqual([]);
}

itAll(`${QUEUED} queued requests: none is lost, and nothing is kept`, { timeout: 300_000 }, async () => {
  let waiting = 0;
  const watch = setInterval(async () => {
    waiting = Math.max(waiting, (await service.stats()).waiting);
  }, 20);
  await queue(server.url, QUEUED);
  clearInterval(watch);
  expect(waiting).toBeGreaterThan(QUEUED / 2);
  await expectIdle();
});

/** Bytes of a process and its children, as Linux counts them. */
function residentBytes(pid: number): number {
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean);
  const [, pages] = readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ').map(Number);
  return pages * 4096 + children.reduce((sum, child) => sum + residentBytes(Number(child)), 0);
}

it.skipIf(!LONG || !existsSync('/proc/self/statm'))(
  `${QUEUED} queued requests, again and again: memory is flat`,
  { timeout: 1_200_000 },
  async () => {
    const model = await writeTempModel(tinyModel({ tied: false, layers: 1, context: 2048 }));
    const { url, pid, kill } = await startServer(model, '--max-sequences', '4');
    const bytes: number[] = [];
    try {
      for (let round = 0; round < 8; round++) {
        await queue(url, QUEUED);
        bytes.push(residentBytes(pid));
      }
    } finally {
      await kill();
    }
    console.log(`MB after each round: ${bytes.map(count => Math.round(count / 1e6)).join(' ')}`);
    // The first rounds fill caches and heaps.
    expect(Math.max(...bytes.slice(4)) / Math.max(...bytes.slice(0, 4))).toBeLessThan(1.15);
  },
);
