/** The saved conversations, and the one that is shown. */
import { batch, signal } from '@preact/signals';
import { texts } from '../texts/index.ts';
import { type Conversation, newConversation } from './conversation.ts';
import { writeConversation } from './database.ts';
import { describeStorageError, showNotice } from './notice.ts';

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

/** Conversations whose last change could not be saved: they are only here. */
const unsaved = new Set<string>();

/** Shows it in the list at once. Resolves when it is saved, or could not be, which is told. */
export async function save(conversation: Conversation): Promise<void> {
  const { id } = conversation;
  batch(() => {
    if (current.value.id === id) open(conversation);
    setConversations([conversation, ...conversations.value.filter(other => other.id !== id)]);
  });
  try {
    await writeConversation(conversation);
    unsaved.delete(id);
  } catch (error) {
    unsaved.add(id);
    showNotice(texts.conversations.notSaved(describeStorageError(error as Error)));
  }
}

/** Takes what is saved by now, also by other tabs. What could not be saved stays, unless another tab has a newer one. */
export function takeSaved(saved: readonly Conversation[]): void {
  const updatedOf = new Map(saved.map(({ id, updated }) => [id, updated]));
  const kept = conversations.value.filter(({ id, updated }) => unsaved.has(id) && updated > (updatedOf.get(id) ?? 0));
  setConversations([...kept, ...saved.filter(({ id }) => !kept.some(other => other.id === id))]);
}

function setConversations(list: Conversation[]): void {
  conversations.value = list.sort((a, b) => b.updated - a.updated);
}
