import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, test } from 'vitest';
import { withLock } from './lock.ts';

const dir = mkdtempSync(join(tmpdir(), 'kvasir-lock-'));
afterAll(() => rmSync(dir, { recursive: true }));

const fast = { heartbeatMs: 20, staleMs: 200 };

test('admits one holder at a time, even for longer than the stale timeout', async () => {
  let inside = 0;
  let maxInside = 0;
  const work = async () => {
    maxInside = Math.max(maxInside, ++inside);
    await sleep(400);
    inside--;
  };
  await Promise.all([1, 2, 3].map(() => withLock(join(dir, 'shared'), work, fast)));
  expect(maxInside).toBe(1);
});

test('exactly one waiter takes over the lock of a dead process', async () => {
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

test('is released on failure, and waiting can be aborted', async () => {
  const path = join(dir, 'freed');
  await expect(withLock(path, () => Promise.reject(new Error('no')), fast)).rejects.toThrow('no');
  let held: Promise<void> | undefined;
  await new Promise<void>(entered => {
    held = withLock(
      path,
      () => {
        entered();
        return sleep(300);
      },
      fast,
    );
  });
  await expect(withLock(path, async () => {}, { ...fast, signal: AbortSignal.timeout(60) })).rejects.toThrow();
  await held;
});
