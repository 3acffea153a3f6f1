import { appendFileSync, existsSync, lstatSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  CUT_MS,
  commit,
  type FakeFile,
  type FakeHub,
  fakeHub,
  gitSha1,
  pseudoRandomBytes,
  repo,
  respondWith,
  sha256,
} from '../../test/support/fake-hub.ts';
import { type PullOptions, pull } from '../hub.ts';
import { fingerprintFile } from '../model/fingerprint.ts';
import { CapacityError, FormatError, InputError, NetworkError } from '../util/errors.ts';

import { resolveModel } from './resolve.ts';

const MB = 2 ** 20;
const model = 'tiny-Q4_K_M.gguf';
const bytes = pseudoRandomBytes(MB);

let hub: FakeHub;
const start = async (files: Record<string, FakeFile> = { [model]: { bytes } }) => {
  hub = await fakeHub(files);
};
afterEach(() => hub.close());

// The files are random bytes, no models that run.
const get = (name = repo, options: PullOptions = {}) =>
  pull(name, { env: hub.env, retryDelayMs: 1, force: true, ...options });
const dir = () => join(hub.env.HF_HOME, 'hub', `models--${repo.replace('/', '--')}`);
const blobs = () => readdirSync(join(dir(), 'blobs'));
const downloads = () => hub.requests.filter(({ host, method }) => host === 'store' && method === 'GET');

describe('a pull', () => {
  test('writes the same cache layout as huggingface_hub', async () => {
    await start();
    const progress: number[] = [];
    const result = await get(`${repo}:q4_k_m`, { onProgress: ({ done }) => progress.push(done) });
    const pointer = join(dir(), 'snapshots', commit, model);
    expect(result).toEqual({
      repo,
      revision: 'main',
      commit,
      quant: 'Q4_K_M',
      path: pointer,
      files: [{ file: model, path: pointer, bytes: MB, hash: sha256(bytes), fetched: true }],
    });
    expect(readlinkSync(pointer)).toBe(join('..', '..', 'blobs', sha256(bytes)));
    expect(readFileSync(pointer).equals(bytes)).toBe(true);
    expect(await readFile(join(dir(), 'refs', 'main'), 'utf8')).toBe(commit);
    expect(blobs()).toEqual([sha256(bytes)]);
    expect(progress[0]).toBe(0);
    expect(progress.at(-1)).toBe(MB);
    expect(await fingerprintFile(pointer)).toBe(sha256(bytes));
    expect((await resolveModel(repo, { env: hub.env })).path).toBe(pointer);
  });

  test('does not download a cached file again, and restores a missing link', async () => {
    await start();
    await get();
    const again = await get(repo, { revision: 'refs/pr/1' });
    expect(again.files[0].fetched).toBe(false);
    expect(downloads()).toHaveLength(1);
    expect(readFileSync(join(dir(), 'refs', 'refs', 'pr', '1'), 'utf8')).toBe(commit);
    expect(hub.requests.some(({ path }) => path.includes('/revision/refs%2Fpr%2F1?blobs=true'))).toBe(true);
  });

  test('recognizes a file stored in the snapshot itself, as on Windows', async () => {
    await start();
    const path = join(dir(), 'snapshots', commit, model);
    await mkdir(join(path, '..'), { recursive: true });
    writeFileSync(path, bytes);
    expect((await get()).files[0]).toMatchObject({ path, fetched: false });
    expect(downloads()).toEqual([]);
  });

  test('downloads every part of a split model, including folders', async () => {
    const parts = [1, 2, 3].map(i => `Q8_0/tiny-Q8_0-0000${i}-of-00003.gguf`);
    await start(Object.fromEntries(parts.map((name, i) => [name, { bytes: pseudoRandomBytes(5000, i + 1) }])));
    const result = await get(`${repo}/${parts[1]}`);
    expect(result.files.map(({ file }) => file)).toEqual(parts);
    expect(result.path.endsWith(parts[0])).toBe(true);
    expect(readlinkSync(result.path).startsWith(join('..', '..', '..', 'blobs'))).toBe(true);
    expect((await resolveModel(`${repo}:Q8_0`, { env: hub.env })).parts).toHaveLength(3);
  });

  test('verifies a file outside LFS by its git hash', async () => {
    await start({ [model]: { bytes, outsideLfs: true } });
    expect((await get()).files[0].hash).toBe(gitSha1(bytes));
    expect(blobs()).toEqual([gitSha1(bytes)]);
  });

  test('does not send the token to the storage server', async () => {
    await start();
    hub.env.HF_TOKEN = 'hf_secret';
    await get();
    for (const { host, authorization } of hub.requests) {
      expect(authorization).toBe(host === 'hub' ? 'Bearer hf_secret' : undefined);
    }
    expect(hub.requests.some(({ host }) => host === 'store')).toBe(true);
  });

  test('reads the token from the token file', async () => {
    await start();
    writeFileSync(join(hub.env.HF_HOME, 'token'), 'hf_filed\n');
    await get();
    expect(hub.requests[0].authorization).toBe('Bearer hf_filed');
  });
});

