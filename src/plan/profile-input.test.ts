import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { smallContent } from '../../test/support/profile.ts';
import { FormatError, InputError, NetworkError } from '../util/errors.ts';
import { decodeProfile, encodeProfile } from './profile.ts';
import { openProfile, type ProfileInput } from './profile-input.ts';

const file = await encodeProfile(smallContent);
const { hash } = await decodeProfile(file);

let folder: string;
let path: string;
let server: Server;
let address: string;
let hanging: ServerResponse | undefined;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir profile '));
  path = join(folder, 'a model.kvprofile');
  await writeFile(path, file);
  server = createServer(({ url = '' }, response) => {
    if (url.startsWith('/model.kvprofile')) response.writeHead(200, { 'content-length': file.length }).end(file);
    else if (url === '/stream') response.end(file);
    else if (url === '/page') response.end(`<html>${'x'.repeat(1000)}`);
    else if (url === '/huge') response.writeHead(200, { 'content-length': 2 ** 40 }).write(file);
    else if (url === '/hang') {
      hanging = response;
      response.write(file.subarray(0, 100));
    } else response.writeHead(404).end();
  });
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(async () => {
  server.closeAllConnections();
  server.close();
  await rm(folder, { recursive: true });
});

describe('a profile can be opened from', () => {
  const kinds: [string, () => unknown][] = [
    ['a path', () => path],
    ['a file URL', () => pathToFileURL(path)],
    ['a file URL string', () => pathToFileURL(path).href],
    ['an http URL', () => new URL('/model.kvprofile', address)],
    ['an http URL string', () => `${address}/model.kvprofile?download=true`],
    ['an http URL without content-length', () => `${address}/stream`],
    ['a Response', () => fetch(`${address}/model.kvprofile`)],
    ['a Blob', () => new Blob([file])],
    ['a File', () => new File([file], 'model.kvprofile')],
    ['a Uint8Array', () => file],
    ['a Uint8Array inside a larger buffer', () => new Uint8Array(Buffer.concat([Buffer.alloc(3), file])).subarray(3)],
    ['a Buffer', () => Buffer.from(file)],
    ['an ArrayBuffer', () => file.slice().buffer],
    ['a decoded profile', () => decodeProfile(file)],
  ];
  it.each(kinds)('%s', async (_, make) => {
    expect((await openProfile((await make()) as ProfileInput)).hash).toBe(hash);
  });
});

describe('rejected', () => {
  it.each<[unknown, string]>([
    [{}, 'an empty object'],
    [{ learned: [] }, 'an object with the keys learned'],
    [5, 'the number 5'],
    [null, 'null'],
    [[file], 'an array of 1'],
    [Promise.resolve(file), 'a Promise (await it first)'],
    [new Int16Array(4), 'an Int16Array'],
  ])('%j', async (input, description) => {
    await expect(openProfile(input as ProfileInput)).rejects.toThrow(InputError);
    await expect(openProfile(input as ProfileInput)).rejects.toThrow(`A profile is a path, a name on the hub, a URL,`);
    await expect(openProfile(input as ProfileInput)).rejects.toThrow(`; got ${description}.`);
  });

  it('other URLs, missing files, failing servers', async () => {
    await expect(openProfile('http://')).rejects.toThrow(InputError);
    await expect(openProfile(new URL('ftp://example.org/a.kvprofile'))).rejects.toThrow(/ftp: URL cannot be fetched/);
    await expect(openProfile(join(folder, 'none.kvprofile'))).rejects.toThrow(InputError);
    await expect(openProfile(`${address}/none?token=secret`)).rejects.toThrow(NetworkError);
    await expect(openProfile(`${address}/none?token=secret`)).rejects.toThrow(`${address}/none cannot be fetched`);
    await expect(openProfile('http://127.0.0.1:1/a.kvprofile')).rejects.toThrow(NetworkError);
  });

  it('a web page and damaged bytes, with their name', async () => {
    await expect(openProfile(`${address}/page`)).rejects.toThrow(`${address}/page is not a Kvasir profile`);
    await expect(openProfile(new File([file.subarray(0, 99)], 'x.kvprofile'))).rejects.toThrow(FormatError);
    await expect(openProfile(new File([file.subarray(0, 99)], 'x.kvprofile'))).rejects.toThrow(
      'x.kvprofile cannot be used',
    );
  });

  it('a download that is too large, before and while it arrives', async () => {
    await expect(openProfile(`${address}/huge`)).rejects.toThrow(FormatError);
    await expect(openProfile(`${address}/huge`)).rejects.toThrow(/has 1100 GB|a profile has at most/);
    const chunk = new Uint8Array(2 ** 26);
    chunk.set(file.subarray(0, 64));
    let sent = 0;
    const endless = new ReadableStream({
      pull(controller) {
        sent++;
        controller.enqueue(chunk);
      },
    });
    await expect(openProfile(new Response(endless))).rejects.toThrow(/has more than .*; a profile has at most/);
    expect(sent).toBeLessThan(20);
  });

  it('an aborted download', async () => {
    await expect(openProfile(`${address}/stream`, { signal: AbortSignal.abort() })).rejects.toThrow(/abort/i);
    const stop = new AbortController();
    const opening = openProfile(`${address}/hang`, { signal: stop.signal });
    await expect.poll(() => hanging).toBeDefined();
    stop.abort(new Error('enough'));
    await expect(opening).rejects.toThrow('enough');
  });
});
