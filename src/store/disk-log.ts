/** The segments of a folder as one log: appended to at the end, read anywhere, removed segment by segment. */
import { assert, type KvasirError } from '../util/errors.ts';
import { fileError } from '../util/file-error.ts';
import { toHex } from '../util/sha256.ts';
import {
  type EntryHead,
  encodePrefix,
  encodeSegmentHeader,
  indexPath,
  PREFIX_BYTES,
  readEntries,
  type ScannedEntry,
  SEGMENT_HEADER_BYTES,
  writeIndex,
} from './disk-segment.ts';
import { type FileSystem, type OpenFile, readFully, writeFully } from './file-system.ts';
import { nameText } from './leaf-store.ts';
import type { CacheRecord } from './record.ts';

export const CHECK_DISK = 'Check the disk.';

export interface Entry extends ScannedEntry {
  segment: Segment;
  /** Whether it was read since it was written. */
  used: boolean;
}

export interface Segment {
  readonly number: number;
  readonly path: string;
  readonly created: number;
  readonly id: Uint8Array;
  readonly file: OpenFile;
  size: number;
  /** Those that the index refers to. */
  readonly live: Set<Entry>;
  /** Whether it is the one that is appended to. */
  isWritten: boolean;
  /** While it is written: the first bytes of each entry. */
  prefixes: Uint8Array[];
  isSynced: boolean;
  readers: number;
  isRemoved: boolean;
}

/** A record to append, with what is stored about it. */
export type NewEntry = EntryHead & CacheRecord;

export interface Log {
  /** Oldest first. The last one may be the one that is written. */
  readonly segments: readonly Segment[];
  readonly bytes: number;
  /** Reads the entries of all segments, oldest first. */
  load(): Promise<Entry[]>;
  /** Writes entries, which the caller adds to `live`. What throws has written nothing that counts. */
  append(entries: readonly NewEntry[]): Promise<Entry[]>;
  /** Fills a buffer with the entry, and with those that follow it; returns whether there were enough bytes. */
  read(entry: Entry, into: Uint8Array): Promise<boolean>;
  /** Makes all that was appended durable. */
  flush(): Promise<boolean>;
  /** Ends the segment that is written. */
  seal(): Promise<boolean>;
  /** Removes a segment that is not written any more; returns whether it worked. Readers may finish. */
  remove(segment: Segment): Promise<boolean>;
  close(): Promise<void>;
}

export interface LogOptions {
  fs: FileSystem;
  folder: string;
  segmentBytes: number;
  now: () => number;
  onError: (error: KvasirError) => void;
}

/** One write: long enough for full speed, short enough that its checksums do not block the event loop. */
const MAX_WRITE_BYTES = 8 * 2 ** 20;
const LOADS_AT_ONCE = 8;