describe('selecting a model', () => {
  const small = (...names: string[]) =>
    start(Object.fromEntries(names.map((n, i) => [n, { bytes: pseudoRandomBytes(100, i) }])));

  test('prefers Q4_K_M and reports the choice', async () => {
    await small('m-Q8_0.gguf', 'm-Q2_K.gguf', 'm-Q4_K_M.gguf', 'mmproj-F16.gguf');
    const notes: string[] = [];
    expect((await get(repo, { onMessage: line => notes.push(line) })).quant).toBe('Q4_K_M');
    expect(notes).toEqual([`${repo} has Q2_K, Q4_K_M, Q8_0; using Q4_K_M`]);
  });

  test('lists the available quantizations if there is no match', async () => {
    await small('m-Q8_0.gguf', 'm-Q2_K.gguf');
    await expect(get(`${repo}:Q3_K_M`)).rejects.toThrow(InputError);
    await expect(get(`${repo}:Q3_K_M`)).rejects.toThrow(/has no Q3_K_M.*pull acme\/tiny-GGUF:Q2_K\n.*:Q8_0/s);
  });

  test('downloads all models that match a quantization', async () => {
    await small('a-Q4_0.gguf', 'b-Q4_0.gguf');
    const notes: string[] = [];
    expect((await get(`${repo}:Q4_0`, { onMessage: line => notes.push(line) })).files).toHaveLength(2);
    expect(notes[0]).toContain('matches 2 models');
    await expect(get()).rejects.toThrow(/several models.*a-Q4_0.gguf/s);
  });

  test('rejects a repository without models, or with missing parts', async () => {
    await small('m-Q4_0-00001-of-00002.gguf');
    await expect(get()).rejects.toThrow('1 of the 2 parts');
    hub.files = {};
    await expect(get()).rejects.toThrow('no GGUF files');
  });
});

describe('an unreliable connection', () => {
  test('an interrupted download resumes without downloading any byte twice', async () => {
    await start();
    hub.disconnectAfter = [300_000, 200_000];
    await get();
    expect(hub.servedBytes).toBe(MB);
    expect(downloads().map(({ range }) => range)).toEqual([undefined, 'bytes=300000-', 'bytes=500000-']);
  });

  test('a partial file of an earlier process is resumed', async () => {
    await start();
    await mkdir(join(dir(), 'blobs'), { recursive: true });
    writeFileSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`), bytes.subarray(0, MB / 2));
    const done: number[] = [];
    await get(repo, { onProgress: p => done.push(p.done) });
    expect(hub.servedBytes).toBe(MB / 2);
    expect(done[0]).toBe(MB / 2);
  });

  test.each([
    ['too long', Buffer.concat([bytes, bytes]), MB],
    ['complete', bytes, 0],
  ])('a partial file that is %s is handled', async (_, left, served) => {
    await start();
    await mkdir(join(dir(), 'blobs'), { recursive: true });
    writeFileSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`), left);
    await get();
    expect(hub.servedBytes).toBe(served);
  });

  test('a server without range support starts over', async () => {
    await start();
    hub.supportsRanges = false;
    hub.disconnectAfter = [300_000];
    const { path } = await get();
    expect(hub.servedBytes).toBe(300_000 + MB);
    expect(readFileSync(path).equals(bytes)).toBe(true);
  });

  test('gives up on a server without range support that always disconnects', async () => {
    await start();
    hub.supportsRanges = false;
    hub.disconnectAfter = Array(10).fill(300_000);
    await expect(get(repo, { retries: 3 })).rejects.toThrow(NetworkError);
    expect(downloads()).toHaveLength(4);
  });

  test('retries after a wrong range, and starts over after 416', async () => {
    await start();
    hub.disconnectAfter = [300_000];
    const honest: FakeHub['storeFaults'][number] = (request, response) => {
      void request;
      response.writeHead(200, { 'content-length': MB });
      response.write(bytes.subarray(0, 100_000), () => setTimeout(() => response.destroy(), CUT_MS));
    };
    const wrong = respondWith(206, { 'content-range': `bytes 5-${MB - 1}/${MB}` });
    hub.storeFaults = [honest, wrong, respondWith(416)];
    const { path } = await get();
    expect(readFileSync(path).equals(bytes)).toBe(true);
    const ranges = downloads().map(({ range }) => range);
    expect(ranges).toEqual([undefined, 'bytes=100000-', 'bytes=100000-', undefined, 'bytes=300000-']);
  });

  test('retries after 500, 429 and an expired storage URL', async () => {
    await start();
    hub.hubFaults = [respondWith(503)];
    hub.storeFaults = [respondWith(500), respondWith(429, { 'retry-after': '0' }), respondWith(403)];
    const notes: string[] = [];
    await get(repo, { onMessage: line => notes.push(line) });
    expect(notes).toHaveLength(4);
    expect(notes[2]).toContain('too many requests');
  });

  test('closes an idle connection and retries', async () => {
    await start();
    hub.hangAfter = 400_000;
    await get(repo, { idleTimeoutMs: 300 });
    expect(hub.servedBytes).toBe(MB);
  });

  test('gives up on a server that keeps failing, with advice', async () => {
    await start();
    hub.hubFaults = Array(9).fill(respondWith(500));
    await expect(get()).rejects.toThrow(/responded with 500.*run the same command again/);
    hub.hubFaults = [respondWith(429, { 'retry-after': '3600' })];
    await expect(get()).rejects.toThrow('wait 60 minutes; a token in HF_TOKEN raises the limit');
    await hub.close();
    await expect(get(repo, { retries: 1 })).rejects.toThrow(/ECONNREFUSED.*Check the network/);
    vi.stubEnv('HTTP_PROXY', 'http://127.0.0.1:1');
    const behindProxy = await get(repo, { retries: 0 }).catch(error => error);
    vi.unstubAllEnvs();
    expect(behindProxy.message).toMatch(/ECONNREFUSED.*HTTP_PROXY is set and not in use/);
  });
});

