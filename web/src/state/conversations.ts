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

/** Shows it in the list at once. Resolves when it is saved, or could not be, which is told. */
export function save(conversation: Conversation): Promise<void> {
  batch(() => {
    if (current.value.id === conversation.id) open(conversation);
    const others = conversations.value.filter(({ id }) => id !== conversation.id);
    conversations.value = [conversation, ...others].sort((a, b) => b.updated - a.updated);
  });
  return writeConversation(conversation).catch(error =>
    showNotice(texts.conversations.notSaved(describeStorageError(error))),
  );
}
