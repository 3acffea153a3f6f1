/**
 * What is not part of a conversation yet, by conversation: the message that is being written, changes of others, and the
 * answer that grows. It is kept in a database of its own, which no other tab has to read again.
 */
import { texts } from '../texts/index.ts';
import type { Attachment, Message, Versions } from './conversation.ts';
import { createDatabase } from './indexed-db.ts';
import { describeStorageError, showNotice } from './notice.ts';
import { noteSaved } from './unsaved.ts';

/** An answer that is not complete yet. */
export interface Growing {
  /** Without its versions: they are many, and do not grow. */
  message: Message;
  /** The message that it answers. */
  question: string;
  /** Milliseconds since 1970; 0 if its page was left. */
  kept: number;
}

interface Unfinished {
  texts: string;
  attachments: readonly Attachment[];
  /** Messages that are being edited: their new texts, by id. */
  edits: Readonly<Record<string, string>>;
  answers: Growing;
  /** Of the answer that grows. */
  versions: Versions;
}

type Kind = keyof Unfinished;

const KINDS: readonly Kind[] = ['texts', 'attachments', 'edits', 'answers', 'versions'];

const database = createDatabase('kvasir.unfinished', 2, database => {
  for (const kind of KINDS) if (!database.objectStoreNames.contains(kind)) database.createObjectStore(kind);
});

/** Undefined deletes it. */
export function keepUnfinished<K extends Kind>(kind: K, conversation: string, value: Unfinished[K] | undefined): void {
  const id = `${kind} ${conversation}`;
  database
    .run(kind, 'readwrite', store =>
      value === undefined ? store.delete(conversation) : store.put(value, conversation),
    )
    .then(
      () => noteSaved(id, true),
      error => {
        // What could not be deleted is not missed.
        noteSaved(id, value === undefined);
        showNotice(texts.conversations.unfinishedNotSaved(describeStorageError(error)));
      },
    );
}

/** By conversation. */
export async function readUnfinished<K extends Kind>(kind: K): Promise<Map<string, Unfinished[K]>> {
  const [keys, values] = await database.run(kind, 'readonly', store => [store.getAllKeys(), store.getAll()] as const);
  return new Map(keys.result.map((key, i) => [String(key), values.result[i]]));
}

/** Of one conversation. */
export async function findUnfinished<K extends Kind>(
  kind: K,
  conversation: string,
): Promise<Unfinished[K] | undefined> {
  return (await database.run(kind, 'readonly', store => store.get(conversation))).result;
}

export function forgetUnfinished(conversation: string): void {
  for (const kind of KINDS) keepUnfinished(kind, conversation, undefined);
}
