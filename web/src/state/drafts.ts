/** Messages that are being written or edited: each conversation has its own, which outlive the page. */
import { batch, computed, signal } from '@preact/signals';
import { texts } from '../texts/index.ts';
import { connection } from './connection.ts';
import { type Attachment, newId } from './conversation.ts';
import { current } from './conversations.ts';
import { announcement } from './notice.ts';
import { keepUnfinished, readUnfinished } from './unfinished.ts';

export interface Draft {
  text: string;
  attachments: readonly Attachment[];
}

const EMPTY: Draft = { text: '', attachments: [] };

const drafts = signal<ReadonlyMap<string, Draft>>(new Map());

export const draftOf = (conversation: string): Draft => drafts.value.get(conversation) ?? EMPTY;

/** Of the conversation that is shown. */
export const draft = computed(() => draftOf(current.value.id));

/** Conversations with a draft. */
export const draftIds = (): string[] => [...drafts.value.keys()];

export function changeDraft(changed: Partial<Draft>, conversation = current.value.id): void {
  const { text, attachments } = { ...EMPTY, ...drafts.value.get(conversation), ...changed };
  const rest = [...drafts.value].filter(([id]) => id !== conversation);
  const isEmpty = text === '' && attachments.length === 0;
  drafts.value = new Map(isEmpty ? rest : [...rest, [conversation, { text, attachments }]]);
  // Documents are large: they are not written again with every letter.
  if (changed.text !== undefined) keepUnfinished('texts', conversation, text || undefined);
  if (changed.attachments)
    keepUnfinished('attachments', conversation, attachments.length > 0 ? attachments : undefined);
}

export const clearDraft = (conversation = current.value.id): void => changeDraft(EMPTY, conversation);

/** New texts of messages, by conversation and message. */
const edits = signal<ReadonlyMap<string, Readonly<Record<string, string>>>>(new Map());

/** What a message of the conversation that is shown is being changed to; undefined if it is not. */
export const editOf = (message: string): string | undefined => edits.value.get(current.value.id)?.[message];

/** Undefined: it is not changed any more. */
export function changeEdit(message: string, text: string | undefined, conversation = current.value.id): void {
  const { [message]: _, ...others } = edits.value.get(conversation) ?? {};
  const changed = text === undefined ? others : { ...others, [message]: text };
  const isEmpty = Object.keys(changed).length === 0;
  const rest = [...edits.value].filter(([id]) => id !== conversation);
  edits.value = new Map(isEmpty ? rest : [...rest, [conversation, changed]]);
  keepUnfinished('edits', conversation, isEmpty ? undefined : changed);
}

export async function loadDrafts(): Promise<void> {
  edits.value = await readUnfinished('edits');
  const texts = await readUnfinished('texts');
  const attachments = await readUnfinished('attachments');
  const ids = new Set([...texts.keys(), ...attachments.keys()]);
  drafts.value = new Map(
    [...ids].map(id => [id, { text: texts.get(id) ?? '', attachments: attachments.get(id) ?? [] }]),
  );
}

/** Adds a document to a draft, and counts its tokens. */
export async function addText(name: string, text: string, conversation = current.value.id): Promise<void> {
  const attachmentsNow = () => drafts.value.get(conversation)?.attachments ?? [];
  const added: Attachment = { id: newId(), name, text };
  batch(() => {
    changeDraft({ attachments: [...attachmentsNow(), added] }, conversation);
    announcement.value = texts.documents.added(name);
  });
  const tokens = await connection.value.engine?.countTokens(text).catch(() => undefined);
  // It may have been sent or removed meanwhile.
  if (tokens === undefined || !attachmentsNow().includes(added)) return;
  const counted = attachmentsNow().map(item => (item === added ? { ...item, tokens } : item));
  changeDraft({ attachments: counted }, conversation);
}

export const removeAttachment = (id: string): void =>
  changeDraft({ attachments: draft.value.attachments.filter(item => item.id !== id) });
