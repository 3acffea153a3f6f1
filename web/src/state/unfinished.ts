/**
 * What is not part of a conversation yet, by conversation: the message that is being written, and the answer that grows.
 * It is kept in a database of its own, which no other tab has to read again.
 */
import { texts } from '../texts/index.ts';
import type { Attachment, Message } from './conversation.ts';
import { describeStorageError, showNotice } from './notice.ts';

interface Unfinished {
  texts: string;
  attachments: readonly Attachment[];
  answers: Message;
}

type Kind = keyof Unfinished;

const NAME = 'kvasir.unfinished';
const KINDS: readonly Kind[] = ['texts', 'attachments', 'answers'];

let database: IDBDatabase | undefined;

const opened = new Promise<IDBDatabase>((resolve, reject) => {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => {
    for (const kind of KINDS) request.result.createObjectStore(kind);
  };
  request.onsuccess = () => {
    database = request.result;
    resolve(database);
  };
  request.onerror = () => reject(request.error);
});

/** Undefined deletes it. */
export function keepUnfinished<K extends Kind>(kind: K, conversation: string, value: Unfinished[K] | undefined): void {
  const write = (database: IDBDatabase) => {
    const transaction = database.transaction(kind, 'readwrite');
    const store = transaction.objectStore(kind);
    if (value === undefined) store.delete(conversation);
    else store.put(value, conversation);
    transaction.onabort = () =>
      showNotice(texts.conversations.unfinishedNotSaved(describeStorageError(transaction.error!)));
    // All in one turn, and committed at once: of a page that is being left, nothing runs later.
    transaction.commit();
  };
  if (database) write(database);
  else void opened.then(write);
}

/** By conversation. */
export async function readUnfinished<K extends Kind>(kind: K): Promise<Map<string, Unfinished[K]>> {
  const store = (await opened).transaction(kind).objectStore(kind);
  const [keys, values] = [store.getAllKeys(), store.getAll()];
  await new Promise((resolve, reject) => {
    store.transaction.oncomplete = resolve;
    store.transaction.onabort = () => reject(store.transaction.error);
  });
  return new Map(keys.result.map((key, i) => [String(key), values.result[i]]));
}

export function forgetUnfinished(conversation: string): void {
  for (const kind of KINDS) keepUnfinished(kind, conversation, undefined);
}
