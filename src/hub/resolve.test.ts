import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { InputError } from '../util/errors.ts';
import { cacheDir, linkSnapshot, readRef } from './cache.ts';
import { resolveModel } from './resolve.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'kvasir-resolve-'));
});
afterEach(() => rmSync(root, { recursive: true }));

const find = (name: string, revision?: string) => resolveModel(name, { revision, env: { HF_HUB_CACHE: root } });
const [older, newer] = ['a'.repeat(40), 'b'.repeat(40)];

/** Adds a file to a snapshot, in huggingface_hub's layout. */
function put(commit: string, file: string, revision?: string) {
  const repo = join(root, 'models--acme--tiny');
  const path = join(repo, 'snapshots', commit, file);
  write(join(repo, 'blobs', file.replaceAll('/', '_')));
  mkdirSync(dirname(path), { recursive: true });
  symlinkSync(join('../'.repeat(file.split('/').length + 1), 'blobs', file.replaceAll('/', '_')), path);
  if (revision) write(join(repo, 'refs', revision), commit);
  return path;
}

function write(path: string, text = 'GGUF') {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}

test('cacheDir prefers HF_HUB_CACHE, then HF_HOME, then XDG_CACHE_HOME', () => {
  expect(cacheDir({ HF_HUB_CACHE: '/c', HF_HOME: '/h', XDG_CACHE_HOME: '/x' })).toBe('/c');
  expect(cacheDir({ HF_HOME: '/h', XDG_CACHE_HOME: '/x' })).toBe(join('/h', 'hub'));
  expect(cacheDir({ XDG_CACHE_HOME: '/x' })).toBe(join('/x', 'huggingface', 'hub'));
  expect(cacheDir({})).toBe(join(homedir(), '.cache', 'huggingface', 'hub'));
  expect(cacheDir({ HF_HUB_CACHE: '~/c' })).toBe(join(homedir(), 'c'));
});

describe('resolving a path', () => {
  // The superuser may list every folder.
  test.skipIf(process.getuid?.() === 0)('needs no right to list the folder', async () => {
    const path = write(join(root, 'closed', 'x.gguf'));
    chmodSync(dirname(path), 0o311);
    try {
      expect(await find(path)).toEqual({ path, parts: [path] });
    } finally {
      chmodSync(dirname(path), 0o700);
    }
  });

  test('accepts files with and without .gguf', async () => {
    const path = write(join(root, 'models', 'x.gguf'));
    const bare = write(join(root, 'models', 'sha256-123'));
    expect(await find(path)).toEqual({ path, parts: [path] });
    expect(await find(bare)).toEqual({ path: bare, parts: [bare] });
  });

  test('finds all parts from any part, and reports a missing one', async () => {
    const [one, two] = [1, 2].map(i => write(join(root, `x-0000${i}-of-00002.gguf`)));
    expect(await find(two)).toEqual({ path: one, parts: [one, two] });
    rmSync(one);
    await expect(find(two)).rejects.toThrow('2 parts, but only 1 are on this machine');
  });

  test('rejects a missing file and a folder', async () => {
    write(join(root, 'models', 'x.gguf'));
    await expect(find(join(root, 'none.gguf'))).rejects.toThrow(/there is no file .*none.gguf/);
    await expect(find(join(root, 'models'))).rejects.toThrow(/is a folder.*x\.gguf/s);
  });
});

describe('resolving a name in the cache', () => {
  test('accepts a repository, with a quantization or with a file', async () => {
    const path = put(newer, 'x-Q4_K_M.gguf', 'main');
    const model = { path, parts: [path], repo: 'acme/tiny', commit: newer, quant: 'Q4_K_M' };
    for (const name of ['acme/tiny', 'hf:acme/tiny:q4_k_m', 'acme/tiny/x-Q4_K_M.gguf']) {
      expect(await find(name)).toEqual(model);
    }
  });

  test('prefers main, then older snapshots that have the file', async () => {
    const other = put(older, 'x-Q8_0.gguf');
    const old = put(older, 'x-Q4_0.gguf', 'v1');
    const main = put(newer, 'x-Q4_0.gguf', 'main');
    utimesSync(join(root, 'models--acme--tiny', 'snapshots', newer), 1, 1);
    expect((await find('acme/tiny:Q4_0')).path).toBe(main);
    expect((await find('acme/tiny:Q8_0')).path).toBe(other);
    expect((await find('acme/tiny:Q4_0', 'v1')).path).toBe(old);
    expect((await find('acme/tiny:Q4_0', older)).path).toBe(old);
    await expect(find('acme/tiny:Q4_0', 'v2')).rejects.toThrow('not on this machine');
  });

  test('rejects an ambiguous name and lists the choices', async () => {
    put(newer, 'x-Q4_0.gguf');
    put(newer, 'sub/x-Q8_0.gguf');
    put(newer, 'sub/y-Q8_0.gguf');
    await expect(find('acme/tiny')).rejects.toThrow(InputError);
    await expect(find('acme/tiny')).rejects.toThrow(/several models in the cache.*tiny\/sub\/x-Q8_0.gguf.*tiny:Q4_0/s);
    await expect(find('acme/tiny:Q8_0')).rejects.toThrow(/several models in the cache/);
  });

  test('reports a missing model with the pull command and the cached models', async () => {
    await expect(find('acme/tiny:Q4_0')).rejects.toThrow(/run kvasir pull acme\/tiny:Q4_0\.$/);
    const path = put(newer, 'x-Q8_0.gguf');
    await expect(find('acme/tiny:Q4_0')).rejects.toThrow(
      /kvasir pull acme\/tiny:Q4_0\. In the cache:\n {2}acme\/tiny:Q8_0/,
    );
    await expect(find('acme/other')).rejects.toThrow(/In the cache:\n {2}acme\/tiny/);
    // A dangling link is not a model.
    rmSync(join(root, 'models--acme--tiny', 'blobs'), { recursive: true });
    await expect(find(`acme/tiny/${path.split('/').at(-1)}`)).rejects.toThrow('not on this machine');
  });

  test('rejects a model with missing parts', async () => {
    put(newer, 'x-Q8_0-00001-of-00002.gguf');
    await expect(find('acme/tiny')).rejects.toThrow(/only 1 are on this machine: run: kvasir pull acme\/tiny:Q8_0/);
  });
});

test('replaces a link to an outdated blob, and ignores a damaged ref', async () => {
  const dir = join(root, 'models--acme--tiny');
  put(newer, 'x.gguf', 'main');
  write(join(dir, 'blobs', 'fresh'), 'new');
  const path = await linkSnapshot(dir, newer, 'x.gguf', 'fresh');
  expect(path).toBe((await find('acme/tiny')).path);
  write(join(dir, 'refs', 'main'), '../../evil');
  expect(await readRef(dir, 'main')).toBeUndefined();
});
