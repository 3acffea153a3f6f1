/** Start-up: 10 GB of segments in less than a second. Payloads are holes of sparse files, which take no space. */
import { closeSync, ftruncateSync, mkdirSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { crc32c } from '../crc32c.ts';
import type { LeafKey } from '../leaf-key.ts';
import { encodePrefix, encodeSegmentHeader, PREFIX_BYTES, SEGMENT_HEADER_BYTES, writeIndex } from './disk-segment.ts';
import { openDiskStore } from './disk-store.ts';
import { openNodeFileSystem } from './file-system.ts';
import { tenantId } from './leaf-store.ts';

const SEGMENTS = 40;
const RECORDS = 500;
const PAYLOAD = new Uint8Array(512 * 1024);
const MAX_MS = 1000;

const root = mkdtempSync(join(tmpdir(), 'kvasir-start-'));
afterAll(() => rmSync(root, { recursive: true }));

/** Keys are random, as those of leaves are. */
const keyOf = (number: number): LeafKey => {
  const key = new Uint8Array(32);
  const view = new DataView(key.buffer);
  view.setUint32(0, number);
  view.setUint32(4, crc32c(key));
  return key;
};

it.each(['with', 'without'])('opens 10 GB of segments in less than a second, %s their indexes', async variant => {
  const fs = await openNodeFileSystem();
  const model = (variant === 'with' ? 'a' : 'b').repeat(64);
  const folder = join(root, model.slice(0, 16));
  mkdirSync(folder);
  const id = new Uint8Array(8);
  const tenant = tenantId('');
  for (let segment = 1; segment <= SEGMENTS; segment++) {
    const path = join(folder, `${String(segment).padStart(10, '0')}.seg`);
    const file = openSync(path, 'wx');
    writeSync(file, encodeSegmentHeader({ id, created: Date.now() }));
    const prefixes: Uint8Array[] = [];
    for (let i = 0; i < RECORDS; i++) {
      const entry = {
        kind: 'leaf' as const,
        key: keyOf(segment * RECORDS + i),
        payload: PAYLOAD,
        stored: Date.now(),
        tenant,
      };
      prefixes.push(encodePrefix(id, entry));
      writeSync(file, prefixes[i], 0, PREFIX_BYTES, SEGMENT_HEADER_BYTES + i * (PREFIX_BYTES + PAYLOAD.length));
    }
    ftruncateSync(file, SEGMENT_HEADER_BYTES + RECORDS * (PREFIX_BYTES + PAYLOAD.length));
    closeSync(file);
    if (variant === 'with') await writeIndex(fs, path, id, prefixes);
  }
  const start = performance.now();
  const store = await openDiskStore({ path: root, model, capacity: 20e9, segmentBytes: 256 * 2 ** 20 });
  const ms = performance.now() - start;
  expect(store.stats).toMatchObject({ records: SEGMENTS * RECORDS, errors: 0 });
  expect(store.stats.bytes).toBeGreaterThan(10e9);
  const chain = [0, 1, 2].map(i => ({ kind: 'leaf' as const, key: keyOf(20 * RECORDS + i) }));
  let found = 0;
  for await (const payload of store.get(chain)) found += payload.length;
  expect(found).toBe(3 * PAYLOAD.length);
  await store.close();
  expect(ms).toBeLessThan(MAX_MS);
});
