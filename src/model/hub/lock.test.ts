import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, test } from 'vitest';
import { withLock } from './lock.ts';

const dir = mkdtempSync(join(tmpdir(), 'kvasir-lock-'));
afterAll(() => rmSync(dir, { recursive: true }));

const fast = { beatMs: 20, staleMs: 200 };

test('one at a time, longer than a lock goes stale', async () => {
  let inside = 0;
  let most = 0;
  const work = async () => {
    most = Math.max(most, ++inside);
    await sleep(400);
    inside--;
  };
  await Promise.all([1, 2, 3].map(() => withLock(join(dir, 'shared'), work, fast)));
  expect(most).toBe(1);
});

test("a dead process's lock is taken, by one waiter alone", async () => {
  const path = join(dir, 'stale');
  writeFileSync(path, 'nobody');
  let inside = 0;
  const work = async () => {
    expect(++inside).toBe(1);
    await sleep(50);
    inside--;
  };
  await Promise.all([1, 2, 3, 4].map(() => withLock(path, work, fast)));
  expect(readdirSync(dir)).toEqual([]);
});

test('a failure frees it, an abort ends the wait', async () => {
  const path = join(dir, 'freed');
  await expect(withLock(path, () => Promise.reject(new Error('no')), fast)).rejects.toThrow('no');
  const held = withLock(path, () => sleep(300), fast);
  await expect(withLock(path, async () => {}, { ...fast, signal: AbortSignal.timeout(60) })).rejects.toThrow();
  await held;
});
