/**
 * How fast leaves come back from each tier, against the plain operation: host against a copy of memory, disk against
 * reading the same file, Redis against a pipelined GET of the same sizes. `node .cache/bench/bench/stores.js [url]`
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { LeafKey } from '../src/cache/leaf-key.ts';
import type { CacheRecord } from '../src/cache/record.ts';
import { openDiskStore } from '../src/cache/store/disk-store.ts';
import { createHostStore } from '../src/cache/store/host-store.ts';
import type { LeafStore } from '../src/cache/store/leaf-store.ts';
import { openRedisStore } from '../src/cache/store/redis-store.ts';
import { wasmSupport } from '../src/kernel/wasm/support.ts';

const LEAF_BYTES = 2 ** 20;
const LEAVES = 256;
const ROUNDS = 5;
const model = 'ab'.repeat(32);

const leaves = Array.from({ length: LEAVES }, (_, i): CacheRecord => {
  const key = new Uint8Array(32) as LeafKey;
  new DataView(key.buffer).setUint32(0, i);
  const payload = Uint8Array.from({ length: LEAF_BYTES }, (_, k) => (k * (i + 3)) >> 2);
  return { kind: 'leaf', key, payload };
});
/** Where a leaf goes: the memory of a device. */
const target = new Uint8Array(LEAF_BYTES);

async function warm(store: LeafStore, isChecked = false): Promise<void> {
  let i = 0;
  for await (const payload of store.get(leaves)) {
    target.set(payload);
    if (isChecked && Buffer.compare(target, leaves[i].payload) !== 0) throw new Error(`leaf ${i} is wrong`);
    i++;
  }
  if (i !== LEAVES) throw new Error(`only ${i} of ${LEAVES} leaves`);
}

/** GB/s of the fastest of some rounds. Both are run in turn, since other processes disturb them. */
async function compare(name: string, store: LeafStore, plain: () => Promise<void>): Promise<void> {
  await store.put(leaves);
  await store.flush();
  await warm(store, true);
  const best = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (let round = 0; round < ROUNDS; round++)
    for (const [i, run] of [plain, () => warm(store)].entries()) {
      const start = performance.now();
      await run();
      best[i] = Math.min(best[i], performance.now() - start);
    }
  const [plainRate, rate] = best.map(ms => (LEAVES * LEAF_BYTES) / ms / 1e6);
  console.log(
    `${name}: ${rate.toFixed(2)} GB/s, plain ${plainRate.toFixed(2)} GB/s, ratio ${(rate / plainRate).toFixed(2)}`,
  );
}

// Allows relaxed SIMD, as opening a device does: checksums use it.
wasmSupport();

const host = createHostStore({ capacity: 2 * LEAVES * LEAF_BYTES });
await compare('host against memcpy', host, async () => {
  for (const { payload } of leaves) target.set(payload);
});

const folder = mkdtempSync(join(tmpdir(), 'kvasir-bench-'));
const segmentBytes = 2 * LEAVES * LEAF_BYTES;
const disk = await openDiskStore({ path: folder, model, capacity: 8 * segmentBytes, segmentBytes });
await compare('disk against reading the file', disk, async () => {
  const [name] = readdirSync(join(folder, model.slice(0, 16))).filter(name => name.endsWith('.seg'));
  const file = await open(join(folder, model.slice(0, 16), name));
  // What dd bs=1M does.
  for (;;) if ((await file.read(target, 0, LEAF_BYTES)).bytesRead === 0) break;
  await file.close();
});
await disk.close();
rmSync(folder, { recursive: true });

const [url] = process.argv.slice(2);
if (url) {
  const { createClient, RESP_TYPES } = await import('redis');
  const client = createClient({ url, commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } } });
  await client.connect();
  const PART = LEAF_BYTES / 2;
  const keys = Array.from({ length: 2 * LEAVES }, (_, i) => `kvasir-bench:${i}`);
  await Promise.all(keys.map(key => client.set(key, Buffer.alloc(PART, 1))));
  const redis = await openRedisStore({ urls: [url], model, timeoutMs: 10_000 });
  await compare('redis against pipelined GET', redis, async () => {
    for (let at = 0; at < keys.length; at += 16) {
      const values = await Promise.all(keys.slice(at, at + 16).map(key => client.get(key)));
      for (const value of values) target.set(value as unknown as Uint8Array);
    }
  });
  await redis.delete(leaves);
  await redis.close();
  await client.unlink(keys);
  client.destroy();
}
