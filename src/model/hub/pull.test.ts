import { existsSync, lstatSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { CapacityError, FormatError, InputError, NetworkError } from '../../errors.ts';
import { cachedSha256 } from './cache.ts';
import { commit, type FakeFile, type FakeHub, fakeHub, gitSha1, repo, sha256, someBytes, status } from './fake.case.ts';
import { type PullOptions, pull } from './pull.ts';
import { resolveModel } from './resolve.ts';

const MB = 2 ** 20;
const model = 'tiny-Q4_K_M.gguf';
const bytes = someBytes(MB);

let hub: FakeHub;
const start = async (files: Record<string, FakeFile> = { [model]: { bytes } }) => {
  hub = await fakeHub(files);
};
afterEach(() => hub.close());

const get = (name = repo, options: PullOptions = {}) => pull(name, { env: hub.env, retryMs: 1, ...options });
const dir = () => join(hub.env.HF_HOME, 'hub', `models--${repo.replace('/', '--')}`);
const blobs = () => readdirSync(join(dir(), 'blobs'));
const downloads = () => hub.seen.filter(({ host, method }) => host === 'store' && method === 'GET');

describe('a pull', () => {
  test('leaves what huggingface_hub would have left', async () => {
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
    expect(await cachedSha256(pointer)).toBe(sha256(bytes));
    expect((await resolveModel(repo, { env: hub.env })).path).toBe(pointer);
  });

  test('of a file that is here fetches nothing, and mends a lost link', async () => {
    await start();
    await get();
    const again = await get(repo, { revision: 'refs/pr/1' });
    expect(again.files[0].fetched).toBe(false);
    expect(downloads()).toHaveLength(1);
    expect(readFileSync(join(dir(), 'refs', 'refs', 'pr', '1'), 'utf8')).toBe(commit);
    expect(hub.seen.some(({ path }) => path.includes('/revision/refs%2Fpr%2F1?blobs=true'))).toBe(true);
  });

  test('knows a file that lies in the snapshot itself, as on Windows', async () => {
    await start();
    const path = join(dir(), 'snapshots', commit, model);
    await mkdir(join(path, '..'), { recursive: true });
    writeFileSync(path, bytes);
    expect((await get()).files[0]).toMatchObject({ path, fetched: false });
    expect(downloads()).toEqual([]);
  });

  test('fetches every part of a split model, folders too', async () => {
    const parts = [1, 2, 3].map(i => `Q8_0/tiny-Q8_0-0000${i}-of-00003.gguf`);
    await start(Object.fromEntries(parts.map((name, i) => [name, { bytes: someBytes(5000, i + 1) }])));
    const result = await get(`${repo}/${parts[1]}`);
    expect(result.files.map(({ file }) => file)).toEqual(parts);
    expect(result.path.endsWith(parts[0])).toBe(true);
    expect(readlinkSync(result.path).startsWith(join('..', '..', '..', 'blobs'))).toBe(true);
    expect((await resolveModel(`${repo}:Q8_0`, { env: hub.env })).parts).toHaveLength(3);
  });

  test('checks a file outside large file storage by its git hash', async () => {
    await start({ [model]: { bytes, plain: true } });
    expect((await get()).files[0].hash).toBe(gitSha1(bytes));
    expect(blobs()).toEqual([gitSha1(bytes)]);
  });

  test('keeps the token from the store', async () => {
    await start();
    hub.env.HF_TOKEN = 'hf_secret';
    await get();
    for (const { host, authorization } of hub.seen) {
      expect(authorization).toBe(host === 'hub' ? 'Bearer hf_secret' : undefined);
    }
    expect(hub.seen.some(({ host }) => host === 'store')).toBe(true);
  });

  test('reads the token file', async () => {
    await start();
    writeFileSync(join(hub.env.HF_HOME, 'token'), 'hf_filed\n');
    await get();
    expect(hub.seen[0].authorization).toBe('Bearer hf_filed');
  });
});

describe('choosing', () => {
  const small = (...names: string[]) =>
    start(Object.fromEntries(names.map((n, i) => [n, { bytes: someBytes(100, i) }])));

  test('prefers Q4_K_M and says so', async () => {
    await small('m-Q8_0.gguf', 'm-Q2_K.gguf', 'm-Q4_K_M.gguf', 'mmproj-F16.gguf');
    const notes: string[] = [];
    expect((await get(repo, { onNote: line => notes.push(line) })).quant).toBe('Q4_K_M');
    expect(notes).toEqual([`${repo} has Q2_K, Q4_K_M, Q8_0; taking Q4_K_M`]);
  });

  test('lists what there is when there is no such quantization', async () => {
    await small('m-Q8_0.gguf', 'm-Q2_K.gguf');
    await expect(get(`${repo}:Q3_K_M`)).rejects.toThrow(InputError);
    await expect(get(`${repo}:Q3_K_M`)).rejects.toThrow(/has no Q3_K_M.*pull acme\/tiny-GGUF:Q2_K\n.*:Q8_0/s);
  });

  test('fetches all that match a quantization', async () => {
    await small('a-Q4_0.gguf', 'b-Q4_0.gguf');
    const notes: string[] = [];
    expect((await get(`${repo}:Q4_0`, { onNote: line => notes.push(line) })).files).toHaveLength(2);
    expect(notes[0]).toContain('means 2 models');
    await expect(get()).rejects.toThrow(/several models.*a-Q4_0.gguf/s);
  });

  test('refuses a repository without models, or with parts missing', async () => {
    await small('m-Q4_0-00001-of-00002.gguf');
    await expect(get()).rejects.toThrow('1 of the 2 parts');
    hub.files = {};
    await expect(get()).rejects.toThrow('no GGUF files');
  });
});

describe('a bad line', () => {
  test('a broken download continues where it broke, and no byte comes twice', async () => {
    await start();
    hub.breakAfter = [300_000, 200_000];
    await get();
    expect(hub.served).toBe(MB);
    expect(downloads().map(({ range }) => range)).toEqual([undefined, 'bytes=300000-', 'bytes=500000-']);
  });

  test('an earlier process left half of it', async () => {
    await start();
    await mkdir(join(dir(), 'blobs'), { recursive: true });
    writeFileSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`), bytes.subarray(0, MB / 2));
    const done: number[] = [];
    await get(repo, { onProgress: p => done.push(p.done) });
    expect(hub.served).toBe(MB / 2);
    expect(done[0]).toBe(MB / 2);
  });

  test.each([
    ['too long', Buffer.concat([bytes, bytes]), MB],
    ['whole', bytes, 0],
  ])('a partial file that is %s', async (_, left, served) => {
    await start();
    await mkdir(join(dir(), 'blobs'), { recursive: true });
    writeFileSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`), left);
    await get();
    expect(hub.served).toBe(served);
  });

  test('a server without ranges starts over', async () => {
    await start();
    hub.ranges = false;
    hub.breakAfter = [300_000];
    const { path } = await get();
    expect(hub.served).toBe(300_000 + MB);
    expect(readFileSync(path).equals(bytes)).toBe(true);
  });

  test('a server without ranges that always breaks is given up', async () => {
    await start();
    hub.ranges = false;
    hub.breakAfter = Array(10).fill(300_000);
    await expect(get(repo, { retries: 3 })).rejects.toThrow(NetworkError);
    expect(downloads()).toHaveLength(4);
  });

  test('416 and another range than asked start over or try again', async () => {
    await start();
    hub.breakAfter = [300_000];
    const honest: FakeHub['storeFaults'][number] = (request, response) => {
      void request;
      response.writeHead(200, { 'content-length': MB });
      response.write(bytes.subarray(0, 100_000), () => setTimeout(() => response.destroy(), 20));
    };
    const wrong = status(206, { 'content-range': `bytes 5-${MB - 1}/${MB}` });
    hub.storeFaults = [honest, wrong, status(416)];
    const { path } = await get();
    expect(readFileSync(path).equals(bytes)).toBe(true);
    const ranges = downloads().map(({ range }) => range);
    expect(ranges).toEqual([undefined, 'bytes=100000-', 'bytes=100000-', undefined, 'bytes=300000-']);
  });

  test('500, 429 and an expired address at the store pass', async () => {
    await start();
    hub.hubFaults = [status(503)];
    hub.storeFaults = [status(500), status(429, { 'retry-after': '0' }), status(403)];
    const notes: string[] = [];
    await get(repo, { onNote: line => notes.push(line) });
    expect(notes).toHaveLength(4);
    expect(notes[2]).toContain('too many requests');
  });

  test('silence ends a connection', async () => {
    await start();
    hub.hangAfter = 400_000;
    await get(repo, { stallMs: 300 });
    expect(hub.served).toBe(MB);
  });

  test('a server that stays broken is given up, with advice', async () => {
    await start();
    hub.hubFaults = Array(9).fill(status(500));
    await expect(get()).rejects.toThrow(/answered 500.*run the same command again/);
    hub.hubFaults = [status(429, { 'retry-after': '3600' })];
    await expect(get()).rejects.toThrow('wait 60 minutes; a token in HF_TOKEN raises the limit');
    await hub.close();
    await expect(get(repo, { retries: 1 })).rejects.toThrow(/ECONNREFUSED.*Check the network/);
  });
});

