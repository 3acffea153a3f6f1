import { mkdir, mkdtemp, readdir, readFile, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { content } from '../../test/support/profile.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { encodeProfile } from './profile.ts';
import {
  checkWritable,
  findProfile,
  listProfilePaths,
  profilePath,
  readProfile,
  writeFileAtomic,
} from './profile-store.ts';

const { fingerprint } = content;
const own = await encodeProfile(content);
const foreign = await encodeProfile({ ...content, fingerprint: 'cd'.repeat(32) });

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'kvasir-profile-'));
  vi.stubEnv('KVASIR_CACHE', join(dir, 'cache'));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(dir, { recursive: true });
});

/** Writes a file; `age` in seconds. */
async function put(file: string, bytes: Uint8Array | string, age = 0): Promise<string> {
  const path = join(dir, file);
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, bytes);
  const time = new Date(Date.now() - 1000 * age);
  await utimes(path, time, time);
  return path;
}
const cached = `cache/profiles/${fingerprint}.kvprofile`;
const find = (model: string) => findProfile(join(dir, model), fingerprint);

describe('a profile is found', () => {
  it.each([
    ['model.gguf', 'model.kvprofile'],
    ['model.gguf', 'model.gguf.kvprofile'],
    ['Model-Q8_0.GGUF', 'Model-Q8_0.kvprofile'],
    ['model', 'model.kvprofile'],
    ['sub.gguf/model.gguf', 'sub.gguf/model.kvprofile'],
    ['big-00001-of-00003.gguf', 'big.kvprofile'],
    ['big-00001-of-00003.gguf', 'big-00001-of-00003.kvprofile'],
    ['big-00001-of-00003.GGUF', 'big-00001-of-00003.GGUF.kvprofile'],
  ])('for %s as %s', async (model, file) => {
    expect(await find(model)).toEqual({});
    const path = await put(file, own);
    expect(await find(model)).toMatchObject({ path, profile: { fingerprint }, notice: undefined });
  });

  it('in the cache folder, where `kvasir calibrate` writes', async () => {
    const path = await put(cached, own);
    expect(path).toBe(await profilePath(fingerprint));
    expect(await find('model.gguf')).toMatchObject({ path, profile: { fingerprint } });
  });

  it('for a link: next to the link, as in the hub cache, or next to its target', async () => {
    const blob = await put(`blobs/${fingerprint}`, 'GGUF');
    await mkdir(join(dir, 'snapshots'));
    await symlink(blob, join(dir, 'snapshots', 'model.gguf'));
    await symlink(await put('blobs/p', own), join(dir, 'snapshots', 'model.kvprofile'));
    expect((await find('snapshots/model.gguf')).path).toBe(join(dir, 'snapshots', 'model.kvprofile'));

    const target = await put('data/big.gguf', 'GGUF');
    await symlink(target, join(dir, 'short.gguf'));
    const path = await put('data/big.kvprofile', own);
    expect((await find('short.gguf')).path).toBe(path);
  });

  it('a dangling link and a folder of that name are no profile', async () => {
    await symlink('nowhere', join(dir, 'model.kvprofile'));
    await mkdir(join(dir, 'model.gguf.kvprofile'));
    expect(await find('model.gguf')).toEqual({});
  });

  it('the newest of several', async () => {
    const older = await put('model.kvprofile', own, 60);
    const newer = await put(cached, own, 30);
    expect((await find('model.gguf')).path).toBe(newer);
    await put('model.kvprofile', own);
    expect((await find('model.gguf')).path).toBe(older);
    expect(await listProfilePaths(join(dir, 'model.gguf'), fingerprint)).toEqual([older, newer]);
    expect(await listProfilePaths(join(dir, 'model.gguf'))).toEqual([older]);
  });
});

describe('a profile next to the model that is not for it', () => {
  it('is skipped with a notice, and the one in the cache folder is used', async () => {
    const skipped = await put('model.kvprofile', foreign);
    const notice = `${skipped} is not used: it was made for "test.gguf" (cdcdcdcdcdcd), not for this file (abababababab).`;
    expect(await find('model.gguf')).toEqual({ notice });
    const path = await put(cached, own, 60);
    expect(await find('model.gguf')).toMatchObject({ path, notice, profile: { fingerprint } });
  });

  it('is not even read if there is a newer one', async () => {
    await put('model.kvprofile', 'damaged', 60);
    await put(cached, own);
    expect(await find('model.gguf')).toMatchObject({ notice: undefined, profile: { fingerprint } });
  });

  it('and is damaged is an error with its path', async () => {
    await put('model.kvprofile', 'no profile');
    await expect(find('model.gguf')).rejects.toThrow(FormatError);
    await expect(find('model.gguf')).rejects.toThrow(/model.kvprofile cannot be used: it is not a Kvasir profile/);
  });
});

describe('reading a profile', () => {
  it('rejects a missing file, a folder and a device', async () => {
    await expect(readProfile(join(dir, 'none'))).rejects.toThrow(InputError);
    await expect(readProfile(dir)).rejects.toThrow(InputError);
    await expect(readProfile('/dev/zero')).rejects.toThrow(InputError);
  });
});

describe('writing a file', () => {
  it('makes the folders, and leaves no draft behind', async () => {
    const path = join(dir, 'a', 'b', 'm.kvprofile');
    await checkWritable(path);
    await writeFileAtomic(path, own);
    expect(await readFile(path)).toEqual(Buffer.from(own));
    const folder = join(dir, 'folder');
    await mkdir(join(folder, 'full'), { recursive: true });
    await expect(writeFileAtomic(folder, own)).rejects.toThrow(InputError);
    await expect(writeFileAtomic(folder, own)).rejects.toThrow(/folder cannot be written \(E\w+\)\. Check the path/);
    expect((await readdir(dir)).filter(name => name.endsWith('.part'))).toEqual([]);
  });

  it('checks first where it cannot', async () => {
    const file = await put('file', 'x');
    await expect(checkWritable(dir)).rejects.toThrow(/is not a file/);
    await expect(checkWritable(join(file, 'm.kvprofile'))).rejects.toThrow(InputError);
  });
});
