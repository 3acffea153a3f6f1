import { readdirSync } from 'node:fs';
import { Command } from 'commander';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { type FakeHub, fakeHub, pseudoRandomBytes, repo, sha256 } from '../../test/support/fake-hub.ts';
import { smallContent } from '../../test/support/profile.ts';
import { encodeProfile } from '../plan/profile.ts';
import { profilePath, writeFileAtomic } from '../plan/profile-store.ts';
import { InputError } from '../util/errors.ts';
import { addList } from './list.ts';
import { addPull } from './pull.ts';
import { addRemove } from './remove.ts';

const bytes = pseudoRandomBytes(100_000);
let hub: FakeHub;
let out: string;
let err: string;

beforeEach(async () => {
  hub = await fakeHub({ 'm-Q4_K_M.gguf': { bytes }, 'm-Q8_0.gguf': { bytes } });
  vi.stubEnv('HF_HUB_CACHE', undefined);
  vi.stubEnv('HF_HUB_OFFLINE', undefined);
  vi.stubEnv('KVASIR_CACHE', `${hub.env.HF_HOME}/kvasir`);
  for (const [name, value] of Object.entries(hub.env)) vi.stubEnv(name, value);
  out = err = '';
  vi.spyOn(console, 'log').mockImplementation(line => {
    out += `${line}\n`;
  });
  vi.spyOn(console, 'error').mockImplementation(line => {
    err += `${line}\n`;
  });
  vi.spyOn(process.stderr, 'write').mockImplementation(text => {
    err += text;
    return true;
  });
});

afterEach(async () => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
  process.exitCode = undefined;
  await hub.close();
});

async function kvasir(...args: string[]) {
  const program = new Command().exitOverride();
  addPull(program);
  addList(program);
  addRemove(program);
  // The files are random bytes, no models that run.
  await program.parseAsync(args[0] === 'pull' ? [...args, '--force'] : args, { from: 'user' });
}

test('prints only the path on stdout and everything else on stderr', async () => {
  await kvasir('pull', repo);
  expect(out).toMatch(/^\/.*m-Q4_K_M\.gguf\n$/);
  expect(err).toContain('has Q4_K_M, Q8_0; using Q4_K_M');
  expect(err).toContain(`${repo}:Q4_K_M: 100 kB, downloaded and verified`);
  await kvasir('pull', repo);
  expect(err).toContain('already downloaded');
});

test('--json --quiet prints the result and nothing else', async () => {
  await kvasir('pull', `${repo}:q8_0`, '--json', '--quiet', '--revision', 'v1');
  expect(JSON.parse(out)).toMatchObject({ repo, revision: 'v1', quant: 'Q8_0', files: [{ bytes: 100_000 }] });
  expect(err).toBe('');
});

test('Ctrl-C prints the command that resumes the download', async () => {
  hub.hangAfter = 50_000;
  const running = kvasir('pull', repo, '--revision', 'v1');
  await expect.poll(() => hub.servedBytes).toBe(50_000);
  const ours = process.listeners('SIGINT').at(-1);
  ours?.('SIGINT');
  await running;
  expect(process.exitCode).toBe(130);
  expect(err).toContain(`To resume: kvasir pull ${repo} --revision v1`);
  expect(out).toBe('');
  expect(process.listeners('SIGINT')).not.toContain(ours);
});

test('throws errors for the caller to print', async () => {
  await expect(kvasir('pull', 'nonsense')).rejects.toThrow(InputError);
});

const profileOf = async (fingerprint: string) => ({
  bytes: Buffer.from(await encodeProfile({ ...smallContent, fingerprint })),
});

test('fetches the profile with the model; list shows it, rm removes it', async () => {
  hub.files['m-Q4_K_M.kvprofile'] = await profileOf(sha256(bytes));
  hub.files['m-Q8_0.gguf'] = { bytes: pseudoRandomBytes(1000, 9) };
  await kvasir('pull', repo);
  expect(err).toMatch(/profile m-Q4_K_M\.kvprofile: \d+ B, checked/);
  await kvasir('pull', `${repo}:Q8_0`);
  out = '';
  await kvasir('list');
  expect(out).toMatch(/^name .* profile {2}last used$/m);
  expect(out).toMatch(/:Q4_K_M .* yes +\d/);
  expect(out).toMatch(/:Q8_0 .* - +\d/);
  out = '';
  await kvasir('list', '--json');
  expect(JSON.parse(out)[0]).toMatchObject({ profile: expect.stringMatching(/m-Q4_K_M\.kvprofile$/) });
  await kvasir('rm', `${repo}:Q4_K_M`, '--yes');
  expect(readdirSync(hub.env.HF_HOME, { recursive: true }).filter(name => `${name}`.includes('kvprofile'))).toEqual([]);
});

test('a calibrated model is listed with its profile', async () => {
  await kvasir('pull', `${repo}:Q8_0`);
  await writeFileAtomic(await profilePath(sha256(bytes)), new Uint8Array(1));
  out = '';
  await kvasir('list');
  expect(out).toMatch(/:Q8_0 .* yes +\d/);
});

test('a refused profile is explained; it is a failure only if it was asked for', async () => {
  hub.files['m-Q4_K_M.kvprofile'] = await profileOf('cd'.repeat(32));
  await kvasir('pull', repo, '--quiet');
  expect(out).toMatch(/m-Q4_K_M\.gguf\n$/);
  expect(err).toMatch(/^No profile was stored: .*is the profile of another model/);
  expect(process.exitCode).toBeUndefined();
  hub.repos['a/b'] = {};
  await kvasir('pull', repo, '--profile', 'a/b');
  expect(err).toMatch(/No profile was stored: a\/b has no profile/);
  expect(process.exitCode).toBe(1);
});
