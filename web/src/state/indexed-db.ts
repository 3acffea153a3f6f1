/** A database of the browser. Its connection may break at any time: then the next access opens it again. */
export interface Database {
  /**
   * Resolves when what `work` has begun in a store is committed. If the database is open, all of it is begun at once: of a
   * page that is being left, nothing runs later. Without space a change fails when it is committed, not before.
   */
  run<T>(store: string, mode: IDBTransactionMode, work: (store: IDBObjectStore) => T): Promise<T>;
}

/** `create` makes its stores. */
export function createDatabase(name: string, create: (database: IDBDatabase) => void): Database {
  let opened: IDBDatabase | undefined;
  let opening: Promise<IDBDatabase> | undefined;

  const open = () =>
    new Promise<IDBDatabase>((resolve, reject) => {
      const request = indexedDB.open(name, 1);
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

  return {
    async run(store, mode, work) {
      let transaction = begin(store, mode);
      if (!transaction) {
        opening ??= open();
        transaction = (await opening).transaction(store, mode);
      }
      const result = work(transaction.objectStore(store));
      transaction.commit();
      await new Promise<unknown>((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
      });
      return result;
    },
  };
}