describe('errors say what to do', () => {
  test.each([
    [401, {}, undefined, /does not exist, or is private or gated.*set HF_TOKEN/],
    [401, { 'x-error-code': 'GatedRepo' }, undefined, /is gated: accept its terms at http.*HF_TOKEN/],
    [403, { 'x-error-code': 'GatedRepo' }, 'hf_x', /is gated: accept its terms at http/],
    [403, { 'x-error-message': 'no \x1b[2J way' }, 'hf_x', /your token has no access.*says: no {2}\[2J way/],
    [404, {}, undefined, /was not found: check the name/],
    [404, { 'x-error-code': 'RevisionNotFound' }, undefined, /no such revision/],
    [418, {}, undefined, /responded with 418/],
  ])('%i %o', async (code, headers: Record<string, string>, token, message) => {
    await start();
    hub.env.HF_TOKEN = token;
    // Node does not send an escape code, but sends its Latin-1 counterpart, also a control character.
    const safe = Object.fromEntries(Object.entries(headers).map(([k, v]) => [k, v.replace('\x1b', '\x9b')]));
    hub.hubFaults = [respondWith(code, safe)];
    await expect(get()).rejects.toThrow(NetworkError);
    hub.hubFaults = [respondWith(code, safe)];
    await expect(get()).rejects.toThrow(message);
    expect(existsSync(dir())).toBe(false);
  });

  test('rejects invalid names, revisions, endpoints and tokens without a request', async () => {
    await start();
    for (const name of [
      '',
      'repo',
      '../x',
      'a/..',
      'a--b/c',
      'a/b/../c.gguf',
      'a/b:',
      '/etc/passwd',
      'a/b/c',
      'a/b?x',
    ]) {
      await expect(get(name), name).rejects.toThrow(InputError);
    }
    for (const revision of ['', '..', 'a/../b', '/a', 'a//b', 'a\\b', '.git']) {
      await expect(get(repo, { revision }), revision).rejects.toThrow(InputError);
    }
    await expect(get(repo, { endpoint: 'file:///etc' })).rejects.toThrow('HF_ENDPOINT');
    await expect(get(repo, { token: 'a\nb' })).rejects.toThrow('HF_TOKEN');
    await expect(get(repo, { env: { ...hub.env, HF_HUB_OFFLINE: '1' } })).rejects.toThrow('HF_HUB_OFFLINE');
    expect(hub.requests).toEqual([]);
  });
});

describe('a hostile server', () => {
  test('sends wrong bytes: they are deleted', async () => {
    await start({ [model]: { bytes, sha256: sha256(pseudoRandomBytes(10)) } });
    await expect(get()).rejects.toThrow(FormatError);
    expect(blobs()).toEqual([]);
    expect(existsSync(join(dir(), 'snapshots'))).toBe(false);
  });

  test('sends more bytes than declared', async () => {
    await start({ [model]: { bytes, size: 1000 } });
    await expect(get()).rejects.toThrow('longer than the hub declared');
    expect(lstatSync(join(dir(), 'blobs', blobs()[0])).size).toBe(0);
  });

  test.each([
    '../evil.gguf',
    'a/../../evil.gguf',
    '/etc/evil.gguf',
    'C:\\evil.gguf',
    'a//evil.gguf',
    'e\x1b[2Jvil.gguf',
  ])('lists the file name %j', async name => {
    await start({ [name]: { bytes } });
    await expect(get()).rejects.toThrow(/unsafe name/);
    expect(existsSync(dir())).toBe(false);
  });

  test.each([0, -5, 1.5, 2 ** 50, Number.NaN])('declares the size %d', async size => {
    await start({ [model]: { bytes, size } });
    await expect(get()).rejects.toThrow('an invalid size');
  });

  test('declares a size larger than the disk', async () => {
    await start({ [model]: { bytes, size: 2 ** 42 } });
    await expect(get()).rejects.toThrow(CapacityError);
    expect(downloads()).toEqual([]);
  });

  test.each(['../../etc', 'main', '', 'G'.repeat(40)])('declares the commit %j', async sha => {
    await start();
    hub.sha = sha;
    await expect(get()).rejects.toThrow('has no commit');
  });

  test('is written to by another process at the same time', async () => {
    await start();
    // As a process does that was suspended while this one took its lock over.
    const onProgress = ({ done }: { done: number }) => {
      if (done === 0) appendFileSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`), 'more');
    };
    await expect(get(repo, { onProgress })).rejects.toThrow(/damaged|longer/);
    expect(blobs()).toEqual([]);
    await get();
    expect(blobs()).toEqual([sha256(bytes)]);
  });

  test('declares a checksum that is a path', async () => {
    await start({ [model]: { bytes, sha256: '../../../evil' } });
    await expect(get()).rejects.toThrow('has no checksum');
  });

  test('redirects to a file: URL, or endlessly', async () => {
    await start();
    hub.hubFaults = [respondWith(302, { location: 'file:///etc/passwd' })];
    await expect(get()).rejects.toThrow('not a safe URL');
    hub.hubFaults = Array(9).fill(respondWith(302, { location: '/again' }));
    await expect(get()).rejects.toThrow('redirects more than 5 times');
  });

  test('responds with something other than a listing', async () => {
    await start();
    hub.hubFaults = [(_, response) => response.end('<html>log in</html>')];
    await expect(get()).rejects.toThrow('log in to this network');
  });
});

describe('aborting and concurrent pulls', () => {
  test('an aborted pull keeps its bytes, and the next one resumes', async () => {
    await start();
    hub.hangAfter = 400_000;
    const stop = new AbortController();
    const onProgress = ({ done }: { done: number }) => done >= 400_000 && stop.abort();
    await expect(get(repo, { signal: stop.signal, onProgress })).rejects.toThrow(/abort/i);
    expect(lstatSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`)).size).toBe(400_000);
    await expect(resolveModel(repo, { env: hub.env })).rejects.toThrow('kvasir pull');

    hub.hangAfter = Number.POSITIVE_INFINITY;
    const { path } = await get();
    expect(hub.servedBytes).toBe(MB);
    expect(readFileSync(path).equals(bytes)).toBe(true);
  });

  test('a pull aborted before it starts makes no request', async () => {
    await start();
    await expect(get(repo, { signal: AbortSignal.abort() })).rejects.toThrow(/abort/i);
    expect(hub.requests).toEqual([]);
  });

  test('two concurrent pulls download once', async () => {
    await start();
    const notes: string[] = [];
    const both = await Promise.all([1, 2].map(() => get(repo, { onMessage: line => notes.push(line) })));
    expect(both.map(({ files }) => files[0].fetched).sort()).toEqual([false, true]);
    expect(hub.servedBytes).toBe(MB);
    expect(notes).toEqual([expect.stringContaining(`${model} is being pulled by another process`)]);
    expect(readdirSync(join(hub.env.HF_HOME, 'hub', '.locks', `models--${repo.replace('/', '--')}`))).toEqual([]);
  });
});
