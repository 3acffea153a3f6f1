/** Profiles from a local hub. */
import { existsSync, readdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import {
  commit,
  type FakeFile,
  type FakeHub,
  fakeHub,
  pseudoRandomBytes,
  repo,
  respondWith,
  sha256,
} from '../../test/support/fake-hub.ts';
import { type GgufSpec, splitGguf, writeGguf } from '../../test/support/gguf-writer.ts';
import { smallContent } from '../../test/support/profile.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { listModels } from '../hub/list-models.ts';
import { removeModel } from '../hub/remove.ts';
import { FormatError, InputError, NetworkError, UnsupportedError } from '../util/errors.ts';
import { encodeProfile } from './profile.ts';
import { findProfile } from './profile-store.ts';
import { type PullOptions, pull, pullProfile } from './pull.ts';

const bytes = pseudoRandomBytes(10_000);
const model = 'tiny-Q4_K_M.gguf';
const profileOf = async (fingerprint: string, seed = 0): Promise<FakeFile> => {
  const provenance = { ...smallContent.provenance, seed };
  return { bytes: Buffer.from(await encodeProfile({ ...smallContent, fingerprint, provenance })) };
};
const own = await profileOf(sha256(bytes));
const foreign = await profileOf('cd'.repeat(32));
const damaged = { bytes: Buffer.from(own.bytes).fill(0, 100, 110) };

let hub: FakeHub;
beforeEach(async () => {
  hub = await fakeHub({ [model]: { bytes } });
  vi.stubEnv('KVASIR_CACHE', join(hub.env.HF_HOME, 'kvasir'));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await hub.close();
});

// The files are random bytes, no models that run.
const get = (options: PullOptions = {}, name = repo) =>
  pull(name, { env: hub.env, retryDelayMs: 1, force: true, ...options });
const dir = () => join(hub.env.HF_HOME, 'hub', `models--${repo.replace('/', '--')}`);
const snapshot = () => readdirSync(join(dir(), 'snapshots', commit)).sort();
const blobs = () => readdirSync(join(dir(), 'blobs')).sort();

describe('a pull reads the header first', () => {
  const serve = (spec: GgufSpec) => {
    const bytes = Buffer.from(writeGguf(spec));
    hub.files = { [model]: { bytes } };
    return bytes;
  };
  const stored = () => (existsSync(join(dir(), 'blobs')) ? blobs() : []);

  it.each([
    ['an architecture', { metadata: { 'general.architecture': 'mamba' } }, UnsupportedError, /recurrent layers/],
    ['a pre-tokenizer', { metadata: { 'tokenizer.ggml.pre': 'klingon' } }, UnsupportedError, /klingon/],
    ['a feature', { metadata: { 'llama.attention.causal': false } }, UnsupportedError, /non-causal/],
  ])('and downloads nothing of a model with %s that does not run', async (_, options, type, message) => {
    const bytes = serve(tinyModel({ width: 256, ...options }));
    await expect(get({ force: false })).rejects.toThrow(type);
    await expect(get({ force: false })).rejects.toThrow(message);
    expect(stored()).toEqual([]);
    expect(hub.servedBytes).toBeLessThan(bytes.length);
    expect((await get()).files[0].fetched).toBe(true);
  });

  it('and refuses a file that is no model', async () => {
    await expect(get({ force: false })).rejects.toThrow(FormatError);
    expect(stored()).toEqual([]);
  });

  it.each([true, false])('of all parts (server with ranges: %s)', async supportsRanges => {
    hub.supportsRanges = supportsRanges;
    const parts = splitGguf(tinyModel({ width: 256 }), 2).map(part => ({ bytes: Buffer.from(part) }));
    hub.files = { 'big-00001-of-00002.gguf': parts[0], 'big-00002-of-00002.gguf': parts[1] };
    expect((await get({ force: false })).files).toHaveLength(2);
  });

  it('once: what is in the cache is not checked again', async () => {
    await get();
    hub.requests.length = 0;
    await get({ force: false });
    expect(hub.requests.filter(({ method, host }) => method === 'GET' && host === 'store')).toEqual([]);
  });
});

describe('a pull without a profile option', () => {
  it.each(['tiny-Q4_K_M.kvprofile', 'tiny-Q4_K_M.gguf.kvprofile'])('stores %s next to the model', async file => {
    hub.files[file] = own;
    const { path, files, profile, profileProblem } = await get();
    expect(files).toHaveLength(1);
    expect(profile).toEqual({
      file,
      path: join(dir(), 'snapshots', commit, file),
      bytes: own.bytes.length,
      hash: sha256(own.bytes),
      fetched: true,
    });
    expect(profileProblem).toBeUndefined();
    expect((await findProfile(path, sha256(bytes))).path).toBe(profile?.path);
    expect((await get()).profile?.fetched).toBe(false);
  });

  it('a small one outside LFS too', async () => {
    hub.files['tiny-Q4_K_M.kvprofile'] = { ...own, outsideLfs: true };
    expect((await get()).profile?.fetched).toBe(true);
  });

  it('stores that of a split model', async () => {
    const parts = [1, 2].map(i => `Q8_0/big-Q8_0-0000${i}-of-00002.gguf`);
    const contents = parts.map((_, i) => pseudoRandomBytes(5000, i + 1));
    const fingerprint = sha256(Buffer.from(contents.map(sha256).join('\n')));
    hub.files = {
      ...Object.fromEntries(parts.map((file, i) => [file, { bytes: contents[i] }])),
      'Q8_0/big-Q8_0.kvprofile': await profileOf(fingerprint),
    };
    const { path, profile } = await get();
    expect(profile?.file).toBe('Q8_0/big-Q8_0.kvprofile');
    expect((await findProfile(path, fingerprint)).path).toBe(profile?.path);
  });

  it('ignores profiles of other files, and a repository without any', async () => {
    expect(await get()).not.toHaveProperty('profile.path');
    hub.files['other.kvprofile'] = own;
    const { profile, profileProblem } = await get();
    expect([profile, profileProblem]).toEqual([undefined, undefined]);
    expect(snapshot()).toEqual([model]);
  });

  it('each of several models gets its own', async () => {
    const second = pseudoRandomBytes(9000, 5);
    hub.files = {
      'a-Q4_0.gguf': { bytes },
      'a-Q4_0.kvprofile': own,
      'b-Q4_0.gguf': { bytes: second },
      'b-Q4_0.kvprofile': await profileOf(sha256(second)),
    };
    expect((await get({}, `${repo}:Q4_0`)).profile?.file).toBe('a-Q4_0.kvprofile');
    expect(snapshot()).toEqual(Object.keys(hub.files));
  });

  it.each<[string, FakeFile, RegExp]>([
    ['another model', foreign, /tiny-Q4_K_M.kvprofile is the profile of another model \(cdcdcdcdcdcd\)/],
    ['damaged', damaged, /tiny-Q4_K_M.kvprofile cannot be used: its checksum does not match/],
    ['not a profile', { bytes: Buffer.from('<html>') }, /cannot be used: it is not a Kvasir profile/],
    ['too large', { ...own, size: 2 ** 31 }, /a profile has at most/],
    ['longer than declared', { ...own, size: 100 }, /longer than the hub declared/],
    ['of a wrong checksum', { ...own, sha256: 'e'.repeat(64) }, /was damaged in transfer/],
  ])('a profile that is %s is refused, and the model still counts', async (_, file, problem) => {
    hub.files['tiny-Q4_K_M.kvprofile'] = file;
    const { path, profile, profileProblem } = await get();
    expect(profile).toBeUndefined();
    expect(profileProblem).toMatch(problem);
    expect(existsSync(path)).toBe(true);
    expect(snapshot()).toEqual([model]);
    expect(blobs().filter(name => !name.endsWith('.incomplete'))).toEqual([sha256(bytes)]);
  });

  it('a profile that cannot be fetched does not fail the pull; an abort does', async () => {
    await get();
    hub.files['tiny-Q4_K_M.kvprofile'] = own;
    hub.storeFaults = Array(9).fill(respondWith(500));
    expect((await get({ retries: 1 })).profileProblem).toMatch(/responded with 500/);
    hub.storeFaults = [];
    const stop = new AbortController();
    const onProgress = ({ file }: { file: string }) => file.endsWith('.kvprofile') && stop.abort();
    await expect(get({ signal: stop.signal, onProgress })).rejects.toThrow(/abort/i);
  });
});

describe('a pull with a profile option', () => {
  const other = 'someone/profiles';
  beforeEach(() => {
    hub.repos[other] = { 'tiny-Q4_K_M.kvprofile': own, 'sub/big-Q8_0.kvprofile': foreign };
  });

  it('takes the profile that is named after the model, and stores it next to the model', async () => {
    const { path, profile } = await get({ profile: other });
    expect(profile?.path).toBe(join(dir(), 'snapshots', commit, 'tiny-Q4_K_M.kvprofile'));
    expect((await findProfile(path, sha256(bytes))).path).toBe(profile?.path);
    expect(hub.requests.some(({ path }) => path.startsWith(`/${other}/resolve/`))).toBe(true);
  });

  it('takes the only one, or the named one', async () => {
    hub.repos[other] = { 'v1/any.kvprofile': own };
    expect((await get({ profile: other })).profile?.file).toBe('v1/any.kvprofile');
    hub.repos[other] = { ...hub.repos[other], 'v2/any.kvprofile': foreign };
    for (const name of [`${other}:v1/any.kvprofile`, `${other}/v1/any.kvprofile`])
      expect((await get({ profile: name })).profile?.file).toBe('v1/any.kvprofile');
    const { profileProblem } = await get({ profile: other });
    expect(profileProblem).toBe(
      `${other} has several profiles. Choose one:\n  --profile ${other}:v1/any.kvprofile\n  --profile ${other}:v2/any.kvprofile`,
    );
    expect((await get({ profile: `${other}:v3.kvprofile` })).profileProblem).toMatch(/has no v3.kvprofile. Choose one/);
  });

  it("it is used instead of the repository's own, also after the next pull", async () => {
    hub.files['tiny-Q4_K_M.kvprofile'] = await profileOf(sha256(bytes), 1);
    const first = await get();
    await new Promise(resolve => setTimeout(resolve, 10));
    const { path, profile } = await get({ profile: other });
    expect(profile?.path).not.toBe(first.profile?.path);
    await get();
    expect((await findProfile(path, sha256(bytes))).path).toBe(profile?.path);
  });

  it('replaces that of another repository, even of the same size', async () => {
    hub.repos['else/profiles'] = { 'a.kvprofile': await profileOf(sha256(bytes), 1) };
    await get({ profile: 'else/profiles' });
    const { path, profile } = await get({ profile: other });
    expect((await findProfile(path, sha256(bytes))).profile?.provenance.seed).toBe(0);
    expect(snapshot()).toEqual([model, basename(profile?.path ?? '')].sort());
  });

  it('a foreign or missing one is refused, and the model still counts', async () => {
    const wrong = await get({ profile: `${other}:sub/big-Q8_0.kvprofile` });
    expect(wrong.profileProblem).toMatch(/is the profile of another model/);
    hub.repos[other] = {};
    expect((await get({ profile: other })).profileProblem).toMatch(/has no profile \(.kvprofile\)/);
    expect(existsSync(wrong.path)).toBe(true);
    expect(snapshot()).toEqual([model]);
  });

  it.each(['', 'repo', '../x', './a/b', 'a/b/c', 'a/b.kvprofile', 'a/b:../c.kvprofile'])(
    '%j is not a name: rejected before any request',
    async profile => {
      await expect(get({ profile })).rejects.toThrow(InputError);
      expect(hub.requests).toEqual([]);
    },
  );
});

it('removing the model removes the profiles next to it', async () => {
  hub.files['tiny-Q4_K_M.kvprofile'] = own;
  hub.repos['someone/profiles'] = { 'a.kvprofile': await profileOf(sha256(bytes), 1) };
  await get();
  await get({ profile: 'someone/profiles' });
  expect(snapshot()).toHaveLength(3);
  const [{ paths }] = await listModels({ env: hub.env });
  expect(paths).toEqual([join(dir(), 'snapshots', commit, model)]);
  expect(await removeModel(repo, { env: hub.env })).toBe(bytes.length + 2 * own.bytes.length);
  expect(existsSync(dir())).toBe(false);
});

describe('a profile alone', () => {
  const fetchProfile = (file?: string, modelFile?: string) =>
    pullProfile({ repo, file }, { env: hub.env, retryDelayMs: 1, modelFile });

  it('is downloaded once, and then found without the network', async () => {
    hub.files = { 'a.kvprofile': foreign };
    const path = await fetchProfile();
    expect(path).toBe(join(dir(), 'snapshots', commit, 'a.kvprofile'));
    hub.requests.length = 0;
    expect(await fetchProfile()).toBe(path);
    expect(await fetchProfile('a.kvprofile')).toBe(path);
    expect(hub.requests).toEqual([]);
  });

  it('is chosen by the name of the model', async () => {
    hub.files = { 'tiny-Q4_K_M.kvprofile': own, 'b.kvprofile': foreign };
    expect(await fetchProfile(undefined, model)).toMatch(/tiny-Q4_K_M.kvprofile$/);
    await expect(fetchProfile(undefined, 'c.gguf')).resolves.toMatch(/tiny-Q4_K_M.kvprofile$/);
  });

  it('is checked', async () => {
    hub.files = { 'a.kvprofile': damaged };
    await expect(fetchProfile()).rejects.toThrow(/a.kvprofile cannot be used/);
    expect(blobs()).toEqual([]);
    hub.hubFaults = [respondWith(404)];
    await expect(fetchProfile()).rejects.toThrow(NetworkError);
  });
});