export function createLog({ fs, folder, segmentBytes, now, onError }: LogOptions): Log {
  const segments: Segment[] = [];
  let active: Segment | undefined;
  let lastNumber = 0;
  const pathOf = (number: number) => `${folder}/${String(number).padStart(10, '0')}.seg`;

  /** Runs an operation that may fail; returns whether it worked. */
  const attempt = (path: string, act: string, run: () => Promise<void>): Promise<boolean> =>
    run().then(
      () => true,
      error => {
        onError(fileError(path, act, error, CHECK_DISK));
        return false;
      },
    );

  const create = async (): Promise<Segment> => {
    const number = ++lastNumber;
    const path = pathOf(number);
    const [id, created] = [crypto.getRandomValues(new Uint8Array(8)), now()];
    const file = await fs.create(path);
    try {
      await writeFully(file, [encodeSegmentHeader({ id, created })], 0);
    } catch (error) {
      await file.close().catch(() => {});
      await fs.remove(path).catch(() => {});
      throw error;
    }
    const segment: Segment = {
      ...{ number, path, id, created, file, size: SEGMENT_HEADER_BYTES },
      ...{ live: new Set<Entry>(), isWritten: true, prefixes: [], isSynced: false, readers: 0, isRemoved: false },
    };
    segments.push(segment);
    return segment;
  };

  /** How many of the entries fit into the segment that is written, and into one write. */
  const countFitting = (entries: readonly NewEntry[], start: number): number => {
    let size = start;
    const isFitting = ({ payload }: NewEntry) => {
      size += PREFIX_BYTES + payload.length;
      return size <= segmentBytes && size - start <= MAX_WRITE_BYTES;
    };
    const first = entries.findIndex(entry => !isFitting(entry));
    return first < 0 ? entries.length : first;
  };

  const write = async (segment: Segment, entries: readonly NewEntry[]): Promise<Entry[]> => {
    const prefixes = entries.map(entry => encodePrefix(segment.id, entry));
    segment.isSynced = false;
    // A failed write is overwritten by the next one.
    const chunks = entries.flatMap(({ payload }, i) => [prefixes[i], payload]);
    await writeFully(segment.file, chunks, segment.size);
    segment.prefixes.push(...prefixes);
    return entries.map(({ payload, stored, tenant, ...name }) => {
      const size = PREFIX_BYTES + payload.length;
      const offset = segment.size;
      segment.size += size;
      return { name: nameText(name), segment, offset, size, stored, tenant: toHex(tenant), used: false };
    });
  };

  const append = async (entries: readonly NewEntry[]): Promise<Entry[]> => {
    const written: Entry[] = [];
    while (written.length < entries.length) {
      const rest = entries.slice(written.length);
      active ??= await create();
      const fits = countFitting(rest, active.size);
      const isEmpty = active.size === SEGMENT_HEADER_BYTES;
      // One that is larger than a segment gets its own.
      if (fits === 0 && !isEmpty && active.size + PREFIX_BYTES + rest[0].payload.length > segmentBytes) await seal();
      else written.push(...(await write(active, rest.slice(0, Math.max(1, fits)))));
    }
    return written;
  };

  const end = (segment: Segment) => {
    active = undefined;
    segment.isWritten = false;
    segment.prefixes = [];
  };

  const flush = async (): Promise<boolean> => {
    const segment = active;
    if (!segment || segment.isSynced) return true;
    segment.isSynced = await attempt(segment.path, 'synced', async () => {
      await segment.file.sync();
      await fs.syncFolder(folder);
    });
    // A later sync would succeed without having written what this one has lost.
    if (!segment.isSynced) end(segment);
    return segment.isSynced;
  };

  const seal = async (): Promise<boolean> => {
    const segment = active;
    const isDurable = await flush();
    if (!segment || !isDurable) return isDurable;
    // Without an index it is scanned.
    await attempt(indexPath(segment.path), 'written', async () => {
      await writeIndex(fs, segment.path, segment.id, segment.prefixes);
      await fs.syncFolder(folder);
    });
    end(segment);
    return true;
  };

  const closeIfUnused = async (segment: Segment): Promise<void> => {
    if (segment.isRemoved && segment.readers === 0) await segment.file.close().catch(() => {});
  };

  const loadSegment = async (number: number): Promise<Entry[]> => {
    const path = pathOf(number);
    const file = await fs.open(path);
    try {
      const size = await file.size();
      const read = await readEntries(fs, path, file, size);
      // Without a header it has no entries, and is removed like others that have none.
      const { id, created } = read?.header ?? { id: new Uint8Array(8), created: 0 };
      const segment: Segment = {
        ...{ number, path, id, created, file, size },
        ...{ live: new Set<Entry>(), isWritten: false, prefixes: [], isSynced: true, readers: 0, isRemoved: false },
      };
      segments.push(segment);
      return (read?.entries ?? []).map(entry => ({ ...entry, segment, used: false }));
    } catch (error) {
      await file.close().catch(() => {});
      throw error;
    }
  };

  return {
    segments,
    get bytes() {
      return segments.reduce((sum, { size }) => sum + size, 0);
    },
    async load() {
      const names = await fs.list(folder);
      const numbers = names.flatMap(name => name.match(/^(\d{10})\.seg$/)?.[1] ?? []).map(Number);
      numbers.sort((a, b) => a - b);
      lastNumber = Math.max(0, ...numbers);
      const found: Entry[][] = [];
      const loadNext = async (): Promise<void> => {
        for (let i = found.length; i < numbers.length; i = found.length) {
          found.push([]);
          await attempt(pathOf(numbers[i]), 'read', async () => {
            found[i] = await loadSegment(numbers[i]);
          });
        }
      };
      await Promise.all(Array.from({ length: LOADS_AT_ONCE }, loadNext));
      segments.sort((a, b) => a.number - b.number);
      return found.flat();
    },
    append,
    async read(entry, into) {
      const { segment } = entry;
      segment.readers++;
      try {
        return await readFully(segment.file, into, entry.offset);
      } finally {
        segment.readers--;
        await closeIfUnused(segment);
      }
    },
    flush,
    seal,
    async remove(segment) {
      assert(segment !== active, 'a segment that is written cannot be removed');
      const isDone = await attempt(segment.path, 'removed', async () => {
        for (const path of [segment.path, indexPath(segment.path)]) await fs.remove(path).catch(ignoreMissing);
        await fs.syncFolder(folder);
      });
      if (!isDone) return false;
      segments.splice(segments.indexOf(segment), 1);
      segment.isRemoved = true;
      await closeIfUnused(segment);
      return true;
    },
    async close() {
      await seal();
      for (const segment of segments.splice(0)) {
        segment.isRemoved = true;
        await closeIfUnused(segment);
      }
    },
  };
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
