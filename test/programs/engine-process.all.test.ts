/**
 * The engine in a child process, from dist/: it answers, is restarted after a crash or a hang, drains, and ends with its
 * parent.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { DeviceError, InputError, loadModel } from '../../src/index.ts';
import { type EngineEvent, type EngineProcess, startEngineProcess } from '../../src/worker/engine-process.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { itAll } from '../support/matrix.ts';
import { tinyModel } from '../support/tiny-model.ts';

const directory = mkdtempSync(join(tmpdir(), 'kvasir-engine-'));
const model = join(directory, 'tiny.gguf');
const loadOptions = { device: 'wasm', threads: 1, context: 200_000 } as const;
const options = { maxTokens: 30, ignoreEos: true, temperature: 0 };
/** Runs until it is cancelled, or the process ends. */
const long = { ...options, maxTokens: 100_000 };

beforeAll(() => writeFileSync(model, writeGguf(tinyModel({ context: 200_000, layers: 1 }))));
afterAll(() => rmSync(directory, { recursive: true }));

const engines: EngineProcess[] = [];
function start(name = model, maxPassMs?: number) {
  const events: EngineEvent[] = [];
  const engine = startEngineProcess({ model: name, loadOptions, maxPassMs, onEvent: event => events.push(event) });
  engines.push(engine);
  const states = () => events.flatMap(event => (event.type === 'state' ? [event.state] : []));
  return { engine, events, states };
}
afterEach(async () => {
  await Promise.all(engines.splice(0).map(engine => engine.close(0)));
});

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise(resolve => setTimeout(resolve, 10));
}

it('answers like the model itself', async () => {
  const { engine, events } = start();
  expect(engine.state).toBe('loading');
  expect(engine.service).toBeUndefined();
  const service = await engine.ready();
  expect(engine).toMatchObject({ state: 'ready', restarts: 0 });
  expect(engine.service).toBe(service);
  expect(events.find(({ type }) => type === 'progress')).toBeDefined();
  await using local = await loadModel(model, loadOptions);
  const { ids, text } = await local.generate('Kvasir', options).result();
  expect(await service.generate('Kvasir', options).result()).toMatchObject({ ids, text });
});

it('after kill -9 under load, requests fail with a typed error, and it answers again when it was restarted', async () => {
  const { engine, states } = start();
  const service = await engine.ready();
  const streams = Array.from({ length: 8 }, (_, i) => service.generate(`Kvasir ${i}`, long));
  await Promise.all(streams.map(stream => stream.next()));
  const reading = Promise.allSettled(streams.map(stream => stream.result()));
  process.kill(engine.pid!, 'SIGKILL');
  for (const outcome of await reading) {
    expect(outcome).toMatchObject({ status: 'rejected', reason: expect.any(DeviceError) });
    expect((outcome as PromiseRejectedResult).reason.message).toBe(
      'The engine process ended (signal SIGKILL). Send the request again when it has been restarted.',
    );
  }
  await expect(service.stats()).rejects.toThrow(DeviceError);
  await until(() => engine.state === 'restarting');
  expect(engine.service).toBeUndefined();
  const next = await engine.ready();
  expect((await next.generate('Kvasir', options).result()).ids).toHaveLength(30);
  expect(states()).toEqual(['ready', 'restarting', 'ready']);
  expect(engine.restarts).toBe(1);
});

it('when it hangs, requests fail with a typed error, and it answers again when it was restarted', async () => {
  const { engine, events, states } = start(model, 1000);
  const service = await engine.ready();
  const stream = service.generate('Kvasir', long);
  await stream.next();
  const reading = expect(stream.result()).rejects.toThrow(
    'The engine has not answered for 1 s: the device hangs. Send the request again when it has been restarted.',
  );
  process.kill(engine.pid!, 'SIGSTOP');
  await reading;
  expect(engine.service).toBeUndefined();
  const next = await engine.ready();
  expect((await next.generate('Kvasir', options).result()).ids).toHaveLength(30);
  expect(states()).toEqual(['ready', 'restarting', 'ready']);
  expect(events).toContainEqual(
    expect.objectContaining({ state: 'restarting', error: expect.objectContaining({ name: 'DeviceError' }) }),
  );
});

it('a long prompt is many passes: it does not hang', async () => {
  const { engine, states } = start(model, 1000);
  const service = await engine.ready();
  // Far more tokens than can be read in that time.
  const ids = Array.from({ length: 190_000 }, (_, i) => i % 250);
  const { finish } = await service.generate(ids, { ...options, signal: AbortSignal.timeout(2500) }).result();
  expect(finish).toBe('cancelled');
  expect(states()).toEqual(['ready']);
});