describe('refusals say what to do', () => {
  test.each([
    [401, {}, undefined, /does not exist, or is private or gated.*set HF_TOKEN/],
    [401, { 'x-error-code': 'GatedRepo' }, undefined, /is gated: accept its terms at http.*HF_TOKEN/],
    [403, { 'x-error-code': 'GatedRepo' }, 'hf_x', /is gated: accept its terms at http/],
    [403, { 'x-error-message': 'no \x1b[2J way' }, 'hf_x', /your token may not read.*says: no {2}\[2J way/],
    [404, {}, undefined, /was not found: check the name/],
    [404, { 'x-error-code': 'RevisionNotFound' }, undefined, /no such revision/],
    [418, {}, undefined, /answered 418/],
  ])('%i %o', async (code, headers: Record<string, string>, token, message) => {
    await start();
    hub.env.HF_TOKEN = token;
    // Node refuses to send an escape code itself; its latin1 twin is a control character too.
    const safe = Object.fromEntries(Object.entries(headers).map(([k, v]) => [k, v.replace('\x1b', '\x9b')]));
    hub.hubFaults = [status(code, safe)];
    await expect(get()).rejects.toThrow(NetworkError);
    hub.hubFaults = [status(code, safe)];
    await expect(get()).rejects.toThrow(message);
    expect(existsSync(dir())).toBe(false);
  });

  test('names, revisions, endpoints and tokens that cannot be', async () => {
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
    expect(hub.seen).toEqual([]);
  });
});

describe('a hostile server', () => {
  test('wrong bytes are removed', async () => {
    await start({ [model]: { bytes, sha256: sha256(someBytes(10)) } });
    await expect(get()).rejects.toThrow(FormatError);
    expect(blobs()).toEqual([]);
    expect(existsSync(join(dir(), 'snapshots'))).toBe(false);
  });

  test('more bytes than it said', async () => {
    await start({ [model]: { bytes, size: 1000 } });
    await expect(get()).rejects.toThrow('longer than the hub said');
    expect(lstatSync(join(dir(), 'blobs', blobs()[0])).size).toBe(0);
  });

  test.each([
    '../evil.gguf',
    'a/../../evil.gguf',
    '/etc/evil.gguf',
    'C:\\evil.gguf',
    'a//evil.gguf',
    'e\x1b[2Jvil.gguf',
  ])('the name %j', async name => {
    await start({ [name]: { bytes } });
    await expect(get()).rejects.toThrow(/unsafe name/);
    expect(existsSync(dir())).toBe(false);
  });

  test.each([0, -5, 1.5, 2 ** 50, Number.NaN])('the size %d', async size => {
    await start({ [model]: { bytes, size } });
    await expect(get()).rejects.toThrow('no believable size');
  });

  test('a size that no disk here holds', async () => {
    await start({ [model]: { bytes, size: 2 ** 42 } });
    await expect(get()).rejects.toThrow(CapacityError);
    expect(downloads()).toEqual([]);
  });

  test.each(['../../etc', 'main', '', 'G'.repeat(40)])('the commit %j', async sha => {
    await start();
    hub.sha = sha;
    await expect(get()).rejects.toThrow('names no commit');
  });

  test('a checksum that is a path', async () => {
    await start({ [model]: { bytes, sha256: '../../../evil' } });
    await expect(get()).rejects.toThrow('without a checksum');
  });

  test('a redirect to a file, and one without end', async () => {
    await start();
    hub.hubFaults = [status(302, { location: 'file:///etc/passwd' })];
    await expect(get()).rejects.toThrow('no safe address');
    hub.hubFaults = Array(9).fill(status(302, { location: '/again' }));
    await expect(get()).rejects.toThrow('redirects more than 5 times');
  });

  test('an answer that is no list', async () => {
    await start();
    hub.hubFaults = [(_, response) => response.end('<html>log in</html>')];
    await expect(get()).rejects.toThrow('log in to this network');
  });
});

describe('stopping and sharing', () => {
  test('an aborted pull keeps what it has, and the next goes on', async () => {
    await start();
    hub.hangAfter = 400_000;
    const stop = new AbortController();
    const onProgress = ({ done }: { done: number }) => done >= 400_000 && stop.abort();
    await expect(get(repo, { signal: stop.signal, onProgress })).rejects.toThrow(/abort/i);
    expect(lstatSync(join(dir(), 'blobs', `${sha256(bytes)}.incomplete`)).size).toBe(400_000);
    await expect(resolveModel(repo, { env: hub.env })).rejects.toThrow('kvasir pull');

    hub.hangAfter = Number.POSITIVE_INFINITY;
    const { path } = await get();
    expect(hub.served).toBe(MB);
    expect(readFileSync(path).equals(bytes)).toBe(true);
  });

  test('aborted before it began', async () => {
    await start();
    await expect(get(repo, { signal: AbortSignal.abort() })).rejects.toThrow(/abort/i);
    expect(hub.seen).toEqual([]);
  });

  test('two pulls at once fetch once', async () => {
    await start();
    const notes: string[] = [];
    const both = await Promise.all([1, 2].map(() => get(repo, { onNote: line => notes.push(line) })));
    expect(both.map(({ files }) => files[0].fetched).sort()).toEqual([false, true]);
    expect(hub.served).toBe(MB);
    expect(notes).toEqual([expect.stringContaining(`${model} is being pulled by another process`)]);
    expect(readdirSync(join(hub.env.HF_HOME, 'hub', '.locks', `models--${repo.replace('/', '--')}`))).toEqual([]);
  });
});
