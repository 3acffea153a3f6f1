/** The default cache of a model: by its profile, if it has one. */
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { writeTempModel } from '../../test/support/gguf-writer.ts';
import { measuredContent } from '../../test/support/profile.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { openModelFile } from '../engine/engine.ts';
import { modelFingerprint } from '../engine/model-fingerprint.ts';
import { profileShape } from '../engine/profile.ts';
import { planBytes } from '../plan/plan.ts';
import { encodeProfile } from '../plan/profile.ts';
import { type LoadOptions, loadModel } from './model.ts';

let model: string;
let fingerprint: string;
let profile: Uint8Array<ArrayBuffer>;
let cache: string;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ headDim: 32 }));
  const file = await openModelFile(model);
  await file.gguf.close();
  vi.stubEnv('KVASIR_CACHE', join(dirname(model), 'other-cache'));
  fingerprint = await modelFingerprint(file);
  profile = await encodeProfile(measuredContent({ fingerprint, shape: profileShape(file) }));
});
beforeEach(async () => {
  cache = await mkdtemp(join(tmpdir(), 'kvasir-cache-'));
  vi.stubEnv('KVASIR_CACHE', cache);
  return () => rm(cache, { recursive: true });
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await rm(dirname(model), { recursive: true });
});

async function planOf(path: string, options: LoadOptions = {}) {
  await using loaded = await loadModel(path, { device: 'js', ...options });
  const { preset, spec, predicted } = loaded.plan;
  expect(loaded.notices.filter(notice => notice.includes('profile'))).toEqual([]);
  return { preset, spec, predicted };
}

const RECOMMENDED = { preset: 'balanced', spec: 'kivi2g32', predicted: 0.0125 };

it('is tq4 without a profile, and the file is not hashed', async () => {
  expect(await planOf(model)).toEqual({ preset: 'balanced', spec: 'tq4' });
  expect(existsSync(join(cache, 'fingerprints.json'))).toBe(false);
});

it('is what a profile that is given recommends', async () => {
  expect(await planOf(model, { profile })).toEqual(RECOMMENDED);
});

it('is what a profile next to the model recommends', async () => {
  const path = join(cache, 'm.gguf');
  await copyFile(model, path);
  await writeFile(join(cache, 'm.kvprofile'), profile);
  expect(await planOf(path)).toEqual(RECOMMENDED);
});

it('is what a profile in the cache folder recommends, also for small; safe and a codec need none', async () => {
  await mkdir(join(cache, 'profiles'));
  await writeFile(join(cache, 'profiles', `${fingerprint}.kvprofile`), profile);
  expect(await planOf(model, { quality: 'safe' })).toEqual({ preset: 'safe', spec: 'q8_0' });
  expect(await planOf(model, { kv: 'tq4' })).toEqual({ spec: 'tq4' });
  expect(existsSync(join(cache, 'fingerprints.json'))).toBe(false);
  expect(await planOf(model)).toEqual(RECOMMENDED);
  expect(await planOf(model, { quality: 'small' })).toEqual({ preset: 'small', spec: 'tq1', predicted: 0.5 });
});

it('a codec has the divergence that was measured of it', async () => {
  expect(await planOf(model, { kv: 'tq4', profile })).toEqual({ spec: 'tq4', predicted: 0.25 });
  expect(await planOf(model, { kv: 'tq3', profile })).toEqual({ spec: 'tq3' });
});

it('holds the exact pages of shadow mode within the memory of a context', async () => {
  const [context, contextMemory] = [2048, 1.5 * 2 ** 20];
  await using shadow = await loadModel(model, { device: 'js', context, contextMemory, kvMode: 'shadow' });
  expect(shadow.plan.mode).toBe('shadow');
  expect(planBytes(shadow.plan, context)).toBeLessThanOrEqual(contextMemory);
  await using packed = await loadModel(model, { device: 'js', context, contextMemory });
  expect(shadow.plan.bits).toBeLessThan(packed.plan.bits);
});
