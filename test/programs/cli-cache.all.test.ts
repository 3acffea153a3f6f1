/** `kvasir cache` on a real folder. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { openDiskStore } from '../../src/store/disk-store.ts';
import { kvasir } from '../support/command.ts';
import { mimir } from '../support/mimir.ts';
import { testRecord } from '../support/store-records.ts';

const path = mkdtempSync(join(tmpdir(), 'kvasir-cache-'));
afterAll(() => rmSync(path, { recursive: true }));

it('lists what is stored by tenant, and deletes it', async () => {
  const model = 'ab'.repeat(32);
  const store = await openDiskStore({ path, model, capacity: 1e8 });
  await store.put([1, 2, 3].map(testRecord), 'alice');
  await store.put([4, 5].map(testRecord));
  const busy = await kvasir(['cache', 'rm', path, '--all']);
  expect(busy.stderr).toMatch(/in use by process/);
  expect(busy.status).toBe(1);
  await store.close();
  const { stdout } = await kvasir(['cache', 'ls', path]);
  expect(stdout).toMatch(/abababababababab +[0-9a-f]{32} +3 /);
  expect(stdout).toMatch(/abababababababab +\(none\) +2 /);
  expect((await kvasir(['cache', 'rm', path])).stderr).toMatch(/Name what to delete: --tenant NAME/);
  // A variable of a script that is not set.
  expect((await kvasir(['cache', 'rm', path, '--model', ''])).stdout).toMatch(/^Deleted 0 records/);
  expect((await kvasir(['cache', 'rm', path, '--tenant', 'alice'])).stdout).toMatch(/^Deleted 3 records/);
  const left = JSON.parse((await kvasir(['cache', 'ls', path, '--json'])).stdout);
  expect(left).toMatchObject([{ model: 'abababababababab', records: 2 }]);
  await kvasir(['cache', 'rm', path, '--all']);
  expect((await kvasir(['cache', 'ls', path])).stdout).toBe(`${path} holds nothing.\n`);
});

it('`kvasir doctor --tier` tries each tier', async () => {
  const { stdout } = await kvasir(['doctor', '--tier', `host=64MB,disk=${path}:64MB,redis=redis://127.0.0.1:1`]);
  expect(stdout).toMatch(/^tiers +host: first record after [\d.]+ ms, reads .*\/s, writes .*\/s$/m);
  expect(stdout).toMatch(/^ +disk .*: first record after/m);
  expect(stdout).toMatch(/^ +redis: not available: Redis does not answer/m);
  expect((await kvasir(['cache', 'ls', path])).stdout).toBe(`${path} holds nothing.\n`);
});

it('`kvasir run --tier` finds the pages of an earlier run', async () => {
  const text = 'The hall has a red door, and the door has a number. '.repeat(20);
  const args = ['run', mimir, text, '--max-tokens', '2', '--temperature', '0', '--stats', '--device', 'wasm'];
  args.push('--tier', `disk=${path}:64MB`);
  const first = await kvasir(args);
  expect(first.stderr).toMatch(/ tokens \(0 reused\)/);
  const second = await kvasir(args);
  expect(second.stderr).toMatch(/ tokens \([1-9][\d,]* reused\)[\s\S]*\ndisk .* records found/);
  expect(second.stdout).toBe(first.stdout);
});
