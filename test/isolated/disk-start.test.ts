/** Start-up: 10 GB of segments in less than a second. Payloads are holes of sparse files, which take no space. */
import { closeSync, ftruncateSync, mkdirSync, mkdtempSync, openSync, readdirSync, rmSync, writeSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { crc32c } from '../../src/store/crc32c.ts';
import {
  encodePrefix,
  encodeSegmentHeader,
  PREFIX_BYTES,
  SEGMENT_HEADER_BYTES,
  writeIndex,
} from '../../src/store/disk-segment.ts';
import { openDiskStore } from '../../src/store/disk-store.ts';
import type { LeafKey } from '../../src/store/leaf-key.ts';
import { tenantId } from '../../src/store/leaf-store.ts';
import { openNodeFileSystem } from '../../src/store/node-file-system.ts';
import { HEADER_BYTES } from '../../src/store/record.ts';
import { cpuTime } from '../support/cpu-time.ts';

const SEGMENTS = 40;
const RECORDS = 500;
const PAYLOAD = new Uint8Array(512 * 1024);
const MAX_MS = 1000;
const READ_SEGMENT = 20;
const READ_RECORDS = 3;

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

/** The entry of a payload that nobody reads, so it needs no checksum: those of 10 GB would take most of the time. */
function unreadPrefix(id: Uint8Array, entry: Omit<Parameters<typeof encodePrefix>[1], 'payload'>): Uint8Array {
  const bytes = encodePrefix(id, { ...entry, payload: new Uint8Array() });
  const view = new DataView(bytes.buffer);
  view.setUint32(PREFIX_BYTES - HEADER_BYTES + 12, PAYLOAD.length, true);
  view.setUint32(4, crc32c(bytes.subarray(8), crc32c(id)), true);
  return bytes;
}

/** CPU milliseconds of the same reads and nothing else: how fast the machine is now. */
async function readAllPrefixes(folder: string): Promise<number> {
  const cpu = cpuTime();
  for (const name of readdirSync(folder).filter(name => name.endsWith('.seg'))) {
    const file = await open(join(folder, name));
    const prefix = new Uint8Array(PREFIX_BYTES);
    for (let i = 0; i < RECORDS; i++)
      await file.read(prefix, 0, PREFIX_BYTES, SEGMENT_HEADER_BYTES + i * (PREFIX_BYTES + PAYLOAD.length));
    await file.close();
  }
  return cpuTime() - cpu;
}

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
        stored: Date.now(),
        tenant,
      };
      const isRead = segment === READ_SEGMENT && i < READ_RECORDS;
      prefixes.push(isRead ? encodePrefix(id, { ...entry, payload: PAYLOAD }) : unreadPrefix(id, entry));
      writeSync(file, prefixes[i], 0, PREFIX_BYTES, SEGMENT_HEADER_BYTES + i * (PREFIX_BYTES + PAYLOAD.length));
    }
    ftruncateSync(file, SEGMENT_HEADER_BYTES + RECORDS * (PREFIX_BYTES + PAYLOAD.length));
    closeSync(file);
    if (variant === 'with') await writeIndex(fs, path, id, prefixes);
  }
  const options = { path: root, model, capacity: 20e9, segmentBytes: 256 * 2 ** 20 };
  let store = await openDiskStore(options);
  let ms = Number.POSITIVE_INFINITY;
  // Other processes take turns on the clock, and garbage of other tests may be collected in this time: so the shorter of
  // clock and CPU time, again if that was not enough.
  for (let tries = 0; ms >= MAX_MS && tries < 5; tries++) {
    await store.close();
    const [clock, cpu] = [performance.now(), cpuTime()];
    store = await openDiskStore(options);
    ms = Math.min(performance.now() - clock, cpuTime() - cpu);
  }
  expect(store.stats).toMatchObject({ records: SEGMENTS * RECORDS, errors: 0 });
  expect(store.stats.bytes).toBeGreaterThan(10e9);
  const chain = Array.from({ length: READ_RECORDS }, (_, i) => ({
    kind: 'leaf' as const,
    key: keyOf(READ_SEGMENT * RECORDS + i),
  }));
  let found = 0;
  for await (const payload of store.get(chain)) found += payload.length;
  expect(found).toBe(READ_RECORDS * PAYLOAD.length);
  await store.close();
  // On a slower machine: no more than the plain reads take, of which an index saves most and larger reads some.
  expect(ms).toBeLessThan(Math.max(MAX_MS, await readAllPrefixes(folder)));
});
