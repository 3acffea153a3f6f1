/** Conversations in IndexedDB: documents are too large for localStorage. */
import type { Conversation } from './conversation.ts';

const NAME = 'kvasir';
const STORE = 'conversations';

let opened: Promise<IDBDatabase> | undefined;

const done = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function open(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: 'id' });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

const store = async (mode: IDBTransactionMode): Promise<IDBObjectStore> =>
  (await open()).transaction(STORE, mode).objectStore(STORE);

/** All conversations, the newest first. */
export async function readConversations(): Promise<Conversation[]> {
  const all: Conversation[] = await done((await store('readonly')).getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export const writeConversation = async (conversation: Conversation): Promise<void> =>
  void (await done((await store('readwrite')).put(conversation)));

export const deleteConversation = async (id: string): Promise<void> =>
  void (await done((await store('readwrite')).delete(id)));

export const deleteAllConversations = async (): Promise<void> => void (await done((await store('readwrite')).clear()));
