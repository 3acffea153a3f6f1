/**
 * Records on disk, or in the storage of a site (OPFS), in a folder per model: a log of append-only segments
 * (disk-segment.ts) and an index in memory.
 *
 * Segments never change once they are written, so removing a record means copying the others to the end of the log,
 * syncing it, and removing the old segment: for deleted records, for segments that are mostly dead, and, to make room,
 * for the oldest segment, of which only those records are copied that were read since they were written (second chance).
 * At every moment the folder holds all live records, so it needs no journal.
 */
import { FormatError, InputError, KvasirError } from '../util/errors.ts';
import { fileError } from '../util/file-error.ts';
import { toHex } from '../util/sha256.ts';
import { formatBytes } from '../util/units.ts';
import { CHECK_DISK, createLog, type Entry, type NewEntry, type Segment } from './disk-log.ts';
import { MAX_READS, PREFIX_BYTES, SEGMENT_HEADER_BYTES, verifyEntry } from './disk-segment.ts';
import { type TenantUsage, usageOf } from './disk-usage.ts';
import type { FileSystem } from './file-system.ts';
import { createMeter, type LeafStore, nameText, type RecordName, type StoreOptions, tenantId } from './leaf-store.ts';
import { openNodeFileSystem } from './node-file-system.ts';
import type { CacheRecord } from './record.ts';

export interface DiskStoreOptions extends StoreOptions {
  /** A folder, which gets a folder per model. */
  path: string;
  /** Fingerprint of the model. */
  model: string;
  /** Max bytes of this model's files, apart from their indexes. */
  capacity: number;
  /** How long records are kept, in ms. Default: 7 days. */
  ttlMs?: number;
  /** Default: 1/64 of the capacity, from 1 MiB to 1 GiB. */
  segmentBytes?: number;
  /** Default: Node's. */
  fs?: FileSystem;
  now?: () => number;
}

export interface DiskStore extends LeafStore {
  /** What is stored of each tenant, by the tenant's id. */
  usage(): Map<string, TenantUsage>;
  /** Deletes all records of a tenant, or of all tenants. Returns whether it worked. */
  deleteTenant(tenant?: string): Promise<boolean>;
}

const DEFAULT_TTL_MS = 7 * 24 * 3600 * 1000;
const SWEEP_MS = 60_000;
/** One read, unless a record is longer: short, so that the first record is verified while the next ones are read. */
const READ_BYTES = 2 ** 19;
/** What is read ahead: no more, so that it is still in the processor's cache when it is verified. */
const READ_AHEAD_BYTES = 2 ** 20;
/** Reads at once: fewer if they are long, but at least two. */
const READ_AHEAD = 4;
/** Segments that are less than half full of live records are merged when there are this many. */
const MIN_MERGED = 4;

/** Entries that lie next to each other, and the read that fetches them. */
interface Run {
  entries: readonly Entry[];
  bytes: number;
  buffer: Uint8Array;
  isRead: Promise<boolean>;
}

