/** A model with a profile that is given, found or missing. */

import { readFileSync, rmSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { writeTempModel } from '../../test/support/gguf-writer.ts';
import { smallContent } from '../../test/support/profile.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { loadModel, type Model } from '../api/model.ts';
import { placeholderLearned } from '../codec/kv.ts';
import { parseSpec } from '../codec/spec.ts';
import { evaluate } from '../eval/evaluate.ts';
import { fingerprintFile } from '../model/fingerprint.ts';
import { knownHashes } from '../model/source.ts';
import { encodeProfile } from '../plan/profile.ts';
import type { ProfileInput } from '../plan/profile-input.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { openModelFile, planShape } from './engine.ts';
import { modelFingerprint } from './model-fingerprint.ts';
import { profileShape } from './profile.ts';

let model: string;
let bytes: Uint8Array<ArrayBuffer>;
let foreign: Uint8Array<ArrayBuffer>;
let cache: string;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ headDim: 32 }));
  const file = await openModelFile(model);
  await file.gguf.close();
  cache = await mkdtemp(join(tmpdir(), 'kvasir-cache-'));
  vi.stubEnv('KVASIR_CACHE', cache);
  const { key = {}, value = {} } = placeholderLearned(parseSpec('tq35-v'), planShape(file));
  const content = {
    ...smallContent,
    fingerprint: await modelFingerprint(file),
    shape: profileShape(file),
    learned: Array.from({ length: file.config.layers }, () => ({ key, value })),
  };
  bytes = await encodeProfile(content);
  foreign = await encodeProfile({ ...content, fingerprint: 'cd'.repeat(32) });
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await rm(cache, { recursive: true });
  await rm(dirname(model), { recursive: true });
});

/** A copy of the model in a folder of its own, with this file next to it. */
async function besideModel(profile: Uint8Array): Promise<string> {
  const dir = await mkdtemp(join(dirname(model), 'copy-'));
  await copyFile(model, join(dir, 'm.gguf'));
  await writeFile(join(dir, 'm.kvprofile'), profile);
  return join(dir, 'm.gguf');
}

const profileNotices = ({ notices }: Model) => notices.filter(notice => notice.includes('profile'));

const load = (input: string, kv: string, profile?: ProfileInput) => loadModel(input, { kv, profile, device: 'js' });

it('a profile of the RoPE for other contexts is not used, and an error if it is given', async () => {
  const metadata = { 'phi3.rope.scaling.original_context_length': 256 };
  const phi = await writeTempModel(
    tinyModel({ architecture: 'phi3', kvHeads: 4, headDim: 32, longRope: true, metadata }),
  );
  const file = await openModelFile(phi);
  await file.gguf.close();
  const { key = {}, value = {} } = placeholderLearned(parseSpec('tq35-v'), planShape(file));
  const profile = await encodeProfile({
    ...smallContent,
    fingerprint: await modelFingerprint(file),
    shape: profileShape(file),
    learned: Array.from({ length: file.config.layers }, () => ({ key, value })),
  });
  await writeFile(phi.replace(/\.gguf$/, '.kvprofile'), profile);
  const device = 'js';
  await using long = await loadModel(phi, { kv: 'tq35-v', device });
  expect(profileNotices(long)).toEqual([]);
  await using short = await loadModel(phi, { context: 256, device });
  expect(profileNotices(short)).toEqual([expect.stringContaining('learned with another RoPE')]);
  await expect(loadModel(phi, { kv: 'tq4', context: 256, device, profile })).rejects.toThrow(
    /learned with another RoPE/,
  );
  await rm(dirname(phi), { recursive: true });
});

