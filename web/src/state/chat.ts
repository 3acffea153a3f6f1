/** What one can do with the conversations. */
import { batch } from '@preact/signals';
import { deleteAllProfiles } from '../engine/profiles.ts';
import { deleteAllStored, deleteSession } from '../engine/sessions.ts';
import { texts } from '../texts/index.ts';
import { type AnswerOptions, answer, changeAlone, recoverAnswers, run, runs } from './answering.ts';
import { forgetModel } from './connection.ts';
import { before, type Conversation, type Message, newConversation, newId, withMessages } from './conversation.ts';
import { conversations, current, findConversation, lastOpen, open, save, takeSaved } from './conversations.ts';
import { deleteAllConversations, deleteConversation, onOtherTab, readConversations } from './database.ts';
import { clearDraft, draft, draftIds, loadDrafts } from './drafts.ts';
import { announcement, describeStorageError, refuse, showNotice } from './notice.ts';
import { forgetUnfinished } from './unfinished.ts';
import { switchVersion, versionsAfter } from './versions.ts';

/** A new conversation whose first message has been begun but not sent. */
const findUnsent = (): Conversation | undefined => {
  const id = draftIds().find(id => !findConversation(id));
  return id === undefined ? undefined : { ...newConversation(), id };
};

/** Reads what was saved, and opens the conversation that was open last. */
export async function loadConversations(): Promise<void> {
  try {
    const [saved] = await Promise.all([readConversations(), loadDrafts()]);
    batch(() => {
      takeSaved(saved);
      const id = lastOpen();
      const last = id === null ? undefined : findConversation(id);
      const opened = last ?? findUnsent() ?? saved[0];
      if (opened) open(opened);
    });
    await recoverAnswers();
  } catch (error) {
    showNotice(texts.conversations.notRead(describeStorageError(error as Error)));
  }
}

/** What another tab has saved or deleted. */
onOtherTab(async () => {
  const saved = await readConversations().catch(() => undefined);
  // They are read again after the next change.
  if (!saved) return;
  batch(() => {
    takeSaved(saved);
    for (const [id, { stop }] of runs.value) if (!findConversation(id)) stop();
    const { id, messages } = current.value;
    // A new one is not saved yet, unless another tab has sent its first message.
    const isNew = messages.length === 0;
    current.value = findConversation(id) ?? (isNew ? current.value : (conversations.value[0] ?? newConversation()));
  });
});

/** One that was begun but not sent is shown again. */
export const startNew = (): void => open(findUnsent() ?? newConversation());

export async function remove(id: string): Promise<void> {
  runs.value.get(id)?.stop();
  batch(() => {
    clearDraft(id);
    conversations.value = conversations.value.filter(conversation => conversation.id !== id);
    if (current.value.id === id) current.value = conversations.value[0] ?? newConversation();
  });
  announcement.value = texts.conversations.deleted;
  forgetUnfinished(id);
  await deleteConversation(id).catch(error => showNotice(describeStorageError(error)));
  await deleteSession(id);
}

export async function removeAll(): Promise<void> {
  for (const { stop } of runs.value.values()) stop();
  const ids = conversations.value.map(({ id }) => id);
  batch(() => {
    for (const id of draftIds()) clearDraft(id);
    conversations.value = [];
    current.value = newConversation();
  });
  announcement.value = texts.conversations.allDeleted;
  for (const id of ids) forgetUnfinished(id);
  try {
    await deleteAllConversations();
    await deleteAllStored(ids);
    await deleteAllProfiles();
    forgetModel();
  } catch (error) {
    showNotice((error as Error).message);
  }
}

/** Answers in the conversation that is shown, after its messages are changed. */
const answerAfter = (messages: readonly Message[], options?: AnswerOptions): Promise<void> =>
  answer(current.value, messages, options);

/** Sends what is written. If that is not possible now, it stays where it is. */
export function send(): Promise<void> {
  const { text, attachments } = draft.value;
  const { id } = current.value;
  const message: Message = {
    ...{ id: newId(), role: 'user', text: text.trim() },
    ...(attachments.length > 0 && { attachments }),
  };
  return answerAfter([...current.value.messages, message], { onStart: () => clearDraft(id) });
}

/**
 * Replaces a message of the user, and answers again. What it was, and what followed it, stays as a version. `onStart` is
 * called if that is possible now.
 */
export function edit(message: Message, text: string, onStart: () => void): Promise<void> {
  const { messages } = current.value;
  const edited: Message = { ...message, id: newId(), text, versions: versionsAfter(messages, message) };
  return answerAfter([...before(messages, message.id), edited], { onStart });
}

/** Another answer in place of this one, which stays as a version. */
export function regenerate(message: Message): Promise<void> {
  const { messages } = current.value;
  return answerAfter(before(messages, message.id), { versions: versionsAfter(messages, message) });
}

/** Shows the next (1) or the previous (-1) version of a message, and what followed it. */
export function showVersion(message: Message, step: 1 | -1): Promise<void> {
  const shown = current.value;
  return changeAlone(shown, () => save(withMessages(shown, switchVersion(shown.messages, message, step))));
}

export function rename(id: string, title: string): void {
  const conversation = findConversation(id);
  if (conversation && title.trim()) void save({ ...conversation, title: title.trim() });
}

/** Adds conversations of a file; those that are here already stay as they are. Tells how many. */
export async function importConversations(file: File): Promise<void> {
  try {
    const { fromJson } = await import('./transfer.ts');
    const found = fromJson(await file.text());
    const added = found.filter(({ id }) => !findConversation(id));
    for (const conversation of added) await save(conversation);
    showNotice(texts.transfer.imported(added.length, found.length - added.length));
  } catch (error) {
    refuse(texts.transfer.notImported(file.name, (error as Error).message));
  }
}

/** Answers a question that has no answer. */
export const answerLast = (): Promise<void> => answerAfter(current.value.messages);

/** Goes on with the last answer, which is not complete. */
export const goOn = (message: Message): Promise<void> =>
  answerAfter(before(current.value.messages, message.id), { begun: message });

/** A second conversation with the messages up to this one. */
export function fork(message: Message): void {
  const kept = [...before(current.value.messages, message.id), message];
  const forked = newConversation(kept, texts.conversations.forkTitle(current.value.title));
  void save(forked);
  open(forked);
  announcement.value = texts.conversations.forked;
}

export const stop = (): void => run.value?.stop();
