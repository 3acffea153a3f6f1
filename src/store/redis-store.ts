/**
 * Records in Redis or Valkey, standalone or Cluster, which several processes share. Keys:
 *
 *   kvasir:1:<16 digits of the model's fingerprint>:<kind><key in hexadecimal>:<part>
 *
 * A leaf's key depends on its tenant's salt. A value is a part of the record (record.ts), of at most 512 KiB so that no
 * single command holds up the server for long. Part 0 has the header, which says how many there are; it is written last.
 * The checksum covers the whole record: parts that were evicted or belong to another write are a miss.
 *
 * Commands of one window are pipelined, one GET per part, which works the same in a cluster, where parts are on different
 * nodes. Nothing waits longer than `timeoutMs`, and a circuit breaker stops trying when the server is down.
 */
import { platform } from '../platform/node.ts';
import { FormatError, InputError, NetworkError, UnsupportedError } from '../util/errors.ts';
import { fileError } from '../util/file-error.ts';
import { createCircuitBreaker } from './circuit-breaker.ts';
import { createMeter, type LeafStore, nameText, type RecordName, type StoreOptions } from './leaf-store.ts';
import { type CacheRecord, encodeHeader, HEADER_BYTES, parseHeader, verifyRecord } from './record.ts';
import { connectRedis, type RedisConnection } from './redis-connection.ts';
import { parseUrl, type RedisTier } from './tiers.ts';

export interface RedisStoreOptions extends StoreOptions, Omit<RedisTier, 'type' | 'cluster'> {
  cluster?: boolean;
  /** Fingerprint of the model. */
  model: string;
  /** Max bytes of a record. Default: 256 MiB. */
  maxBytes?: number;
}

/** Not a literal in `import`: bundlers for browsers would look for Node's modules in it. */
const CLIENT: string = 'redis';
const PART_BYTES = 512 * 1024;
/** Records that are requested at once while the ones before are used. */
const WINDOW = 8;
const MAX_WRITE_BYTES = 8 * 2 ** 20;