describe('a profile that is given', () => {
  it('as a URL or as bytes is used', async () => {
    const path = join(cache, 'a b.kvprofile');
    await writeFile(path, bytes);
    for (const profile of [pathToFileURL(path), new Blob([bytes])]) {
      await using loaded = await load(model, 'tq35-v', profile);
      expect([loaded.plan.spec, profileNotices(loaded)]).toEqual(['tq35-v', []]);
    }
  });

  it('by its name on the hub is found in the hub cache', async () => {
    const folder = join(cache, 'hub', 'models--org--profiles', 'snapshots', 'a'.repeat(40));
    await mkdir(folder, { recursive: true });
    vi.stubEnv('HF_HUB_CACHE', join(cache, 'hub'));
    await writeFile(join(folder, 'other.kvprofile'), foreign);
    await writeFile(join(folder, basename(model).replace('.gguf', '.kvprofile')), bytes);
    // Without a file, the one that is named after the model.
    for (const name of ['org/profiles', `org/profiles:${basename(model).replace('.gguf', '.kvprofile')}`]) {
      await using loaded = await load(model, 'tq35-v', name);
      expect(loaded.plan.spec).toBe('tq35-v');
    }
    await expect(load(model, 'tq35-v', 'org/profiles:other.kvprofile')).rejects.toThrow(/for another model/);
    await expect(load(model, 'tq35-v', 'org/none')).rejects.toThrow(
      "there is no file 'org/none', and no such profile in the hub cache: run kvasir pull MODEL --profile org/none, and",
    );
    await expect(load(model, 'tq35-v', './none.kvprofile')).rejects.toThrow(/none\.kvprofile/);
  });

  it('for another model, damaged or aborted is an error', async () => {
    await expect(load(model, 'tq35-v', foreign)).rejects.toThrow(UnsupportedError);
    await expect(load(model, 'tq4', foreign)).rejects.toThrow(/for another model/);
    await expect(load(model, 'tq35-v', bytes.subarray(0, 100))).rejects.toThrow(FormatError);
    const profile = 'http://127.0.0.1:1/m.kvprofile';
    await expect(loadModel(model, { profile, signal: AbortSignal.abort() })).rejects.toThrow(/abort/i);
  });

  it('serves a model without a path, whose shape is compared', async () => {
    const blob = new Blob([readFileSync(model)]);
    await using loaded = await loadModel(blob, { kv: 'tq35-v', profile: new Blob([bytes]), device: 'js' });
    expect(loaded.plan.spec).toBe('tq35-v');
  });

  it('of another model of the same shape is refused without a path too, if the hash of the model is known', async () => {
    const blob = new Blob([readFileSync(model)]);
    const options = { kv: 'tq35-v', profile: new Blob([foreign]), device: 'js' } as const;
    await using unknown = await loadModel(blob, options);
    expect(unknown.plan.spec).toBe('tq35-v');
    knownHashes.set(blob, await fingerprintFile(model));
    await expect(loadModel(blob, options)).rejects.toThrow(/for another model/);
  });
});

describe('a profile next to the model', () => {
  it('is used', async () => {
    await using loaded = await load(await besideModel(bytes), 'tq35-v');
    expect(profileNotices(loaded)).toEqual([]);
  });

  it('that is for another model: a notice, or part of the error if a codec needs one', async () => {
    const path = await besideModel(foreign);
    const notice = /m.kvprofile is not used: it was made for "test.gguf" \(cdcdcdcdcdcd\)/;
    await using loaded = await load(path, 'auto');
    expect(profileNotices(loaded)[0]).toMatch(notice);
    await expect(load(path, 'tq35-v')).rejects.toThrow(/it has no profile. Run: kvasir calibrate/);
    await expect(load(path, 'tq35-v')).rejects.toThrow(notice);
    const text = 'Odin carried the mead of poetry home. '.repeat(4);
    const { notices } = await evaluate(path, { kv: ['auto'], text, context: 64, rows: 1, device: 'js' });
    expect(notices[0]).toMatch(notice);
    // A codec that needs no profile does not look for one.
    rmSync(path.replace('.gguf', '.kvprofile'));
    await using plain = await load(path, 'tq4');
    expect(profileNotices(plain)).toEqual([]);
  });
});
