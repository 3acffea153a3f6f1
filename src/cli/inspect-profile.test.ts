import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Command } from 'commander';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { type FakeHub, fakeHub, repo } from '../../test/support/fake-hub.ts';
import { writeTempModel } from '../../test/support/gguf-writer.ts';
import { content, withHeader } from '../../test/support/profile.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { encodeProfile } from '../plan/profile.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { addInspect } from './inspect.ts';

const mimirProfile = fileURLToPath(new URL('../../models/mimir.kvprofile', import.meta.url));
let dir: string;
let hub: FakeHub | undefined;
let out: string;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'kvasir-profile-'));
  vi.stubEnv('KVASIR_CACHE', join(dir, 'cache'));
  out = '';
  vi.spyOn(console, 'log').mockImplementation(line => {
    out += `${line}\n`;
  });
});
afterEach(async () => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
  await hub?.close();
  hub = undefined;
  await rm(dir, { recursive: true });
});

const profile = (...args: string[]) => {
  const program = new Command().exitOverride();
  addInspect(program);
  return program.parseAsync(['inspect', ...args], { from: 'user' });
};

async function put(bytes: Uint8Array, name = 'a.kvprofile'): Promise<string> {
  await writeFile(join(dir, name), bytes);
  return join(dir, name);
}

test('describes a file: model, text, codecs, measurements by bits, sensitive layers', async () => {
  const measurements = [
    { kv: 'mead3', bits: 3, kld: 0.007 },
    { kv: 'mead1.5', bits: 1.5, kld: 0.04 },
    { kv: 'mead2', bits: 2, kld: 0.02 },
  ];
  const path = await put(await encodeProfile({ ...content, measurements }));
  await profile(path);
  const lines = out.split('\n');
  expect(lines).toEqual(
    expect.arrayContaining([
      `profile      ${path}`,
      'model        test.gguf',
      `fingerprint  ${content.fingerprint}`,
      'shape        2 layers x 1 KV heads x 16 dims',
      'learned on   512 tokens in rows of 64, seed 7, Kvasir 0.1.0',
      'samples      100 keys and values per layer',
      'prose         384',
      'notes.txt     128',
    ]),
  );
  expect(out).toMatch(/^size +\d/m);
  // It names a codec of an earlier version only.
  expect(out).toMatch(/^codecs +none$/m);
  expect(out).toMatch(/^not covered .*mead2.*--kv/m);
  expect(out).toMatch(/mead1\.5 +1\.500 +\.04\nmead2 +2\.000 +\.02\nmead3 +3\.000 +\.007/);
  expect(out).toMatch(/layer +keys +values +share\n.*\n +1 .*96\.2%\n +0 /);
});

test('--json has the same, and predicted plans', async () => {
  await profile(mimirProfile, '--json');
  const described = JSON.parse(out);
  expect(described).toMatchObject({
    path: mimirProfile,
    shape: { layers: 8, kvHeads: 2, headDim: 64 },
    provenance: { tokens: 65536 },
    codecs: {
      covered: expect.arrayContaining(['mead2', 'oaken']),
      missing: ['tq35-v', 'vec-d4b8', 'vec-d4b8-own', 'million-d4b8'],
    },
  });
  expect(described.bytes).toBeGreaterThan(1e6);
  expect(described.plans.map(({ bits }: { bits: number }) => bits)).toEqual([1.5, 2, 2.5, 3, 4]);
  const divergences = described.plans.map(({ kld }: { kld: number }) => kld);
  expect(divergences).toEqual([...divergences].sort((a, b) => b - a));
  expect(described.sensitiveLayers).toHaveLength(5);
});

test('the view of a model says where its profile was found, or why a file is not used', async () => {
  await profile(mimirProfile.replace('.kvprofile', '.gguf'));
  expect(out).toContain(`profile      ${mimirProfile}\n`);
  const model = await writeTempModel(tinyModel());
  const warned = vi.spyOn(console, 'error').mockImplementation(() => {});
  await writeFile(model.replace('.gguf', '.kvprofile'), await encodeProfile(content));
  out = '';
  await profile(model);
  expect(out).toContain('profile      none; kvasir calibrate MODEL learns one\n');
  expect(warned.mock.calls[0][0]).toMatch(/is not used: it was made for "test.gguf"/);
  await rm(dirname(model), { recursive: true });
});

test('of the hub, by its file', async () => {
  hub = await fakeHub({ 'x/a.kvprofile': { bytes: Buffer.from(await encodeProfile(content)) } });
  vi.stubEnv('HF_HUB_CACHE', undefined);
  vi.stubEnv('HF_HUB_OFFLINE', undefined);
  for (const [name, value] of Object.entries(hub.env)) vi.stubEnv(name, value);
  await profile(`${repo}:x/a.kvprofile`);
  expect(out).toMatch(/^profile +\S+snapshots\S+a\.kvprofile$/m);
  expect(out).toContain('model        test.gguf');
});

test('recognizes a profile by its bytes, whatever its name', async () => {
  await profile(await put(await encodeProfile(content), 'a.bin'));
  expect(out).toContain('test.gguf');
});

test('rejects a missing, damaged or hostile file, and prints nothing', async () => {
  await expect(profile(join(dir, 'none.kvprofile'))).rejects.toThrow(InputError);
  await expect(profile(await put(new Uint8Array(100)))).rejects.toThrow(FormatError);
  const hostile = await withHeader(header => Object.assign(header.made, { model: '\x1b]0;owned\x07' }) && header);
  await expect(profile(await put(hostile))).rejects.toThrow(FormatError);
  expect(out).toBe('');
});

test('arrays of unexpected lengths are codecs that are not covered, not failures', async () => {
  const learned = content.learned.map(() => ({
    key: { mean: new Float32Array(3), 'mead.loss': new Float32Array(5), 'vec.d4b8': new Float32Array(1) },
    value: {},
  }));
  const rows = content.learned.map(() => ({ key: 1, value: 1 }));
  const sensitivities = { mead2: rows, tq2: rows };
  await profile(await put(await encodeProfile({ ...content, learned, sensitivities })));
  expect(out).toMatch(/^codecs +none$/m);
});
