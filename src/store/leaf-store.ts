/**
 * A store of records (record.ts) below the device's memory: host memory, disk or a remote server. One contract, and one
 * suite that every store runs (test/support/store-suite.ts).
 *
 * A store may forget anything at any time, and it never returns wrong bytes. What is missing, expired, damaged or out of
 * reach is a miss; nothing but a wrong argument makes a store throw. Errors of the medium are counted and given to
 * `onError`.
 */
import type { KvasirError } from '../util/errors.ts';
import { createSha256 } from '../util/sha256.ts';
import type { LeafKey } from './leaf-key.ts';
import type { CacheRecord, RecordKind } from './record.ts';

export interface RecordName {
  kind: RecordKind;
  key: LeafKey;
}

export interface LeafStore {
  readonly name: 'host' | 'disk' | 'opfs' | 'redis';
  readonly stats: StoreStats;
  /**
   * Stores records in the background. Their payloads must not change until it resolves. A record that is stored already
   * is not stored again: its key names its bytes. `tenant` is who said what is in them.
   */
  put(records: readonly CacheRecord[], tenant?: string): Promise<void>;
  /**
   * The payloads of a chain, in order, up to the first miss. Each is verified, and valid until the next one is requested,
   * so that buffers can be reused. Later ones are read ahead.
   */
  get(chain: readonly RecordName[]): AsyncGenerator<Uint8Array, void>;
  /** How many records from the start of the chain are stored. An estimate: `get` may return fewer. */
  has(chain: readonly RecordName[]): Promise<number>;
  /** Removes records for good, not only from sight. Returns whether it worked. */
  delete(names: readonly RecordName[]): Promise<boolean>;
  /** Makes what was put survive a loss of power, as far as the store can. Returns whether it worked. */
  flush(): Promise<boolean>;
  close(): Promise<void>;
}

export interface StoreOptions {
  /** Receives errors of the medium and damaged records. They are counted in any case. */
  onError?: (error: KvasirError) => void;
}

/** Calls, and how long they took. */
export interface Latency {
  count: number;
  totalMs: number;
  maxMs: number;
}

export interface StoreStats {
  /** Undefined where others share the store. */
  records?: number;
  bytes?: number;
  capacity?: number;
  /** Bytes that are being put. */
  pendingBytes: number;
  /** Records that `get` was asked for: found, not found. */
  hits: number;
  misses: number;
  /** Records written, and removed to make room or because they had expired. */
  puts: number;
  evictions: number;
  /** Records whose checksum did not match. */
  damaged: number;
  errors: number;
  lastError?: string;
  /** From the call to the first record, and of each put. */
  get: Latency;
  put: Latency;
}

/** A record's name as a string, for maps. `apply` is several times faster than spreading the key. */
export const nameText = ({ kind, key }: RecordName): string =>
  kind[0] + String.fromCharCode.apply(null, key as unknown as number[]);

/** A tenant's id in stored records: a hash, so that it is not stored in the clear. */
export const TENANT_BYTES = 16;
export const tenantId = (tenant: string): Uint8Array =>
  createSha256()
    .update(new TextEncoder().encode(`kvasir tenant 1\0${tenant}`))
    .digest()
    .subarray(0, TENANT_BYTES);

/** The counters of a store. */
export interface Meter {
  readonly stats: StoreStats;
  error(error: KvasirError): void;
  /** Runs a put, with its latency and pending bytes. */
  put(records: readonly CacheRecord[], write: () => Promise<void>): Promise<void>;
  /** Counts hits and misses of a chain that `read` yields up to its first miss. */
  get(chain: readonly RecordName[], read: AsyncGenerator<Uint8Array, void>): AsyncGenerator<Uint8Array, void>;
}

export function createMeter({ onError }: StoreOptions): Meter {
  const latency = (): Latency => ({ count: 0, totalMs: 0, maxMs: 0 });
  const stats: StoreStats = {
    ...{ pendingBytes: 0, hits: 0, misses: 0, puts: 0, evictions: 0, damaged: 0, errors: 0 },
    ...{ get: latency(), put: latency() },
  };
  const note = (latency: Latency, start: number) => {
    const ms = performance.now() - start;
    latency.count++;
    latency.totalMs += ms;
    latency.maxMs = Math.max(latency.maxMs, ms);
  };
  return {
    stats,
    error(error) {
      stats.errors++;
      stats.lastError = error.message;
      onError?.(error);
    },
    async put(records, write) {
      const bytes = records.reduce((sum, { payload }) => sum + payload.length, 0);
      const start = performance.now();
      stats.pendingBytes += bytes;
      await write().finally(() => {
        stats.pendingBytes -= bytes;
        note(stats.put, start);
      });
    },
    async *get(chain, read) {
      const start = performance.now();
      let found = 0;
      for await (const payload of read) {
        if (found++ === 0) note(stats.get, start);
        stats.hits++;
        yield payload;
      }
      if (found === 0) note(stats.get, start);
      stats.misses += chain.length - found;
    },
  };
}
