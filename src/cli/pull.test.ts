import { Command } from 'commander';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { InputError } from '../errors.ts';
import { type FakeHub, fakeHub, pseudoRandomBytes, repo } from '../model/hub/fake-hub.case.ts';
import { addPull } from './pull.ts';

const bytes = pseudoRandomBytes(100_000);
let hub: FakeHub;
let out: string;
let err: string;

beforeEach(async () => {
  hub = await fakeHub({ 'm-Q4_K_M.gguf': { bytes }, 'm-Q8_0.gguf': { bytes } });
  vi.stubEnv('HF_HUB_CACHE', undefined);
  vi.stubEnv('HF_HUB_OFFLINE', undefined);
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
  await program.parseAsync(args, { from: 'user' });
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
  await vi.waitFor(() => expect(hub.servedBytes).toBe(50_000));
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
