import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { describeWith, smolModel } from '../../test/shared.ts';
import { InputError } from '../errors.ts';
import { fingerprint, fingerprintAll } from './fingerprint.ts';

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
  it('is the sha256 of the file, or of the fingerprints of several', async () => {
    const [a, b] = [await file('a', 'one'), await file('b', 'two')];
    expect(await fingerprint(a)).toBe(sha256('one'));
    expect(await fingerprintAll([a])).toBe(sha256('one'));
    expect(await fingerprintAll([a, b])).toBe(sha256(`${sha256('one')}\n${sha256('two')}`));
    await expect(fingerprint(join(folder, 'none'))).rejects.toThrow(InputError);
  });

  it('is remembered until the size or the time changes', async () => {
    const path = await file('a', 'one');
    const time = new Date('2024-05-06T07:08:09Z');
    await utimes(path, time, time);
    expect(await fingerprint(path, { cacheDir })).toBe(sha256('one'));
    expect(await readdir(cacheDir)).toEqual(['fingerprints.json']);
    // Same size and time: the memory answers, which shows that the file was not read.
    await writeFile(path, 'two');
    await utimes(path, time, time);
    expect(await fingerprint(path, { cacheDir })).toBe(sha256('one'));
    await utimes(path, time, new Date('2024-05-06T07:08:10Z'));
    expect(await fingerprint(path, { cacheDir })).toBe(sha256('two'));
    await writeFile(path, 'three');
    await utimes(path, time, time);
    expect(await fingerprint(path, { cacheDir })).toBe(sha256('three'));
  });

  it('is made again where the memory is damaged', async () => {
    const path = await file('a', 'one');
    await fingerprint(path, { cacheDir });
    const memory = join(cacheDir, 'fingerprints.json');
    const [known] = Object.keys(JSON.parse(await readFile(memory, 'utf8')));
    for (const text of ['', '{', 'null', '[1]', `{"${known}":null}`, `{"${known}":{"size":3,"sha256":"zz"}}`]) {
      await writeFile(memory, text);
      expect(await fingerprint(path, { cacheDir })).toBe(sha256('one'));
    }
    expect(Object.keys(JSON.parse(await readFile(memory, 'utf8')))).toEqual([known]);
  });

  it("is a blob's name in a hub cache, and only there", async () => {
    await mkdir(join(folder, 'blobs'));
    const name = sha256('what the hub says');
    const blob = await file(`blobs/${name}`, 'bytes');
    await symlink(blob, join(folder, 'model.gguf'));
    expect(await fingerprint(join(folder, 'model.gguf'))).toBe(name);
    // Small files have a git hash for a name, which is no sha256.
    const short = await file(`blobs/${name.slice(0, 40)}`, 'bytes');
    await symlink(short, join(folder, 'small.gguf'));
    expect(await fingerprint(join(folder, 'small.gguf'))).toBe(sha256('bytes'));
    const elsewhere = await file(name, 'bytes');
    await symlink(elsewhere, join(folder, 'other.gguf'));
    expect(await fingerprint(join(folder, 'other.gguf'))).toBe(sha256('bytes'));
    expect(await fingerprint(blob)).toBe(sha256('bytes'));
  });
});

describeWith(smolModel, 'SmolLM2 135M', path => {
  it('has the sha256 that its README states', async () => {
    expect(await fingerprint(path)).toBe('b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53');
  });
});
