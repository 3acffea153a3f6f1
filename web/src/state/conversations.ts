/** The saved conversations, and the one that is shown. */
import { batch, signal } from '@preact/signals';
import { saveWithRoom } from '../engine/caches.ts';
import { texts } from '../texts/index.ts';
import { type Conversation, newConversation } from './conversation.ts';
import { updateConversation, writeConversation } from './database.ts';
import { describeStorageError, showNotice } from './notice.ts';
import { noteSaved, unsaved } from './unsaved.ts';

/** The newest first. */
export const conversations = signal<readonly Conversation[]>([]);
export const current = signal<Conversation>(newConversation());

export const findConversation = (id: string): Conversation | undefined =>
  conversations.value.find(conversation => conversation.id === id);

/** Of this tab, after a reload too. */
const OPEN_KEY = 'kvasir.open';

export const lastOpen = (): string | null => sessionStorage.getItem(OPEN_KEY);

export function open(conversation: Conversation): void {
  current.value = conversation;
  sessionStorage.setItem(OPEN_KEY, conversation.id);
}

/** Shows it in the list at once. Resolves when it is saved, or could not be, which is told: whether it is saved. */
export function save(conversation: Conversation): Promise<boolean> {
  show(conversation);
  const { id } = conversation;
  return keep(id, async () => {
    // Until there is room for it, it may have changed, or be deleted.
    const latest = findConversation(id);
    if (latest) await writeConversation(latest);
  });
}

/** Another title of a conversation, which another tab may be changing. */
export function saveTitle(conversation: Conversation, title: string): Promise<boolean> {
  const titled = { ...conversation, title };
  show(titled);
  return keep(titled.id, () =>
    // One that could not be saved before is not there.
    updateConversation(titled.id, saved => (saved ? { ...saved, title } : findConversation(titled.id))),
  );
}

/** Tries it again with what could not be saved. */
export async function saveUnsaved(): Promise<void> {
  for (const id of unsaved.value) {
    const conversation = findConversation(id);
    if (conversation) await save(conversation);
  }
}

function show(conversation: Conversation): void {
  const { id } = conversation;
  batch(() => {
    if (current.value.id === id) open(conversation);
    setConversations([conversation, ...conversations.value.filter(other => other.id !== id)]);
  });
}

async function keep(id: string, write: () => Promise<void>): Promise<boolean> {
  try {
    await saveWithRoom(write);
    noteSaved(id, true);
    askToPersist();
    return true;
  } catch (error) {
    noteSaved(id, false);
    showNotice(texts.conversations.notSaved(describeStorageError(error as Error)));
    return false;
  }
}

let hasAsked = false;

/** Without it, the browser may delete all that is stored when it needs space. Some browsers ask the user. */
function askToPersist(): void {
  if (!hasAsked) void globalThis.navigator.storage?.persist?.().catch(() => {});
  hasAsked = true;
}

/** Takes what is saved by now, also by other tabs. What could not be saved stays, unless another tab has a newer one. */
export function takeSaved(saved: readonly Conversation[]): void {
  const updatedOf = new Map(saved.map(({ id, updated }) => [id, updated]));
  const kept: Conversation[] = [];
  for (const conversation of conversations.value) {
    const { id, updated } = conversation;
    if (!unsaved.value.has(id)) continue;
    if (updated > (updatedOf.get(id) ?? 0)) kept.push(conversation);
    else noteSaved(id, true);
  }
  setConversations([...kept, ...saved.filter(({ id }) => !kept.some(other => other.id === id))]);
}

function setConversations(list: Conversation[]): void {
  conversations.value = list.sort((a, b) => b.updated - a.updated);
}
