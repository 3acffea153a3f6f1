import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { splitGguf, writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { CapacityError, FormatError, InputError, NetworkError } from '../util/errors.ts';
import { type ModelInput, openModel } from './input.ts';
import type { LoadProgress } from './weights.ts';

const spec = tinyModel({ layers: 1 });
const file = writeGguf(spec);
const parts = splitGguf(tinyModel({ layers: 3 }), 2);
const tensors = async (input: unknown) => {
  const { gguf } = await openModel(input as ModelInput);
  await gguf.close();
  return gguf.tensors.size;
};

let folder: string;
let path: string;
let server: Server;
let address: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir input '));
  path = join(folder, 'a model.gguf');
  await writeFile(path, file);
  const answers: Record<string, Uint8Array | string> = {
    '/model.gguf': file,
    '/page.gguf': `<html>${'x'.repeat(1e6)}`,
  };
  server = createServer(({ url = '' }, response) => {
    const body = answers[url.split('?')[0]];
    if (url === '/short.gguf') {
      response.writeHead(200, { 'content-length': file.length });
      response.write(file.subarray(0, 100), () => response.destroy());
    } else if (url === '/stream.gguf') {
      response.write(file.subarray(0, 100));
      response.end(file.subarray(100));
    } else if (body === undefined) response.writeHead(404).end('no such file');
    else response.writeHead(200, { 'content-length': body.length }).end(body);
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(async () => {
  server.close();
  await rm(folder, { recursive: true });
});

describe('a model can be opened from', () => {
  const kinds: [string, () => unknown][] = [
    ['a path', () => path],
    ['a file URL', () => pathToFileURL(path)],
    ['a file URL string', () => pathToFileURL(path).href],
    ['an http URL', () => new URL('/model.gguf', address)],
    ['an http URL string', () => `${address}/model.gguf?download=true`],
    ['an http URL without content-length', () => `${address}/stream.gguf`],
    ['a Response', () => fetch(`${address}/model.gguf`)],
    ['a constructed Response', () => new Response(file)],
    ['a Blob', () => new Blob([file])],
    ['a File', () => new File([file], 'model.gguf')],
    ['a Uint8Array', () => file],
    ['a Uint8Array inside a larger buffer', () => new Uint8Array(Buffer.concat([Buffer.alloc(3), file])).subarray(3)],
    ['a Buffer', () => Buffer.from(file)],
    ['an ArrayBuffer', () => file.slice().buffer],
    ['an array with one file', () => [file]],
  ];
  it.each(kinds)('%s', async (_, make) => expect(await tensors(await make())).toBe(spec.tensors.length));

  it('several files of different types', async () => {
    const { length } = tinyModel({ layers: 3 }).tensors;
    expect(await tensors([new Blob([parts[1]]), Buffer.from(parts[0])])).toBe(length);
    await expect(tensors([parts[0]])).rejects.toThrow(/one of 2 files/);
    await expect(tensors([])).rejects.toThrow(InputError);
    await expect(tensors([parts[0], pathToFileURL(path)])).rejects.toThrow(/file: URL/);
  });

  it('bytes in memory, without a copy', async () => {
    const bytes = file.slice();
    const { gguf } = await openModel(bytes);
    bytes[bytes.length - 1] ^= 255;
    expect((await gguf.shards[0].read(bytes.length - 1, 1))[0]).toBe(bytes[bytes.length - 1]);
  });

  it('a path or file URL, and only then has paths', async () => {
    for (const input of [path, pathToFileURL(path)]) {
      const { gguf, paths } = await openModel(input);
      await gguf.close();
      expect(paths).toEqual([path]);
    }
    expect((await openModel(`${address}/model.gguf`)).paths).toEqual([]);
  });
});

describe('over the network', () => {
  it('reports progress up to the whole size', async () => {
    const reported: LoadProgress[] = [];
    await openModel(`${address}/model.gguf`, { onProgress: progress => reported.push(progress) });
    expect(reported.at(-1)).toEqual({ phase: 'fetch', done: file.length, total: file.length });
  });

  it('fails with a NetworkError that shows the URL without its query', async () => {
    const refused = tensors(`${address}/nothing.gguf?token=secret`);
    await expect(refused).rejects.toThrow(NetworkError);
    await expect(refused).rejects.toThrow(
      `${address}/nothing.gguf cannot be fetched: the server answered 404 Not Found`,
    );
    await expect(tensors(`${address}/short.gguf`)).rejects.toThrow(NetworkError);
    await expect(tensors('http://127.0.0.1:1/model.gguf')).rejects.toThrow(NetworkError);
    await expect(tensors(new Response('', { status: 500 }))).rejects.toThrow(/answered 500/);
  });

  it('stops early if the file is too large or not a model', async () => {
    const limited = openModel(`${address}/model.gguf`, { memoryLimit: 1000 });
    await expect(limited).rejects.toThrow(CapacityError);
    await expect(openModel(new Response(file), { memoryLimit: 1000 })).rejects.toThrow(/more than .*memoryLimit/);
    const reported: LoadProgress[] = [];
    const page = openModel(`${address}/page.gguf`, { onProgress: progress => reported.push(progress) });
    await expect(page).rejects.toThrow(FormatError);
    await expect(page).rejects.toThrow(/page\.gguf is not a GGUF file: it is a web page/);
    expect(reported).toEqual([]);
  });

  it('can be aborted', async () => {
    const signal = AbortSignal.abort();
    await expect(openModel(`${address}/model.gguf`, { signal })).rejects.toThrow(/abort/i);
  });

  it('can be aborted while the body of a Response stalls', async () => {
    const cancelled = vi.fn();
    const start = file.subarray(0, 100);
    const body = new ReadableStream({
      start: controller => controller.enqueue(start),
      pull: () => new Promise(() => {}),
      cancel: cancelled,
    });
    const response = new Response(body, { headers: { 'content-length': String(file.length) } });
    const stop = new AbortController();
    const reason = new Error('stop here');
    const opening = openModel(response, { signal: stop.signal });
    setTimeout(() => stop.abort(reason), 20);
    await expect(opening).rejects.toBe(reason);
    expect(cancelled).toHaveBeenCalledExactlyOnceWith(reason);
  });

  it('rejects a Response that has been read, and other protocols', async () => {
    const response = new Response(file);
    await response.arrayBuffer();
    await expect(tensors(response)).rejects.toThrow(/already been read/);
    await expect(tensors(new URL('ftp://example.org/model.gguf'))).rejects.toThrow(/ftp:/);
    await expect(tensors('http://')).rejects.toThrow(/not a valid URL/);
  });
});

describe('an input of the wrong type', () => {
  // In a separate process: a regression to an endless loop could not be stopped by a timer.
  const rejected: [code: string, description: string][] = [
    ['{}', 'an empty object'],
    ['{ path: "model.gguf" }', 'an object with the keys path'],
    ['5', 'the number 5'],
    ['null', 'null'],
    ['undefined', 'undefined'],
    ['true', 'the boolean true'],
    ['() => 1', 'a function'],
    ['Promise.resolve(new Blob([]))', 'a Promise (await it first)'],
    ['new Int16Array(4)', 'an Int16Array'],
    ['["model.gguf"]', 'the string "model.gguf"'],
    ['[[new Uint8Array(4)]]', 'an array of 1'],
    ['new Map()', 'a Map'],
  ];
  it('is rejected immediately', async () => {
    const bundle = join(folder, 'input.mjs');
    const entryPoints = [fileURLToPath(new URL('./input.ts', import.meta.url))];
    await build({ entryPoints, bundle: true, platform: 'node', format: 'esm', outfile: bundle, logLevel: 'error' });
    const code = `
      const { openModel } = await import(${JSON.stringify(pathToFileURL(bundle).href)});
      const inputs = [${rejected.map(([input]) => input).join(', ')}, { [Symbol.toStringTag]: 'Blob' }];
      for (const input of inputs) await openModel(input).catch(({ name, message }) => console.log(name + ': ' + message));`;
    const run = promisify(execFile)(process.execPath, ['--input-type=module', '-e', code], { timeout: 30_000 });
    const lines = (await run).stdout.trim().split('\n');
    expect(lines.map(line => line.replace(/^InputError: A model is a path, .*; got (.*)\.$/, '$1'))).toEqual([
      ...rejected.map(([, description]) => description),
      'InputError: blob has no valid size: undefined.',
    ]);
  });
});
