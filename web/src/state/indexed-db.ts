/** A database of the browser. Its connection may break at any time: then the next access opens it again. */
export interface Database {
  /**
   * Resolves when what `work` has begun in a store is committed. If the database is open, all of it is begun at once: of a
   * page that is being left, nothing runs later. Without space a change fails when it is committed, not before.
   */
  run<T>(store: string, mode: IDBTransactionMode, work: (store: IDBObjectStore) => T): Promise<T>;
  /** Changes a record without letting another tab change it meanwhile. Undefined: it stays as it is. */
  update<T>(store: string, key: string, change: (record: T | undefined) => T | undefined): Promise<void>;
}

/** `create` makes the stores that are missing, in a new database or one of an earlier version. */
export function createDatabase(name: string, version: number, create: (database: IDBDatabase) => void): Database {
  let opened: IDBDatabase | undefined;
  let opening: Promise<IDBDatabase> | undefined;

  const open = () =>
    new Promise<IDBDatabase>((resolve, reject) => {
      const request = indexedDB.open(name, version);
      request.onupgradeneeded = () => create(request.result);
      request.onsuccess = () => {
        opened = request.result;
        // Another tab deletes the database, or has a newer version of it.
        opened.onversionchange = () => request.result.close();
        resolve(opened);
      };
      request.onerror = () => reject(request.error);
    }).finally(() => {
      opening = undefined;
    });

  /** Undefined without a connection. */
  const begin = (store: string, mode: IDBTransactionMode): IDBTransaction | undefined => {
    try {
      return opened?.transaction(store, mode);
    } catch {
      return undefined;
    }
  };

  /** Begins a transaction, at once if the database is open. */
  const start = (store: string, mode: IDBTransactionMode): IDBTransaction | Promise<IDBTransaction> => {
    const transaction = begin(store, mode);
    if (transaction) return transaction;
    opening ??= open();
    return opening.then(database => database.transaction(store, mode));
  };

  return {
    async run(store, mode, work) {
      const started = start(store, mode);
      const transaction = started instanceof Promise ? await started : started;
      const result = work(transaction.objectStore(store));
      transaction.commit();
      await ended(transaction);
      return result;
    },
    async update<T>(name: string, key: string, change: (record: T | undefined) => T | undefined) {
      const transaction = await start(name, 'readwrite');
      const store = transaction.objectStore(name);
      const request = store.get(key);
      request.onsuccess = () => {
        const changed = change(request.result);
        if (changed !== undefined) store.put(changed);
      };
      await ended(transaction);
    },
  };
}

const ended = (transaction: IDBTransaction): Promise<unknown> =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
