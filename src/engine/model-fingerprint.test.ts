import { appendFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { writeTempModel } from '../../test/support/gguf-writer.ts';
import { SMALLEST, tinyModel } from '../../test/support/tiny-model.ts';
import { loadModel } from '../api/model.ts';
import { writeFileAtomic } from '../plan/profile-store.ts';
import { FormatError } from '../util/errors.ts';
import { openModelFile } from './engine.ts';
import { modelFingerprint } from './model-fingerprint.ts';

let path: string;
let cache: string;
beforeEach(async () => {
  path = await writeTempModel(tinyModel(SMALLEST));
  cache = await mkdtemp(join(tmpdir(), 'kvasir-cache-'));
  vi.stubEnv('KVASIR_CACHE', cache);
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(cache, { recursive: true });
  await rm(dirname(path), { recursive: true });
});

it('a session is not saved for a file that took the place of the loaded one', async () => {
  await using model = await loadModel(path, { device: 'js', kv: 'f16', context: 64 });
  await using conversation = model.conversation();
  await conversation.generate('a', { maxTokens: 1 }).result();
  await appendFile(path, 'other weights');
  const save = conversation.save(join(cache, 'a.kvsession'));
  await expect(save).rejects.toThrow(FormatError);
  await expect(save).rejects.toThrow(/changed while it was in use\. .*load the model again/);
});

it('a fingerprint that is known stays that of the opened file', async () => {
  const file = await openModelFile(path);
  try {
    const fingerprint = await modelFingerprint(file);
    await appendFile(path, 'other weights');
    expect(await modelFingerprint(file)).toBe(fingerprint);
  } finally {
    await file.gguf.close();
  }
});

it('loading reports that the file is hashed, and can be cancelled then', async () => {
  // Any profile that could be the model's.
  await writeFileAtomic(join(cache, 'profiles', `${'ab'.repeat(32)}.kvprofile`), new Uint8Array(1));
  const stop = new AbortController();
  const reason = new Error('stop here');
  const phases = new Set<string>();
  const load = loadModel(path, {
    device: 'js',
    signal: stop.signal,
    onProgress({ phase }) {
      phases.add(phase);
      stop.abort(reason);
    },
  });
  await expect(load).rejects.toBe(reason);
  expect([...phases]).toEqual(['hash']);
});
