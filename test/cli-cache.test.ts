/** `kvasir cache` on a real folder. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { openDiskStore } from '../src/cache/store/disk-store.ts';
import { kvasir } from './command.ts';
import { testRecord } from './store-records.ts';

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
  expect((await kvasir(['cache', 'rm', path, '--tenant', 'alice'])).stdout).toMatch(/^Deleted 3 records/);
  const left = JSON.parse((await kvasir(['cache', 'ls', path, '--json'])).stdout);
  expect(left).toMatchObject([{ model: 'abababababababab', records: 2 }]);
  await kvasir(['cache', 'rm', path, '--all']);
  expect((await kvasir(['cache', 'ls', path])).stdout).toBe(`${path} holds nothing.\n`);
});
