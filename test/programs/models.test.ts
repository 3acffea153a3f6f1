/** `kvasir list` and `kvasir rm`, on a hub cache of one tiny file. */
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { kvasir } from '../support/command.ts';
import { noTerminal, openTerminal } from '../support/terminal.ts';

let hubCache: string;
let blob: string;

beforeEach(async () => {
  hubCache = await mkdtemp(join(tmpdir(), 'kvasir-models-'));
  const repo = join(hubCache, 'models--org--tiny');
  const snapshot = join(repo, 'snapshots', 'a'.repeat(40));
  blob = join(repo, 'blobs', 'b'.repeat(64));
  await mkdir(snapshot, { recursive: true });
  await mkdir(join(repo, 'blobs'));
  await writeFile(blob, 'GGUF');
  await symlink(join('..', '..', 'blobs', 'b'.repeat(64)), join(snapshot, 'tiny-Q8_0.gguf'));
});

it('lists the models in the cache', async () => {
  const { stdout } = await kvasir(['list'], { hubCache });
  expect(stdout).toMatch(
    /name +file +size +profile +last used\n.*\norg\/tiny:Q8_0 +tiny-Q8_0\.gguf +4 B +- +\d{4}-\d\d-\d\d\n/,
  );
  const [model] = JSON.parse((await kvasir(['list', '--json'], { hubCache })).stdout);
  expect(model).toMatchObject({ name: 'org/tiny:Q8_0', file: 'tiny-Q8_0.gguf', quant: 'Q8_0', bytes: 4 });
  expect((await kvasir(['list'])).stdout).toMatch(/No models in .*kvasir pull/);
});

it('lists the models in the current folder, which are found by their names', async () => {
  const cwd = await mkdtemp(join(tmpdir(), 'kvasir-folder-'));
  for (const name of ['small.gguf', 'big-00001-of-00002.gguf', 'mmproj.gguf', 'notes.txt'])
    await writeFile(join(cwd, name), 'GGUF');
  const { stdout } = await kvasir(['list'], { hubCache, cwd });
  expect(stdout).toMatch(/small\.gguf +small\.gguf +4 B .*\norg\/tiny:Q8_0 /);
  expect(stdout).not.toMatch(/mmproj|big-0/);
  expect(JSON.parse((await kvasir(['list', '--json'], { cwd })).stdout)).toMatchObject([
    { name: 'small.gguf', file: 'small.gguf', bytes: 4, paths: [join(cwd, 'small.gguf')] },
  ]);
  // It is opened, and is no model.
  expect((await kvasir(['run', 'small', 'Hi'], { cwd })).stderr).toMatch(/small\.gguf/);
  expect((await kvasir(['run', 'smal', 'Hi'], { cwd })).stderr).toMatch(
    /there is no file 'smal'.*In this folder:[\s\S]*small\.gguf/,
  );
});

it('removes a model only with --yes', async () => {
  expect(await kvasir(['rm', 'org/tiny'], { hubCache })).toMatchObject({
    status: 1,
    stderr: expect.stringMatching(/--yes/),
  });
  expect(existsSync(blob)).toBe(true);
  const { stdout } = await kvasir(['rm', 'org/tiny', '--yes'], { hubCache });
  expect(stdout).toBe('Removed org/tiny: 4 B freed.\n');
  expect(existsSync(blob)).toBe(false);
});

describe.skipIf(noTerminal)('in a terminal', () => {
  it.each([
    ['n\r', 0, true],
    ['\r', 0, true],
    ['\x03', 130, true],
    ['\x04', 0, true],
    ['y\r', 0, false],
  ])('asks before removing; after %j it exits with %i, and the model stays: %s', async (keys, status, stays) => {
    const terminal = openTerminal(['rm', 'org/tiny'], { HF_HUB_CACHE: hubCache });
    await terminal.waitFor(/Remove org\/tiny \(4 B\)\? \[y\/N\] $/);
    terminal.type(keys);
    expect(await terminal.exit).toBe(status);
    expect(existsSync(blob)).toBe(stays);
  });
});
