/** Stand-ins for what the tabs of a site share in a browser: as much of each as the web app uses, and its failures. */

type Records = Map<string, unknown>;

export class FakeDatabases {
  /** What a connection fails to open with. */
  openError?: DOMException;
  /** What changes fail with when they are committed. */
  writeError?: DOMException;
  readonly #stores = new Map<string, Map<string, Records>>();
  #connections = { isClosed: false };

  /** What is stored. */
  readonly records = (database: string, store: string): Records => this.#stores.get(database)!.get(store)!;

  /** The browser closes all connections. */
  disconnect(): void {
    this.#connections.isClosed = true;
    this.#connections = { isClosed: false };
  }

  readonly open = (name: string): object => {
    const stores = this.#stores.get(name) ?? new Map<string, Records>();
    const connection = this.#connections;
    const keyPaths = new Map<string, string | undefined>();
    const database = {
      objectStoreNames: { contains: (store: string) => stores.has(store) },
      createObjectStore(store: string, { keyPath }: { keyPath?: string } = {}) {
        stores.set(store, new Map());
        keyPaths.set(store, keyPath);
      },
      transaction: (store: string, mode: string) => {
        if (connection.isClosed) throw new DOMException('The connection is closed.', 'InvalidStateError');
        return this.#transaction(stores.get(store)!, mode);
      },
    };
    const request = { result: database, error: this.openError } as Record<string, unknown>;
    setImmediate(() => {
      if (this.openError) return (request.onerror as () => void)();
      if (!this.#stores.has(name)) (request.onupgradeneeded as () => void)();
      this.#stores.set(name, stores);
      (request.onsuccess as () => void)();
    });
    return request;
  };

  #transaction(records: Records, mode: string): object {
    const work: (() => void)[] = [];
    const add = (result: () => unknown) => {
      const request = { result: undefined as unknown, onsuccess: undefined as (() => void) | undefined };
      work.push(() => {
        request.result = structuredClone(result());
        request.onsuccess?.();
      });
      return request;
    };
    const store = {
      get: (key: string) => add(() => records.get(key)),
      getAll: () => add(() => [...records.values()]),
      getAllKeys: () => add(() => [...records.keys()]),
      put(value: { id: string }, key = value.id) {
        const copy = structuredClone(value);
        return add(() => void records.set(key, copy));
      },
      delete: (key: string) => add(() => void records.delete(key)),
      clear: () => add(() => records.clear()),
    };
    const transaction = { objectStore: () => store, commit() {} } as Record<string, unknown>;
    setImmediate(() => {
      transaction.error = mode === 'readwrite' ? this.writeError : undefined;
      if (transaction.error) return (transaction.onabort as () => void)();
      // A step may add others.
      for (const step of work) step();
      (transaction.oncomplete as () => void)();
    });
    return transaction;
  }
}

/** `localStorage` or `sessionStorage`. */
export class FakeStorage {
  readonly #items = new Map<string, string>();
  getItem = (key: string): string | null => this.#items.get(key) ?? null;
  setItem = (key: string, value: string): void => void this.#items.set(key, value);
}

/** `BroadcastChannel` of tabs that are all here. */
export function createChannels(): new (name: string) => EventTarget {
  const all = new Set<Channel>();
  class Channel extends EventTarget {
    readonly #name: string;
    constructor(name: string) {
      super();
      this.#name = name;
      all.add(this);
    }
    postMessage(data: unknown): void {
      for (const other of all)
        if (other !== this && other.#name === this.#name)
          setImmediate(() => other.dispatchEvent(new MessageEvent('message', { data })));
    }
  }
  return Channel;
}

/** `navigator.locks`. */
export class FakeLocks {
  readonly #held = new Map<string, Promise<unknown>>();

  async request<T>(name: string, options: { ifAvailable?: boolean }, work: (lock: object | null) => Promise<T>) {
    while (this.#held.has(name)) {
      if (options.ifAvailable) return work(null);
      await this.#held.get(name);
    }
    const done = work({});
    this.#held.set(
      name,
      done.catch(() => {}),
    );
    try {
      return await done;
    } finally {
      this.#held.delete(name);
    }
  }
}
