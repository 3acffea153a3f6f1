import { Command } from 'commander';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { InputError } from '../errors.ts';
import { type FakeHub, fakeHub, repo, someBytes } from '../model/hub/fake.case.ts';
import { addPull } from './pull.ts';

const bytes = someBytes(100_000);
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

test('prints the path alone on stdout, the rest on stderr', async () => {
  await kvasir('pull', repo);
  expect(out).toMatch(/^\/.*m-Q4_K_M\.gguf\n$/);
  expect(err).toContain('has Q4_K_M, Q8_0; taking Q4_K_M');
  expect(err).toContain(`${repo}:Q4_K_M: 100 kB, checked and ready`);
  await kvasir('pull', repo);
  expect(err).toContain('was here already');
});

test('--json --quiet prints the result and nothing else', async () => {
  await kvasir('pull', `${repo}:q8_0`, '--json', '--quiet', '--revision', 'v1');
  expect(JSON.parse(out)).toMatchObject({ repo, revision: 'v1', quant: 'Q8_0', files: [{ bytes: 100_000 }] });
  expect(err).toBe('');
});

test('Ctrl-C says how to go on', async () => {
  hub.hangAfter = 50_000;
  const running = kvasir('pull', repo, '--revision', 'v1');
  await vi.waitFor(() => expect(hub.served).toBe(50_000));
  const ours = process.listeners('SIGINT').at(-1);
  ours?.('SIGINT');
  await running;
  expect(process.exitCode).toBe(130);
  expect(err).toContain(`To go on from there: kvasir pull ${repo} --revision v1`);
  expect(out).toBe('');
  expect(process.listeners('SIGINT')).not.toContain(ours);
});

test('errors are the caller’s to print', async () => {
  await expect(kvasir('pull', 'nonsense')).rejects.toThrow(InputError);
});
