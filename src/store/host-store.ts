/**
 * Host memory, for models whose cache is on a GPU: a capacity in bytes, least recently used records go first.
 *
 * Records are not checksummed here: they never leave this process, whose memory the cache itself trusts just as much.
 */
import { InputError } from '../util/errors.ts';
import { createMeter, type LeafStore, nameText, type StoreOptions } from './leaf-store.ts';

export interface HostStoreOptions extends StoreOptions {
  /** Max bytes of payloads. */
  capacity: number;
}

interface Entry {
  payload: Uint8Array;
  /** Readers of the payload: its memory must not be reused. */
  readers: number;
}

/** Memory of evicted records to reuse: fresh pages are several times slower to write. */
const MAX_SPARE = 8;

export function createHostStore(options: HostStoreOptions): LeafStore {
  const { capacity } = options;
  if (!(Number.isSafeInteger(capacity) && capacity > 0))
    throw new InputError(`The capacity of a host store must be a whole number of bytes above 0; got ${capacity}.`);
  const meter = createMeter(options);
  const { stats } = meter;
  /** Least recently used first. */
  const entries = new Map<string, Entry>();
  const spare: Uint8Array[] = [];
  let bytes = 0;
  let isClosed = false;

  const remove = (name: string, entry: Entry) => {
    entries.delete(name);
    bytes -= entry.payload.length;
    if (entry.readers === 0 && spare.length < MAX_SPARE) spare.push(entry.payload);
  };
  const touch = (name: string): Entry | undefined => {
    const entry = entries.get(name);
    if (entry) {
      entries.delete(name);
      entries.set(name, entry);
    }
    return entry;
  };
  const makeRoom = (needed: number) => {
    for (const [name, entry] of entries) {
      if (bytes + needed <= capacity) return;
      remove(name, entry);
      stats.evictions++;
    }
  };
  const copy = (payload: Uint8Array): Uint8Array => {
    const index = spare.findIndex(({ length }) => length === payload.length);
    if (index < 0) return payload.slice();
    const [memory] = spare.splice(index, 1);
    memory.set(payload);
    return memory;
  };

  async function* read(names: readonly string[]): AsyncGenerator<Uint8Array, void> {
    for (const name of names) {
      const entry = touch(name);
      if (!entry) return;
      entry.readers++;
      try {
        yield entry.payload;
      } finally {
        entry.readers--;
      }
    }
  }

  return {
    name: 'host',
    get stats() {
      return { ...stats, records: entries.size, bytes, capacity };
    },
    put: records =>
      meter.put(records, async () => {
        for (const record of records) {
          const name = nameText(record);
          if (isClosed || touch(name) || record.payload.length > capacity) continue;
          makeRoom(record.payload.length);
          entries.set(name, { payload: copy(record.payload), readers: 0 });
          bytes += record.payload.length;
          stats.puts++;
        }
      }),
    get: chain => meter.get(chain, read(chain.map(nameText))),
    async has(chain) {
      const missing = chain.findIndex(name => !entries.has(nameText(name)));
      return missing < 0 ? chain.length : missing;
    },
    async delete(names) {
      for (const name of names.map(nameText)) {
        const entry = entries.get(name);
        if (entry) remove(name, entry);
      }
      return true;
    },
    flush: async () => true,
    async close() {
      isClosed = true;
      entries.clear();
      spare.length = 0;
      bytes = 0;
    },
  };
}
