/** `loadModel` with a URL: of a model that does not run, only the header is downloaded. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { CapacityError, type LoadOptions, type LoadProgress, loadModel, UnsupportedError } from '../src/index.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { tinyModel } from './support/tiny-model.ts';

const runs = writeGguf(tinyModel());
const files: Record<string, { start: Uint8Array; size: number }> = {
  '/runs.gguf': { start: runs, size: runs.length },
  // Longer than everything that sockets buffer.
  '/large.gguf': { start: runs, size: 2e8 },
  '/mamba.gguf': { start: writeGguf(tinyModel({ metadata: { 'general.architecture': 'mamba' } })), size: 2e8 },
  '/page.gguf': { start: Buffer.from('<html><p>a page</p>'.padEnd(2000)), size: 2e8 },
};
const MAX_SENT = 3e7;
let server: Server;
let address: string;
let sent: number;
let requests: number;

beforeAll(async () => {
  server = createServer(async ({ url = '' }, response) => {
    requests++;
    const { start, size } = files[url];
    response.writeHead(200, { 'content-length': size });
    const isClosed = new Promise(resolve => response.on('close', resolve));
    for (let at = 0; at < size && !response.closed; at += 65_536) {
      const bytes = new Uint8Array(Math.min(65_536, size - at));
      bytes.set(start.subarray(at, at + bytes.length));
      sent += bytes.length;
      if (!response.write(bytes))
        await Promise.race([isClosed, new Promise(resolve => response.once('drain', resolve))]);
    }
    response.end();
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(() => void server.close());
beforeEach(() => {
  [sent, requests] = [0, 0];
});

it('loads a model in one request: fetch, then load', async () => {
  const phases: string[] = [];
  const onProgress = ({ phase }: LoadProgress) => phases.push(phase);
  await using model = await loadModel(`${address}/runs.gguf`, { device: 'js', kv: 'f16', onProgress });
  expect(model.config.architecture).toBe('llama');
  expect([requests, sent]).toEqual([1, runs.length]);
  expect(phases.filter((phase, i) => phase !== phases[i - 1])).toEqual(['fetch', 'load']);
});

it.each<[string, string, LoadOptions, typeof UnsupportedError | RegExp]>([
  ['an architecture that is not supported', '/mamba.gguf', {}, UnsupportedError],
  ['a page', '/page.gguf', {}, /it is a web page/],
  ['a codec that does not support the model', '/large.gguf', { kv: 'mead2' }, UnsupportedError],
  ['too little memory', '/large.gguf', { kv: 'f16', memoryLimit: 2.1e8, context: 1e6 }, CapacityError],
])('stops the download of %s', async (_, path, options, error) => {
  for (const input of [`${address}${path}`, await fetch(`${address}${path}`)])
    await expect(loadModel(input, { device: 'js', ...options })).rejects.toThrow(error);
  // The sockets of two requests were closed before they had sent all.
  expect(requests).toBe(2);
  expect(sent).toBeLessThan(MAX_SENT);
});