export async function openRedisStore(options: RedisStoreOptions): Promise<LeafStore> {
  const {
    urls,
    cluster = false,
    model,
    ttlMs = 24 * 3600 * 1000,
    timeoutMs = 1000,
    maxBytes = 256 * 2 ** 20,
  } = options;
  const tls = await tlsOptions(options);
  const meter = createMeter(options);
  const { stats } = meter;
  const breaker = createCircuitBreaker();
  const prefix = `kvasir:1:${model.slice(0, 16)}`;
  const module: typeof import('redis') = await import(CLIENT).catch(error => {
    throw new UnsupportedError('A redis store needs the package redis. Install it: npm install redis', {
      cause: error,
    });
  });
  let connecting: Promise<RedisConnection> | undefined;
  let isClosed = false;

  const noteError = (error: Error) => {
    const message = withoutSecrets(error.message, urls);
    // An error that quotes a url is not passed on.
    const cause = message === error.message ? error : undefined;
    meter.error(new NetworkError(`Redis does not answer: ${message}.`, { cause }));
  };

  /** Runs a round of commands; undefined if the server cannot be reached or takes too long. */
  const attempt = async <T>(run: (redis: RedisConnection) => Promise<T>): Promise<T | undefined> => {
    if (isClosed || !breaker.allows()) return undefined;
    connecting ??= connectRedis(module, { urls, cluster, timeoutMs, tls, onError: noteError });
    const used = connecting;
    try {
      const result = await run(await used);
      breaker.noteSuccess();
      return result;
    } catch (error) {
      breaker.noteFailure();
      noteError(error as Error);
      // A cluster whose nodes were not found, or a connection that hangs, is opened again.
      if (connecting === used) connecting = undefined;
      used.then(redis => redis.destroy()).catch(() => {});
      return undefined;
    }
  };

  const keyOf = ({ kind, key }: RecordName) => `${prefix}:${kind[0]}${Buffer.from(key).toString('hex')}`;

  /** The parts after the first of a record; none if the first is missing or makes no sense. */
  const laterParts = (name: RecordName, first: Buffer | null): string[] => {
    const header = first ? parseHeader(first) : undefined;
    if (!header || header.length > maxBytes) return [];
    const count = Math.ceil((HEADER_BYTES + header.length) / PART_BYTES);
    return Array.from({ length: count - 1 }, (_, i) => `${keyOf(name)}:${i + 1}`);
  };

  const noteDamage = (name: RecordName) => {
    stats.damaged++;
    meter.error(new FormatError(`The record ${keyOf(name)} is damaged or incomplete. It counts as missing.`));
  };

  const fetchWindow = (names: readonly RecordName[]): Promise<(Buffer[] | undefined)[] | undefined> =>
    attempt(async redis => {
      const first = await redis.getAll(names.map(name => `${keyOf(name)}:0`));
      // Nothing after the first miss is needed.
      const missing = first.indexOf(null);
      const found = names.slice(0, missing < 0 ? names.length : missing);
      const keys = found.map((name, i) => laterParts(name, first[i]));
      const later = await redis.getAll(keys.flat());
      let at = 0;
      return found.map((_, i) => {
        const parts = [first[i], ...later.slice(at, at + keys[i].length)];
        at += keys[i].length;
        return parts.every(part => part !== null) ? parts : undefined;
      });
    });

  async function* read(chain: readonly RecordName[]): AsyncGenerator<Uint8Array, void> {
    /** Reused: fresh memory is slower than copying. */
    let joined = new Uint8Array(0);
    const join = (parts: readonly Buffer[]): Uint8Array => {
      const bytes = parts.reduce((sum, { length }) => sum + length, 0);
      if (joined.length < bytes) joined = new Uint8Array(bytes);
      let at = 0;
      for (const part of parts) {
        joined.set(part, at);
        at += part.length;
      }
      return joined.subarray(0, bytes);
    };
    let next = fetchWindow(chain.slice(0, WINDOW));
    for (let at = 0; at < chain.length; at += WINDOW) {
      const records = (await next) ?? [];
      const isLast = records.length < WINDOW || at + WINDOW >= chain.length;
      if (!isLast) next = fetchWindow(chain.slice(at + WINDOW, at + 2 * WINDOW));
      for (const [i, parts] of records.entries()) {
        const name = chain[at + i];
        // An evicted part.
        if (!parts) return;
        const record = verifyRecord(parts.length === 1 ? parts[0] : join(parts));
        if (!record || nameText(record) !== nameText(name)) return noteDamage(name);
        yield record.payload;
      }
      if (isLast) return;
    }
  }

  const write = async (records: readonly CacheRecord[]): Promise<void> => {
    for (const batch of batches(records)) {
      const written = await attempt(async redis => {
        const later: [string, Uint8Array][] = [];
        const first: [string, Uint8Array][] = [];
        for (const record of batch) {
          const bytes = Buffer.concat([encodeHeader(record), record.payload]);
          for (let part = 0; part * PART_BYTES < bytes.length; part++) {
            const value = bytes.subarray(part * PART_BYTES, (part + 1) * PART_BYTES);
            (part === 0 ? first : later).push([`${keyOf(record)}:${part}`, value]);
          }
        }
        await redis.setAll(later, ttlMs);
        await redis.setAll(first, ttlMs);
        return batch.length;
      });
      if (written === undefined) return;
      stats.puts += written;
    }
  };

  // A server that is down now may be up later.
  await attempt(redis => redis.getAll([]));

  return {
    name: 'redis',
    stats,
    put: records => meter.put(records, () => write(records.filter(({ payload }) => payload.length <= maxBytes))),
    get: chain => meter.get(chain, read(chain)),
    async has(chain) {
      const found = await attempt(redis => redis.existAll(chain.map(name => `${keyOf(name)}:0`)));
      if (!found) return 0;
      const missing = found.indexOf(false);
      return missing < 0 ? chain.length : missing;
    },
    async delete(names) {
      const deleted = await attempt(async redis => {
        const first = await redis.getAll(names.map(name => `${keyOf(name)}:0`));
        await redis.deleteAll(names.flatMap((name, i) => [`${keyOf(name)}:0`, ...laterParts(name, first[i])]));
        return true;
      });
      return deleted ?? false;
    },
    // Whether the server keeps what it has acknowledged is its own configuration.
    flush: async () => !isClosed,
    async close() {
      isClosed = true;
      await connecting?.then(redis => redis.destroy()).catch(() => {});
      connecting = undefined;
    },
  };
}

/** Checks the urls, and reads the files of certificates. */
async function tlsOptions({ urls, tls, tlsFiles = {} }: RedisStoreOptions): Promise<object | undefined> {
  if (urls.length === 0) throw new InputError('A redis store needs a url, such as redis://localhost:6379.');
  for (const url of urls) parseUrl(url);
  const files = Object.entries(tlsFiles).filter(([, path]) => path !== undefined);
  if (!tls && files.length === 0) return undefined;
  if (!urls.every(url => url.startsWith('rediss:')))
    throw new InputError(
      'A redis tier with TLS options (tls, or ca, cert and key) has a url without TLS. Write rediss://host:6379.',
    );
  const contents = files.map(async ([name, path]) => [name, await readFile(path)]);
  return { ...tls, ...Object.fromEntries(await Promise.all(contents)) };
}

async function readFile(path: string): Promise<Uint8Array> {
  try {
    return await platform.node.fs.promises.readFile(path);
  } catch (error) {
    throw fileError(path, 'read', error as NodeJS.ErrnoException);
  }
}

/** A message of the client's may quote a url. */
export function withoutSecrets(message: string, urls: readonly string[]): string {
  const secrets = urls.flatMap(url => {
    const { password } = new URL(url);
    return [url, password, safeDecode(password)];
  });
  return secrets.filter(secret => secret !== '').reduce((text, secret) => text.replaceAll(secret, '...'), message);
}

function safeDecode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Batches of limited size, so that a round stays within its time. */
function* batches(records: readonly CacheRecord[]): Generator<CacheRecord[], void> {
  let batch: CacheRecord[] = [];
  let bytes = 0;
  for (const record of records) {
    if (batch.length > 0 && bytes + record.payload.length > MAX_WRITE_BYTES) {
      yield batch;
      [batch, bytes] = [[], 0];
    }
    batch.push(record);
    bytes += record.payload.length;
  }
  if (batch.length > 0) yield batch;
}
