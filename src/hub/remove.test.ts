import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { listModels } from './list-models.ts';
import { planRemoval, removeModel } from './remove.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'kvasir-remove-'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const [older, newer] = ['a'.repeat(40), 'b'.repeat(40)];
const options = () => ({ env: { HF_HUB_CACHE: root } });
const repo = () => join(root, 'models--acme--tiny');
const blobs = () => readdirSync(join(repo(), 'blobs')).sort();
const remove = (name: string) => removeModel(name, options());

/** Adds a file to a snapshot, in huggingface_hub's layout. */
function put(commit: string, file: string, blob = file, revision?: string) {
  const write = (path: string, text: string) => {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  };
  write(join(repo(), 'blobs', blob), 'GGUF');
  const path = join(repo(), 'snapshots', commit, file);
  mkdirSync(dirname(path), { recursive: true });
  symlinkSync(join('../'.repeat(file.split('/').length + 1), 'blobs', blob), path);
  if (revision) write(join(repo(), 'refs', revision), commit);
}

test('lists models with name, file, size and last use', async () => {
  put(newer, 'm-Q8_0.gguf', '1', 'main');
  put(newer, 'big/m-Q4_0-00001-of-00002.gguf', '2');
  put(newer, 'big/m-Q4_0-00002-of-00002.gguf', '3');
  const models = await listModels(options());
  expect(models.map(({ name, file, bytes }) => [name, file, bytes])).toEqual([
    ['acme/tiny:Q4_0', 'big/m-Q4_0-00001-of-00002.gguf', 8],
    ['acme/tiny:Q8_0', 'm-Q8_0.gguf', 4],
  ]);
  expect(Date.now() - models[0].lastUsed.getTime()).toBeLessThan(60_000);
});

test('removes one of two models: its blob is deleted, the other stays', async () => {
  put(newer, 'm-Q8_0.gguf', '1', 'main');
  put(newer, 'm-Q4_0.gguf', '2');
  const plan = await planRemoval('acme/tiny:q4_0', options());
  expect(plan).toMatchObject({ bytes: 4, blobs: [join(repo(), 'blobs', '2')] });
  expect(blobs()).toEqual(['1', '2']);
  await plan.run();
  expect(blobs()).toEqual(['1']);
  expect((await listModels(options())).map(({ name }) => name)).toEqual(['acme/tiny:Q8_0']);
});

test('removes a model from every snapshot, then empty snapshots with their refs, then the empty folder', async () => {
  put(older, 'm-Q8_0.gguf', '1', 'v1/beta');
  put(newer, 'm-Q8_0.gguf', '1', 'main');
  put(newer, 'README.md', '2');
  await remove('acme/tiny');
  expect(blobs()).toEqual(['2']);
  expect(readdirSync(join(repo(), 'snapshots'))).toEqual([newer]);
  expect(readdirSync(join(repo(), 'refs'))).toEqual(['main']);

  put(newer, 'm-Q8_0.gguf', '1');
  rmSync(join(repo(), 'snapshots', newer, 'README.md'));
  await remove('acme/tiny');
  expect(existsSync(repo())).toBe(false);
});

test('keeps a blob that another file links to', async () => {
  put(newer, 'm-Q8_0.gguf', '1', 'main');
  put(newer, 'copy/x-F16.gguf', '1');
  expect(await planRemoval('acme/tiny:Q8_0', options())).toMatchObject({ bytes: 0, blobs: [] });
  await remove('acme/tiny:Q8_0');
  expect(blobs()).toEqual(['1']);
});

test('keeps the folder of a partial download', async () => {
  put(newer, 'm-Q8_0.gguf', '1', 'main');
  writeFileSync(join(repo(), 'blobs', '9.incomplete'), 'GG');
  await remove('acme/tiny');
  expect(blobs()).toEqual(['9.incomplete']);
  expect(existsSync(join(repo(), 'refs', 'main'))).toBe(false);
});

test('rejects names that are ambiguous, not in the cache, or not a hub name', async () => {
  put(newer, 'm-Q8_0.gguf', '1', 'main');
  put(newer, 'm-Q4_0.gguf', '2');
  await expect(remove('acme/tiny')).rejects.toThrow(/matches 2 models.*\n {2}kvasir rm acme\/tiny:Q4_0\n/s);
  await expect(remove('acme/tiny:Q2_K')).rejects.toThrow(/not in the cache.*kvasir list/);
  await expect(remove('./m.gguf')).rejects.toThrow(/not a model name on the hub/);
});
