/** Conversations in IndexedDB, which all tabs of the site share: documents are too large for localStorage. */
import type { Conversation } from './conversation.ts';

const NAME = 'kvasir';
const STORE = 'conversations';

let opened: Promise<IDBDatabase> | undefined;
const tabs = new BroadcastChannel('kvasir.conversations');

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

/** How many changes this tab has begun. */
let changes = 0;

/** Changes the store, and tells the other tabs. Without space a change fails when it is committed, not before. */
async function change(work: (store: IDBObjectStore) => void): Promise<void> {
  changes++;
  const transaction = (await open()).transaction(STORE, 'readwrite');
  work(transaction.objectStore(STORE));
  await new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
  });
  tabs.postMessage('changed');
}

const reading = async (): Promise<IDBObjectStore> => (await open()).transaction(STORE).objectStore(STORE);

/** All conversations, the newest first, with all changes that this tab has begun. */
export async function readConversations(): Promise<Conversation[]> {
  const seen = changes;
  const all: Conversation[] = await done((await reading()).getAll());
  return seen === changes ? all.sort((a, b) => b.updated - a.updated) : readConversations();
}

/** When a conversation was saved last, by any tab; undefined if it was not. */
export async function readUpdated(id: string): Promise<number | undefined> {
  const found: Conversation | undefined = await done((await reading()).get(id));
  return found?.updated;
}

export const writeConversation = (conversation: Conversation): Promise<void> =>
  change(store => store.put(conversation));

export const deleteConversation = (id: string): Promise<void> => change(store => store.delete(id));

export const deleteAllConversations = (): Promise<void> => change(store => store.clear());

/** Calls `listener` after another tab has changed a conversation. */
export const onOtherTab = (listener: () => void): void => tabs.addEventListener('message', listener);