it('drains: what runs ends, nothing new begins', async () => {
  const { engine } = start();
  const service = await engine.ready();
  const stream = service.generate('Kvasir', options);
  await stream.next();
  const drained = engine.drain();
  await expect(service.generate('Odin', options).result()).rejects.toThrow('takes no new requests');
  expect((await stream.result()).finish).toBe('length');
  await drained;
  await engine.close();
  expect(engine.state).toBe('closed');
  await expect(engine.ready()).rejects.toThrow('The engine was closed.');
});

it('close ends what takes longer than its limit', async () => {
  const { engine } = start();
  const { pid } = engine;
  const service = await engine.ready();
  const reading = service.generate('Kvasir', long).result();
  const failed = expect(reading).rejects.toThrow(DeviceError);
  await engine.close(50);
  await failed;
  expect(isAlive(pid!)).toBe(false);
  expect(engine).toMatchObject({ state: 'closed', pid: undefined, restarts: 0 });
});

it('a model that does not exist is a typed error, and is not tried again', async () => {
  const { engine, states } = start(join(directory, 'none.gguf'));
  const error: Error = await engine.ready().then(
    () => expect.unreachable(),
    reason => reason,
  );
  expect(error).toBeInstanceOf(InputError);
  expect(error.message).toContain('none.gguf');
  expect(states()).toEqual(['failed']);
  expect(engine).toMatchObject({ state: 'failed', restarts: 0, pid: undefined });
});

itAll('gives up when it cannot be started again', { timeout: 120_000 }, async () => {
  const path = join(directory, 'lost.gguf');
  writeFileSync(path, writeGguf(tinyModel({ layers: 1 })));
  const { engine, states } = start(path);
  await engine.ready();
  rmSync(path);
  process.kill(engine.pid!, 'SIGKILL');
  await until(() => engine.state === 'restarting');
  await expect(engine.ready()).rejects.toThrow(/^The engine could not be started: 5 starts in a row have failed\. The/);
  expect(states()).toEqual(['ready', ...Array(5).fill('restarting'), 'failed']);
});

/** Runs a program that uses the engine, and prints lines. */
function runParent(program: string) {
  const path = join(directory, `${crypto.randomUUID()}.mjs`);
  const built = new URL('../../dist/worker/engine-process.js', import.meta.url).href;
  const start = `startEngineProcess(${JSON.stringify({ model, loadOptions })})`;
  writeFileSync(path, `import { startEngineProcess } from '${built}';\nconst engine = ${start};\n${program}`);
  const parent = spawn(process.execPath, [path], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exit = new Promise<number | null>(resolve => parent.once('exit', resolve));
  const firstLine = new Promise<string>(resolve => parent.stdout.once('data', data => resolve(String(data))));
  return { parent, exit, firstLine };
}

it('ends with its parent', async () => {
  const { parent, exit, firstLine } = runParent(
    `const service = await engine.ready();
     const stream = service.generate('Kvasir', ${JSON.stringify(long)});
     await stream.next();
     console.log(engine.pid);
     await stream.result();`,
  );
  const pid = Number(await firstLine);
  expect(isAlive(pid)).toBe(true);
  parent.kill('SIGKILL');
  await exit;
  await until(() => !isAlive(pid));
});

it('keeps its parent alive for its requests only', async () => {
  const { exit, firstLine } = runParent(
    `const service = await engine.ready();
     const { ids } = await service.generate('Kvasir', ${JSON.stringify(options)}).result();
     console.log(engine.pid, ids.length);`,
  );
  const [pid, tokens] = (await firstLine).split(' ').map(Number);
  expect(tokens).toBe(30);
  expect(await exit).toBe(0);
  await until(() => !isAlive(pid));
});

it('passes on what the engine prints, line by line', async () => {
  const printing = join(directory, 'print.mjs');
  writeFileSync(printing, 'console.log("one\\ntwo"); console.error("three");');
  const { NODE_OPTIONS = '' } = process.env;
  process.env.NODE_OPTIONS = `${NODE_OPTIONS} --import=${pathToFileURL(printing)}`;
  const { engine, events } = start();
  process.env.NODE_OPTIONS = NODE_OPTIONS;
  await engine.ready();
  const lines = () => events.flatMap(event => (event.type === 'output' ? [`${event.stream} ${event.line}`] : []));
  await until(() => lines().length === 3);
  expect(lines().sort()).toEqual(['stderr three', 'stdout one', 'stdout two']);
});
