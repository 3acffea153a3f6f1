import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { describeWithFile, smolModel } from '../../test/support/shared.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { fingerprintFile, fingerprintFiles, fingerprintSources, knownFingerprint } from './fingerprint.ts';
import { blobSource, bytesSource, fileSource } from './source.ts';

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
let folder: string;
let cacheDir: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvasir-print-'));
  cacheDir = join(folder, 'cache', 'deep');
});
afterEach(() => rm(folder, { recursive: true }));

const file = async (name: string, text: string) => {
  await writeFile(join(folder, name), text);
  return join(folder, name);
};

describe('a fingerprint', () => {
  it('is the sha256 of the file, or of the fingerprints of several files', async () => {
    const [a, b] = [await file('a', 'one'), await file('b', 'two')];
    expect(await fingerprintFile(a)).toBe(sha256('one'));
    expect(await fingerprintFiles([a])).toBe(sha256('one'));
    expect(await fingerprintFiles([a, b])).toBe(sha256(`${sha256('one')}\n${sha256('two')}`));
    await expect(fingerprintFile(join(folder, 'none'))).rejects.toThrow(InputError);
  });

  it('is cached until the size or modification time changes', async () => {
    const path = await file('a', 'one');
    const time = new Date('2024-05-06T07:08:09Z');
    await utimes(path, time, time);
    expect(await fingerprintFile(path, { cacheDir })).toBe(sha256('one'));
    expect(await readdir(cacheDir)).toEqual(['fingerprints.json']);
    // Same size and time: the result comes from the cache.
    await writeFile(path, 'two');
    await utimes(path, time, time);
    expect(await fingerprintFile(path, { cacheDir })).toBe(sha256('one'));
    await utimes(path, time, new Date('2024-05-06T07:08:10Z'));
    expect(await fingerprintFile(path, { cacheDir })).toBe(sha256('two'));
    await writeFile(path, 'three');
    await utimes(path, time, time);
    expect(await fingerprintFile(path, { cacheDir })).toBe(sha256('three'));
  });

  it('is known without hashing if it is cached', async () => {
    const [a, b] = [await file('a', 'one'), await file('b', 'two')];
    expect(await knownFingerprint([a, b], { cacheDir })).toBeUndefined();
    await fingerprintFile(a, { cacheDir });
    expect(await knownFingerprint([a], { cacheDir })).toBe(sha256('one'));
    expect(await knownFingerprint([a, b], { cacheDir })).toBeUndefined();
    const both = await fingerprintFiles([a, b], { cacheDir });
    expect(await knownFingerprint([a, b], { cacheDir })).toBe(both);
  });

  it('is computed again if the cache is damaged', async () => {
    const path = await file('a', 'one');
    await fingerprintFile(path, { cacheDir });
    const cacheFile = join(cacheDir, 'fingerprints.json');
    const [known] = Object.keys(JSON.parse(await readFile(cacheFile, 'utf8')));
    for (const text of ['', '{', 'null', '[1]', `{"${known}":null}`, `{"${known}":{"size":3,"sha256":"zz"}}`]) {
      await writeFile(cacheFile, text);
      expect(await fingerprintFile(path, { cacheDir })).toBe(sha256('one'));
    }
    expect(Object.keys(JSON.parse(await readFile(cacheFile, 'utf8')))).toEqual([known]);
  });

  it('is the name of the blob for a link into a hub cache, and only then', async () => {
    await mkdir(join(folder, 'blobs'));
    const name = sha256('what the hub says');
    const blob = await file(`blobs/${name}`, 'bytes');
    await symlink(blob, join(folder, 'model.gguf'));
    expect(await fingerprintFile(join(folder, 'model.gguf'))).toBe(name);
    // The blobs of small files are named by a git hash, not a sha256.
    const short = await file(`blobs/${name.slice(0, 40)}`, 'bytes');
    await symlink(short, join(folder, 'small.gguf'));
    expect(await fingerprintFile(join(folder, 'small.gguf'))).toBe(sha256('bytes'));
    const elsewhere = await file(name, 'bytes');
    await symlink(elsewhere, join(folder, 'other.gguf'));
    expect(await fingerprintFile(join(folder, 'other.gguf'))).toBe(sha256('bytes'));
    expect(await fingerprintFile(blob)).toBe(sha256('bytes'));
  });
});

describe('hashing files', () => {
  it('reports progress over all files, and can be cancelled', async () => {
    const paths = [await file('a', 'a'.repeat(3 * 2 ** 20)), await file('b', 'b')];
    const total = 3 * 2 ** 20 + 1;
    const seen: object[] = [];
    await fingerprintFiles(paths, { cacheDir, onProgress: progress => seen.push(progress) });
    expect(seen).toEqual([2 ** 20, 2 ** 21, 3 * 2 ** 20, total].map(done => ({ done, total })));
    const again = vi.fn();
    await fingerprintFiles(paths, { cacheDir, onProgress: again });
    expect(again).not.toHaveBeenCalled();

    const stop = new AbortController();
    const reason = new Error('stop here');
    const onProgress = vi.fn(() => stop.abort(reason));
    await expect(fingerprintFiles(paths, { signal: stop.signal, onProgress })).rejects.toBe(reason);
    expect(onProgress).toHaveBeenCalledTimes(1);
  });

  it.each([
    ['in place', (path: string) => writeFile(path, 'other text')],
    ['by another file', async (path: string) => rename(await file('other', 'text'), path)],
  ])('refuses a file that was replaced after it had been opened: %s', async (_, replace) => {
    const path = await file('a', 'text');
    const source = await fileSource(path);
    try {
      const opened = [source.version];
      expect(await fingerprintFiles([path], { cacheDir, opened })).toBe(sha256('text'));
      await replace(path);
      await expect(fingerprintFiles([path], { cacheDir, opened })).rejects.toThrow(FormatError);
      await expect(fingerprintFiles([path], { cacheDir, opened })).rejects.toThrow(/changed while it was in use/);
    } finally {
      await source.close();
    }
  });
});

describe('a fingerprint of Blobs and bytes', () => {
  const text = 'model '.repeat(500_000);
  const bytes = new TextEncoder().encode(text);
  const sources = { Blob: blobSource(new Blob([bytes])), Uint8Array: bytesSource(bytes) };

  it.each(Object.entries(sources))('equals that of a file: %s', async (_, source) => {
    expect(await fingerprintSources([source])).toBe(await fingerprintFile(await file('a', text)));
    const two = [await file('a', text), await file('b', 'end')];
    const end = blobSource(new Blob(['end']));
    expect(await fingerprintSources([source, end])).toBe(await fingerprintFiles(two));
    expect(await fingerprintSources([blobSource(new Blob([]))])).toBe(sha256(''));
  });

  it('reports progress and can be cancelled', async () => {
    const done: number[] = [];
    const onProgress = (progress: { done: number; total: number }) => {
      expect(progress.total).toBe(bytes.length + 3);
      done.push(progress.done);
    };
    await fingerprintSources([sources.Blob, blobSource(new Blob(['end']))], { onProgress });
    expect(done).toEqual([2 ** 20, 2 ** 21, bytes.length, bytes.length + 3]);
    const signal = AbortSignal.abort();
    await expect(fingerprintSources([sources.Blob], { signal })).rejects.toThrow(/abort/);
  });
});

describeWithFile(smolModel, 'SmolLM2 135M', path => {
  it('has the sha256 that its README states', async () => {
    expect(await fingerprintFile(path)).toBe('b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53');
  });
});
