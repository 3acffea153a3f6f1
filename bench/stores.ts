/**
 * How fast do leaves come back from each tier, compared with the plain operation? Host memory with memcpy, disk with
 * `dd bs=1M` of the same bytes in the page cache, Redis with pipelined GETs of the same sizes.
 *
 * Validates: every byte that comes back.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { formatTable } from '../src/cli/table.ts';
import { openDiskStore } from '../src/store/disk-store.ts';
import { createHostStore } from '../src/store/host-store.ts';
import type { LeafKey } from '../src/store/leaf-key.ts';
import type { LeafStore } from '../src/store/leaf-store.ts';
import type { CacheRecord } from '../src/store/record.ts';
import { openRedisStore } from '../src/store/redis-store.ts';
import { formatBytes, parseBytes } from '../src/util/units.ts';
import { noRedis, startRedis } from '../test/support/redis-server.ts';

interface Options {
  'leaf-bytes': string;
  leaves: string;
  rounds: string;
  /** Of a Redis or Valkey server. Default: one is started. */
  url?: string;
  json: boolean;
}

interface Row {
  tier: string;
  leafBytes: number;
  leaves: number;
  /** Bytes per second from the store, and by the plain operation. */
  rate: number;
  plainRate: number;
}

/** A store, and the ms that the plain operation takes for so many of the leaves. */
interface Candidate {
  store: LeafStore;
  plain(count: number): Promise<number>;
  close(): Promise<void>;
}

const model = 'ab'.repeat(32);
/** A measurement repeats until it has moved this much. */
const MIN_BYTES = 64 * 2 ** 20;

export async function benchStores(options: Options): Promise<void> {
  const counts = options.leaves.split(',').map(Number);
  const rows: Row[] = [];
  await withRedis(options.url, async url => {
    for (const leafBytes of options['leaf-bytes'].split(',').map(parseBytes)) {
      const leaves = Array.from({ length: Math.max(...counts) }, (_, i) => createLeaf(i, leafBytes));
      for (const open of [openHost, openDisk, ...(url ? [openRedis(url)] : [])]) {
        const candidate = await open(leaves);
        try {
          rows.push(...(await measure(candidate, leaves, counts, Number(options.rounds))));
        } finally {
          await candidate.close();
        }
      }
    }
  });
  console.log(options.json ? JSON.stringify(rows, null, 1) : render(rows));
}

/** Runs with the url of a server: the one given, or one that is started for it. Without any, it says so. */
export async function withRedis(given: string | undefined, run: (url?: string) => Promise<void>): Promise<void> {
  if (!given && noRedis) console.error(`Redis is not measured: ${noRedis}, and no --url was given.`);
  if (given || noRedis) return run(given);
  const server = await startRedis();
  try {
    await run(server.url);
  } finally {
    await server.stop();
  }
}

function createLeaf(number: number, bytes: number): CacheRecord {
  const key = new Uint8Array(32) as LeafKey;
  new DataView(key.buffer).setUint32(0, number);
  const payload = new Uint8Array(bytes);
  for (let i = 0; i < bytes; i++) payload[i] = (i * (number + 3)) >> 2;
  return { kind: 'leaf', key, payload };
}