/** Opens a store. Throws if the folder cannot be used, or another process uses it. */
export async function openDiskStore(options: DiskStoreOptions): Promise<DiskStore> {
  const { path, capacity, now = Date.now, ttlMs = DEFAULT_TTL_MS } = options;
  if (!(Number.isSafeInteger(capacity) && capacity > 0))
    throw new InputError(`The capacity of a disk store must be a whole number of bytes above 0; got ${capacity}.`);
  const { segmentBytes = Math.min(2 ** 30, Math.max(2 ** 20, Math.floor(capacity / 64))) } = options;
  const fs = options.fs ?? (await openNodeFileSystem());
  const folder = `${path}/${modelFolder(options.model)}`;
  const opened = (error: unknown) => {
    throw error instanceof KvasirError
      ? error
      : fileError(folder, 'opened', error as NodeJS.ErrnoException, CHECK_DISK);
  };
  await fs.makeFolder(folder).catch(opened);
  const lock = await fs.lock(folder).catch(opened);
  const meter = createMeter(options);
  const { stats } = meter;
  const log = createLog({ fs, folder, segmentBytes, now, onError: meter.error });
  /** Entries by `nameText`. */
  const index = new Map<string, Entry>();
  const buffers: Uint8Array[] = [];
  let isClosed = false;

  const add = (entry: Entry) => {
    const old = index.get(entry.name);
    old?.segment.live.delete(old);
    index.set(entry.name, entry);
    entry.segment.live.add(entry);
  };
  const drop = (entry: Entry) => {
    entry.segment.live.delete(entry);
    if (index.get(entry.name) === entry) index.delete(entry.name);
  };
  const isExpired = ({ stored }: Entry) => stored + ttlMs <= now();
  const find = (name: RecordName): Entry | undefined => {
    const entry = index.get(nameText(name));
    return entry && !isExpired(entry) ? entry : undefined;
  };

  const reportMediumError = (error: NodeJS.ErrnoException, act = 'written', path = folder): false => {
    if (error.code === undefined) throw error;
    meter.error(fileError(path, act, error, CHECK_DISK));
    return false;
  };

  /** One writer at a time. What fails is reported, and the rest goes on. */
  let last: Promise<unknown> = Promise.resolve();
  const exclusive = (act: string, run: () => Promise<unknown>): Promise<boolean> => {
    const result = last.then(run).then(
      isDone => isDone !== false,
      error => reportMediumError(error, act),
    );
    last = result.catch(() => {});
    return result;
  };

  /** Reads again what does not verify: a bit may have been flipped on the way. */
  const tryRead = async (entry: Entry, buffer: Uint8Array): Promise<CacheRecord | undefined> => {
    for (let tries = 0; tries < MAX_READS; tries++) {
      const record = (await log.read(entry, buffer)) ? verifyEntry(buffer, entry.name) : undefined;
      if (record) return record;
    }
    return undefined;
  };

  /** Reads and verifies an entry; undefined if that fails. A damaged one is forgotten. */
  const readEntry = async (entry: Entry, buffer: Uint8Array): Promise<CacheRecord | undefined> => {
    try {
      const record = await tryRead(entry, buffer);
      if (record) return record;
    } catch (error) {
      reportMediumError(error as NodeJS.ErrnoException, 'read', entry.segment.path);
      return undefined;
    }
    stats.damaged++;
    drop(entry);
    meter.error(damageError(entry));
    return undefined;
  };

  const takeBuffer = (size: number): Uint8Array => {
    const found = buffers.findIndex(({ length }) => length >= size);
    return found < 0 ? new Uint8Array(Math.max(size, READ_BYTES)) : buffers.splice(found, 1)[0];
  };
  const giveBuffer = (buffer: Uint8Array) => {
    if (buffers.push(buffer) > READ_AHEAD) buffers.shift();
  };

  /** Reads the first records of a chain that lie next to each other, with one read; undefined if there is none. */
  const readRun = (chain: readonly RecordName[], start: number): Run | undefined => {
    const entries: Entry[] = [];
    let bytes = 0;
    for (let i = start; i < chain.length; i++) {
      const [entry, first] = [find(chain[i]), entries[0]];
      const isNext = !first || (entry?.segment === first.segment && entry.offset === first.offset + bytes);
      if (!entry || !isNext || (first && bytes + entry.size > READ_BYTES)) break;
      entry.used = true;
      entries.push(entry);
      bytes += entry.size;
    }
    if (entries.length === 0) return undefined;
    const buffer = takeBuffer(bytes);
    // What fails is read again, record by record, which reports it.
    const isRead = log.read(entries[0], buffer.subarray(0, bytes)).catch(() => false);
    return { entries, bytes, buffer, isRead };
  };

  async function* read(chain: readonly RecordName[]): AsyncGenerator<Uint8Array, void> {
    const ahead: Run[] = [];
    let next = 0;
    const isEnough = () =>
      ahead.length === READ_AHEAD ||
      (ahead.length > 1 && ahead.reduce((sum, { bytes }) => sum + bytes, 0) >= READ_AHEAD_BYTES);
    const readAhead = () => {
      while (!isClosed && !isEnough() && next < chain.length) {
        const run = readRun(chain, next);
        next = run ? next + run.entries.length : chain.length;
        if (run) ahead.push(run);
      }
    };
    try {
      for (readAhead(); ahead.length > 0; readAhead()) {
        const { entries, buffer, isRead } = ahead[0];
        const isWhole = await isRead;
        let at = 0;
        for (const entry of entries) {
          const bytes = buffer.subarray(at, at + entry.size);
          at += entry.size;
          const record = (isWhole ? verifyEntry(bytes, entry.name) : undefined) ?? (await readEntry(entry, bytes));
          if (!record) return;
          yield record.payload;
        }
        giveBuffer(ahead.shift()!.buffer);
      }
    } finally {
      for (const { buffer, isRead } of ahead) {
        await isRead;
        giveBuffer(buffer);
      }
    }
  }

  /** Copies entries to the end of the log. Returns whether all that are intact are there, durably. */
  const copy = async (entries: readonly Entry[]): Promise<boolean> => {
    const copied: Entry[] = [];
    for (const entry of entries) {
      const buffer = takeBuffer(entry.size);
      const record = await readEntry(entry, buffer.subarray(0, entry.size));
      // Not read, but not damaged either: perhaps next time.
      if (!record && entry.segment.live.has(entry)) return false;
      const { stored, tenant } = entry;
      if (record) copied.push(...(await log.append([{ ...record, stored, tenant: hexBytes(tenant) }])));
      giveBuffer(buffer);
    }
    if (copied.length > 0 && !(await log.flush())) return false;
    for (const entry of copied) if (index.has(entry.name)) add(entry);
    return true;
  };

  /** Removes the dead records of a segment from the disk. */
  const compact = async (segment: Segment): Promise<boolean> =>
    (await copy([...segment.live])) && (await log.remove(segment));

  const flush = async (): Promise<boolean> => {
    let isDone = await log.flush();
    // What a failed sync may have lost is written again.
    for (const segment of log.segments.filter(({ isSynced }) => !isSynced)) isDone = (await compact(segment)) && isDone;
    return isDone;
  };

  const oldest = (): Segment | undefined => log.segments.find(({ isWritten }) => !isWritten);

  /** Evicts the oldest segments. Half a segment stays free: for what is copied. */
  const makeRoom = async (bytes: number): Promise<boolean> => {
    while (log.bytes + bytes > capacity - segmentBytes / 2) {
      if (!oldest()) await log.seal();
      const segment = oldest();
      if (!segment) return true;
      const used: Entry[] = [];
      for (const entry of segment.live)
        if (entry.used && entry.size + totalSize(used) <= segmentBytes / 2) used.push(entry);
      // On a full disk they cannot be copied, and go as well.
      await copy(used).catch(reportMediumError);
      if (!(await log.remove(segment))) return false;
      stats.evictions += segment.live.size;
      for (const entry of [...segment.live]) drop(entry);
    }
    return true;
  };

  const write = async (records: readonly CacheRecord[], tenant: Uint8Array): Promise<void> => {
    const stored = now();
    const names = new Set<string>();
    let batch: NewEntry[] = [];
    let bytes = 0;
    const writeBatch = async () => {
      const entries = (await makeRoom(bytes)) ? await log.append(batch) : [];
      for (const entry of entries) add(entry);
      stats.puts += entries.length;
      [batch, bytes] = [[], 0];
    };
    for (const record of records) {
      const name = nameText(record);
      const size = PREFIX_BYTES + record.payload.length;
      if (names.has(name) || find(record) || size > capacity / 4) continue;
      if (bytes > 0 && bytes + size > segmentBytes / 2) await writeBatch();
      names.add(name);
      batch.push({ ...record, stored, tenant });
      bytes += size;
    }
    if (batch.length > 0) await writeBatch();
  };

  /** Forgets what has expired, removes segments without live records, and merges those that are mostly dead. */
  const sweep = async (): Promise<void> => {
    for (const entry of index.values())
      if (isExpired(entry)) {
        drop(entry);
        stats.evictions++;
      }
    // The records of a segment should expire at about the same time.
    const newest = log.segments.at(-1);
    if (newest?.isWritten && newest.created + ttlMs / 4 <= now()) await log.seal();
    const sealed = log.segments.filter(({ isWritten }) => !isWritten);
    for (const segment of sealed) if (segment.live.size === 0) await log.remove(segment);
    const sparse = sealed.filter(({ live }) => live.size > 0 && totalSize(live) < segmentBytes / 2);
    if (sparse.length >= MIN_MERGED) for (const segment of sparse) await compact(segment);
  };

  /** Forgets entries, and removes their bytes from the disk. */
  const deleteEntries = (entries: () => readonly Entry[]) =>
    exclusive('changed', async () => {
      for (const entry of entries()) drop(entry);
      // Other copies of these records are dead bytes, too.
      const segments = log.segments.filter(({ size, live }) => size > SEGMENT_HEADER_BYTES + totalSize(live));
      if (segments.some(({ isWritten }) => isWritten)) await log.seal();
      let isDone = true;
      for (const segment of segments) isDone = (await compact(segment)) && isDone;
      return isDone;
    });

  const load = async () => {
    for (const entry of await log.load()) {
      // A crash while a segment was copied leaves two copies, one of which may be incomplete.
      const isSecond = index.has(entry.name);
      if (!isSecond || (await tryRead(entry, new Uint8Array(entry.size)).catch(() => undefined))) add(entry);
    }
  };
  await load().catch(async error => {
    await log.close();
    await lock.release();
    opened(error);
  });
  void exclusive('read', sweep);
  const timer = setInterval(() => exclusive('read', sweep), Math.min(SWEEP_MS, ttlMs));
  timer.unref?.();

  return {
    name: fs.name,
    get stats() {
      return { ...stats, records: index.size, bytes: log.bytes, capacity };
    },
    put: (records, tenant = '') =>
      meter.put(records, async () => {
        if (isClosed) return;
        const segments = log.segments.length;
        await exclusive('written', () => write(records, tenantId(tenant)));
        if (log.segments.length > segments) void exclusive('read', sweep);
      }),
    get: chain => meter.get(chain, read(chain)),
    async has(chain) {
      const missing = chain.findIndex(name => !find(name));
      return missing < 0 ? chain.length : missing;
    },
    delete: names => deleteEntries(() => names.flatMap(name => index.get(nameText(name)) ?? [])),
    flush: () => exclusive('synced', flush),
    async close() {
      if (isClosed) return;
      isClosed = true;
      clearInterval(timer);
      await exclusive('closed', log.close);
      await lock.release();
      index.clear();
    },
    usage: () => usageOf(index.values()),
    deleteTenant(tenant) {
      const id = tenant === undefined ? undefined : toHex(tenantId(tenant));
      return deleteEntries(() => [...index.values()].filter(entry => id === undefined || entry.tenant === id));
    },
  };
}

/** A model's folder: enough of its fingerprint to be unique, and to be found in `kvasir list`. */
export function modelFolder(model: string): string {
  if (!/^[0-9a-f]{16,}$/.test(model))
    throw new InputError(`A model's fingerprint has 16 or more hexadecimal digits; got ${JSON.stringify(model)}.`);
  return model.slice(0, 16);
}

const totalSize = (entries: Iterable<Entry>): number => {
  let bytes = 0;
  for (const { size } of entries) bytes += size;
  return bytes;
};

const hexBytes = (text: string): Uint8Array =>
  Uint8Array.from(text.match(/../g) ?? [], byte => Number.parseInt(byte, 16));

const damageError = ({ segment, offset, size }: Entry): KvasirError =>
  new FormatError(
    `${segment.path} has a damaged record of ${formatBytes(size)} at ${offset}. It counts as missing; check the disk.`,
  );
