/** The built command `kvasir serve`: its start, a crash of its engine, its end. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { kvasir } from '../../support/command.ts';
import { writeTempModel } from '../../support/gguf-writer.ts';
import { ALL_CASES, matrix } from '../../support/matrix.ts';
import { tinyModel } from '../../support/tiny-model.ts';
import { greedy, type Json, user } from './tiny-server.ts';

const main = fileURLToPath(new URL('../../../dist/cli/main.js', import.meta.url));
const model = await writeTempModel(tinyModel({ tied: false, layers: 1, context: 2048 }));
const started: ChildProcess[] = [];
afterEach(() => {
  for (const child of started.splice(0)) child.kill('SIGKILL');
});

/** Starts a server on a free port, and waits until it says where it listens. */
async function serve(args: string[] = [], env: Record<string, string> = {}) {
  const child = spawn(process.execPath, [main, 'serve', model, '--device', 'wasm', '--threads', '1', ...args], {
    env: { ...process.env, KVASIR_PORT: '0', ...env },
  });
  started.push(child);
  let printed = '';
  const url = await new Promise<string>((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (data: string) => {
        printed += data;
        const found = printed.match(/Listening on (\S+)/)?.[1];
        if (found) resolve(found);
      });
    child.once('exit', () => reject(new Error(printed)));
  });
  const headers = { 'content-type': 'application/json' };
  const post = (path: string, body: object) =>
    fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  return { child, url, post, printed: () => printed };
}

const CHAT = '/v1/chat/completions';
const question = { messages: user('Who was Kvasir?'), ...greedy(12) };

describe('kvasir serve', () => {
  it('takes options from the environment, says what one gets, and drains on SIGTERM', async () => {
    const { child, url, post, printed } = await serve([], { KVASIR_SERVED_NAME: 'a,b', KVASIR_CONTEXT: '1k' });
    expect(printed()).toMatch(/as a, b, .*\.gguf/);
    expect(printed()).toMatch(/cache: balanced: tq4, \d\.\d+ bits per value/);
    expect(printed()).toMatch(/sequences of 1,024 tokens/);
    // Of the engine's process, in the log: there is no terminal.
    expect(printed()).toMatch(/"msg":"loading \d+%/);
    expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
    const running = await post(CHAT, { ...question, max_tokens: 600, stream: true });
    child.kill('SIGTERM');
    const ended = once(child, 'exit');
    expect(await running.text()).toContain('[DONE]');
    expect(await ended).toEqual([0, null]);
  });

  it('logs nothing that users typed, unless it is asked to', async () => {
    const quiet = await serve(['--log-requests', '--log-level', 'trace'], { KVASIR_LOG_PROMPTS: '0', KVASIR_CORS: '' });
    await (await quiet.post(CHAT, { messages: user('a secret'), ...greedy(2) })).text();
    await (await quiet.post(CHAT, { messages: user('a secret'), n: 'secret' })).text();
    expect(quiet.printed()).toMatch(/"status":200.*"promptTokens":\d+,"cachedTokens":0,"tokens":2/);
    expect(quiet.printed()).not.toContain('secret');
  });

  const children = (pid: number) => `/proc/${pid}/task/${pid}/children`;
  const engineOf = ({ pid }: ChildProcess) => Number(readFileSync(children(pid!), 'utf8').trim().split(' ')[0]);
  it.skipIf(!existsSync(children(process.pid)))('survives kill -9 of its engine', async () => {
    const { child, url, post, printed } = await serve();
    const before = (await (await post(CHAT, question)).json()) as Json;
    const running = await post(CHAT, { ...question, max_tokens: 1900, stream: true });
    process.kill(engineOf(child), 'SIGKILL');
    expect(await running.text()).toContain('event: error');
    expect((await fetch(`${url}/live`)).status).toBe(200);
    expect((await fetch(`${url}/health`)).status).toBe(503);
    expect((await post(CHAT, question)).status).toBe(503);
    while ((await fetch(`${url}/ready`)).status !== 200) await new Promise(resolve => setTimeout(resolve, 100));
    const after = (await (await post(CHAT, question)).json()) as Json;
    expect(after.choices).toEqual(before.choices);
    expect(await (await fetch(`${url}/metrics`)).text()).toMatch(/kvasir_engine_restarts_total\{.*\} 1/);
    expect(printed()).toMatch(/engine restarting[\s\S]*engine ready again/);
  });

  // test/programs/engine-process.all.test.ts has an engine that hangs, and a server whose engine restarts is above.
  it.skipIf(!ALL_CASES || !existsSync(children(process.pid)))(
    'restarts an engine that hangs, and says so',
    async () => {
      const { child, url, post } = await serve(['--engine-timeout', '1']);
      const running = await post(CHAT, { ...question, max_tokens: 1900, stream: true });
      process.kill(engineOf(child), 'SIGSTOP');
      expect(await running.text()).toContain('the device hangs');
      const refused = await post(CHAT, question);
      expect(refused.status).toBe(503);
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
      expect(await (await fetch(`${url}/ready`)).json()).toMatchObject({
        status: 'restarting',
        reason: expect.stringContaining('has not answered for 1 s'),
      });
      while ((await fetch(`${url}/ready`)).status !== 200) await new Promise(resolve => setTimeout(resolve, 100));
      expect((await post(CHAT, question)).status).toBe(200);
    },
  );

  const MISTAKES: [string, string[], string][] = [
    ['no model', ['/nowhere/model.gguf', '--port', '0'], '/nowhere/model.gguf'],
    ['a port', [model, '--port', '99999'], 'not a port'],
    ['a time', [model, '--engine-timeout', '0'], 'more than 0'],
    ['a time that no timer can hold', [model, '--request-timeout', '9999999'], 'at most 2000000'],
    ['a folder', [model, '--slot-save-path', model, '--port', '0'], '(EEXIST). Check --slot-save-path'],
    ['too little memory', [model, '--port', '0', '--kv-memory', '1KB'], 'Raise --kv-memory'],
    ['an empty key', [model, '--api-key', '', '--port', '0'], '--api-key is empty'],
    ['a short key', [model, '--api-key', 'short', '--port', '0'], 'at least 8 characters'],
  ];
  const REPRESENTATIVES = { 'too little memory': 'an error of the engine', 'a short key': 'an error of the server' };
  it.each(matrix(MISTAKES, REPRESENTATIVES, ([name]) => name))('names what is wrong: %s', async (_, args, message) => {
    expect(await kvasir(['serve', ...args])).toMatchObject({ status: 1, stderr: expect.stringContaining(message) });
  });

  it('names a port that is in use', async () => {
    const busy = createServer().listen(0, '127.0.0.1');
    await once(busy, 'listening');
    const { port } = busy.address() as AddressInfo;
    expect((await kvasir(['serve', model, '--port', String(port)])).stderr).toContain(`Port ${port} is in use`);
    busy.close();
  });
});
