/** Conversations in IndexedDB, which all tabs of the site share: documents are too large for localStorage. */
import type { Conversation } from './conversation.ts';
import { createDatabase } from './indexed-db.ts';

const STORE = 'conversations';

const database = createDatabase('kvasir', 1, database => database.createObjectStore(STORE, { keyPath: 'id' }));
const tabs = new BroadcastChannel('kvasir.conversations');

/** How many changes this tab has begun. */
let changes = 0;

/** Changes the store, and tells the other tabs. */
async function change(work: (store: IDBObjectStore) => void): Promise<void> {
  changes++;
  await database.run(STORE, 'readwrite', work);
  tabs.postMessage('changed');
}

/** Changes a conversation as it is saved by now, by any tab. */
export async function updateConversation(
  id: string,
  update: (saved: Conversation | undefined) => Conversation | undefined,
): Promise<void> {
  changes++;
  await database.update(STORE, id, update);
  tabs.postMessage('changed');
}

/** All conversations, the newest first, with all changes that this tab has begun. */
export async function readConversations(): Promise<Conversation[]> {
  const seen = changes;
  const all: IDBRequest<Conversation[]> = await database.run(STORE, 'readonly', store => store.getAll());
  return seen === changes ? all.result.sort((a, b) => b.updated - a.updated) : readConversations();
}

/** When a conversation was saved last, by any tab; undefined if it was not. */
export async function readUpdated(id: string): Promise<number | undefined> {
  const found: IDBRequest<Conversation | undefined> = await database.run(STORE, 'readonly', store => store.get(id));
  return found.result?.updated;
}

export const writeConversation = (conversation: Conversation): Promise<void> =>
  change(store => store.put(conversation));

export const deleteConversation = (id: string): Promise<void> => change(store => store.delete(id));

export const deleteAllConversations = (): Promise<void> => change(store => store.clear());

/** Calls `listener` after another tab has changed a conversation. */
export const onOtherTab = (listener: () => void): void => tabs.addEventListener('message', listener);