/** The fastest of some rounds. Store and plain operation take turns, since other processes disturb them. */
async function measure(
  { store, plain }: Candidate,
  leaves: readonly CacheRecord[],
  counts: readonly number[],
  rounds: number,
): Promise<Row[]> {
  const leafBytes = leaves[0].payload.length;
  const target = new Uint8Array(leafBytes);
  await store.put(leaves);
  await store.flush();
  let found = 0;
  for await (const payload of store.get(leaves))
    if (Buffer.compare(payload, leaves[found++].payload) !== 0)
      throw new Error(`${store.name}: leaf ${found} is wrong`);
  if (found !== leaves.length) throw new Error(`${store.name}: only ${found} of ${leaves.length} leaves`);
  const rows: Row[] = [];
  for (const count of counts) {
    const [chain, bytes] = [leaves.slice(0, count), count * leafBytes];
    let [best, bestPlain] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (let done = 0; done < rounds * Math.max(bytes, MIN_BYTES); done += bytes) {
      bestPlain = Math.min(bestPlain, await plain(count));
      const start = performance.now();
      // What a device does with them.
      for await (const payload of store.get(chain)) target.set(payload);
      best = Math.min(best, performance.now() - start);
    }
    rows.push({
      ...{ tier: store.name, leafBytes, leaves: count },
      ...{ rate: (bytes * 1000) / best, plainRate: (bytes * 1000) / bestPlain },
    });
  }
  return rows;
}

const timed = async (run: () => unknown): Promise<number> => {
  const start = performance.now();
  await run();
  return performance.now() - start;
};

async function openHost(leaves: readonly CacheRecord[]): Promise<Candidate> {
  const leafBytes = leaves[0].payload.length;
  const store = createHostStore({ capacity: leaves.length * leafBytes });
  const target = new Uint8Array(leafBytes);
  const plain = (count: number) =>
    timed(() => {
      for (const { payload } of leaves.slice(0, count)) target.set(payload);
    });
  return { store, plain, close: () => store.close() };
}

async function openDisk(leaves: readonly CacheRecord[]): Promise<Candidate> {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-bench-'));
  const leafBytes = leaves[0].payload.length;
  const segmentBytes = leaves.length * (leafBytes + 4096);
  const store = await openDiskStore({ path: folder, model, capacity: 8 * segmentBytes, segmentBytes });
  const plain = async (count: number) => {
    const inside = join(folder, model.slice(0, 16));
    const name = (await readdir(inside)).find(name => name.endsWith('.seg'))!;
    const bytes = count * leafBytes;
    const args = [`if=${join(inside, name)}`, 'of=/dev/null', 'bs=1M', 'iflag=count_bytes', `count=${bytes}`];
    const { stderr } = await promisify(execFile)('dd', args, { env: { ...process.env, LC_ALL: 'C' } });
    // Its own time, without the start of the process.
    return Number(stderr.match(/copied, ([\d.e-]+) s/)![1]) * 1000;
  };
  return {
    ...{ store, plain },
    async close() {
      await store.close();
      await rm(folder, { recursive: true });
    },
  };
}

const openRedis =
  (url: string) =>
  async (leaves: readonly CacheRecord[]): Promise<Candidate> => {
    const { createClient, RESP_TYPES } = await import('redis');
    const client = createClient({ url, commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } } });
    await client.connect();
    const store = await openRedisStore({ urls: [url], model, timeoutMs: 10_000 });
    const target = new Uint8Array(leaves[0].payload.length);
    const keys = leaves.map((_, i) => `kvasir-bench:${i}`);
    for (const [i, { payload }] of leaves.entries()) await client.set(keys[i], Buffer.from(payload.buffer));
    const plain = (count: number) =>
      timed(async () => {
        for (let at = 0; at < count; at += 8) {
          const values = await Promise.all(keys.slice(at, Math.min(at + 8, count)).map(key => client.get(key)));
          for (const value of values) target.set(value as unknown as Uint8Array);
        }
      });
    return {
      ...{ store, plain },
      async close() {
        await store.delete(leaves);
        await store.close();
        await client.unlink(keys);
        client.destroy();
      },
    };
  };

const render = (rows: readonly Row[]): string =>
  formatTable(
    ['tier', 'leaf', 'leaves', 'read', 'plain', 'ratio'],
    rows.map(({ tier, leafBytes, leaves, rate, plainRate }) => [
      ...[tier, formatBytes(leafBytes), `${leaves}`, `${formatBytes(rate)}/s`, `${formatBytes(plainRate)}/s`],
      (rate / plainRate).toFixed(2),
    ]),
  );
