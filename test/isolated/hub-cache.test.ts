import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, expect, test, vi } from 'vitest';
import { linkSnapshot } from '../../src/hub/cache.ts';

vi.mock('node:fs/promises', async original => {
  const real = await original<typeof fs>();
  return { ...real, symlink: vi.fn(real.symlink), link: vi.fn(real.link) };
});

const dir = mkdtempSync(join(tmpdir(), 'kvasir-cache-'));
afterAll(() => rmSync(dir, { recursive: true }));

test('falls back to a hard link without symlinks, then to a copy', async () => {
  mkdirSync(join(dir, 'blobs'));
  const blob = join(dir, 'blobs', 'b');
  writeFileSync(blob, 'bytes');
  vi.mocked(fs.symlink).mockRejectedValue(new Error('EPERM'));
  const linked = await linkSnapshot(dir, 'c', 'linked.gguf', 'b');
  expect(statSync(linked).ino).toBe(statSync(blob).ino);
  expect(await linkSnapshot(dir, 'c', 'linked.gguf', 'b')).toBe(linked);

  vi.mocked(fs.link).mockRejectedValue(new Error('EXDEV'));
  const copied = await linkSnapshot(dir, 'c', 'copied.gguf', 'b');
  expect(statSync(copied).ino).not.toBe(statSync(blob).ino);
  expect(readFileSync(copied, 'utf8')).toBe('bytes');
  expect(readdirSync(dirname(copied)).sort()).toEqual(['copied.gguf', 'linked.gguf']);
});
