/** What one can do with the conversations. */
import { batch } from '@preact/signals';
import { deleteAllProfiles } from '../engine/profiles.ts';
import { deleteAllStored, deleteSession, restoreSession } from '../engine/sessions.ts';
import { texts } from '../texts/index.ts';
import { type AnswerOptions, answer, changeAlone, recoverAnswers, run, runs } from './answering.ts';
import { connection, forgetModel } from './connection.ts';
import {
  before,
  type Conversation,
  contentOf,
  leaveOut,
  type Message,
  messagesRead,
  newConversation,
  newId,
  withMessages,
} from './conversation.ts';
import {
  conversations,
  current,
  findConversation,
  lastOpen,
  open,
  save,
  saveTitle,
  takeSaved,
} from './conversations.ts';
import { deleteAllConversations, deleteConversation, onOtherTab, readConversations } from './database.ts';
import { changeDraft, changeEdit, clearDraft, type Draft, draft, draftIds, draftOf, loadDrafts } from './drafts.ts';
import { announcement, describeStorageError, offer, refuse, showNotice } from './notice.ts';
import { forgetUnfinished } from './unfinished.ts';
import { noteSaved } from './unsaved.ts';
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

/** Deletes a conversation, and offers to take that back. */
export async function remove(id: string): Promise<void> {
  const [removed, unsent] = [findConversation(id), draftOf(id)];
  runs.value.get(id)?.stop();
  batch(() => {
    clearDraft(id);
    conversations.value = conversations.value.filter(conversation => conversation.id !== id);
    if (current.value.id === id) current.value = conversations.value[0] ?? newConversation();
    if (removed) offer(texts.conversations.deleted, texts.conversations.undo, () => restore(removed, unsent));
  });
  forgetUnfinished(id);
  noteSaved(id, true);
  await deleteConversation(id).catch(error => showNotice(describeStorageError(error)));
  await deleteSession(id);
}

/** What its cache had is read again. */
function restore(removed: Conversation, unsent: Draft): void {
  restoreSession(removed.id);
  void save(removed);
  changeDraft(unsent, removed.id);
  open(removed);
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
  for (const id of ids) {
    forgetUnfinished(id);
    noteSaved(id, true);
  }
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
 * Replaces a message of the user, and answers again. What it was, and what followed it, stays as a version. If that is not
 * possible now, it stays in its editor.
 */
export function edit(message: Message, text: string): Promise<void> {
  const { id, messages } = current.value;
  const edited: Message = { ...message, id: newId(), text, versions: versionsAfter(messages, message) };
  const onStart = () => changeEdit(message.id, undefined, id);
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
  return changeAlone(shown, async () => {
    await save(withMessages(shown, switchVersion(shown.messages, message, step)));
  });
}

export function rename(id: string, title: string): void {
  const conversation = findConversation(id);
  if (conversation && title.trim()) void saveTitle(conversation, title.trim());
}

/** Adds conversations of a file; those that are here already stay as they are. Tells how many. */
export async function importConversations(file: File): Promise<void> {
  try {
    const { fromJson } = await import('./transfer.ts');
    const found = fromJson(await file.text());
    const added = found.filter(({ id }) => !findConversation(id));
    let saved = 0;
    for (const conversation of added) if (await save(conversation)) saved++;
    refuse(texts.transfer.imported(saved, found.length - added.length, added.length - saved));
  } catch (error) {
    refuse(texts.transfer.notImported(file.name, (error as Error).message));
  }
}

/** Answers a question that has no answer. */
export const answerLast = (): Promise<void> => answerAfter(current.value.messages);

/** Goes on with the last answer, which is not complete. */
export const goOn = (message: Message): Promise<void> =>
  answerAfter(before(current.value.messages, message.id), { begun: message });

/** Answers the question of an answer that had no room, or goes on with it, without the oldest messages. */
export async function leaveOutOldest(message: Message): Promise<void> {
  const { engine } = connection.value;
  const shown = current.value;
  const asked = before(shown.messages, message.id);
  if (!engine) return;
  const text = messagesRead(asked).map(contentOf).join('\n');
  const tokens = await engine.countTokens(text).catch(() => 0);
  const share = KEPT_SHARE * Math.min(1, engine.info.context / (tokens || engine.info.context));
  const options = hasBegun(message) ? { begun: message } : { versions: versionsAfter(shown.messages, message) };
  await answer(shown, leaveOut(asked, share), options);
}

/** Of the context: the rest is for what comes. */
const KEPT_SHARE = 0.5;

const hasBegun = ({ text, reasoning }: Message): boolean => Boolean(text || reasoning);

/** Answers the question of an answer that had no room, or goes on with it, in a conversation of its own. */
export function continueElsewhere(message: Message): Promise<void> {
  const shown = current.value;
  const asked = before(shown.messages, message.id);
  const { versions: _, startsContext: __, ...question } = asked.at(-1)!;
  const next = newConversation();
  const { versions: ___, ...begun } = { ...message, id: newId() };
  const onStart = () => {
    open(findConversation(next.id)!);
    // A question that nothing was answered to moves there.
    if (!hasBegun(message) && !message.versions && !asked.at(-1)!.versions)
      void changeAlone(shown, async () => {
        await save(withMessages(shown, asked.slice(0, -1)));
      });
  };
  return answer(next, [{ ...question, id: newId() }], { ...(hasBegun(message) && { begun }), onStart });
}

/** A second conversation with the messages up to this one. */
export function fork(message: Message): void {
  const kept = [...before(current.value.messages, message.id), message];
  const forked = newConversation(kept, texts.conversations.forkTitle(current.value.title));
  void save(forked);
  open(forked);
  announcement.value = texts.conversations.forked;
}

export const stop = (): void => run.value?.stop();
