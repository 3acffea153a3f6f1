/** A conversation as it is shown and saved. All of it is plain data; changes make new objects. */
import type { Finish, ModelInfo, Turn } from '../engine/engine.ts';
import { texts } from '../texts/index.ts';

/** A text that the user has added to a message. */
export interface Attachment {
  id: string;
  name: string;
  text: string;
  /** Once it has been counted. */
  tokens?: number;
}

/** What an answer took. */
export interface AnswerStats {
  finish: Finish;
  promptTokens: number;
  reusedTokens: number;
  completionTokens: number;
  prefillSeconds: number;
  /** Tokens per second. */
  decodeRate: number;
  model?: string;
  codec: string;
}

export interface Message {
  id: string;
  role: 'user' | 'assistant';
  text: string;
  /** What the model thought before it answered. */
  reasoning?: string;
  attachments?: readonly Attachment[];
  stats?: AnswerStats;
  error?: string;
  /** Of an answer: the context was full. */
  isFull?: boolean;
  /** Of a question: the model does not read what is before it. */
  startsContext?: boolean;
  versions?: Versions;
}

/** Other versions of a message, each with the messages that followed it: those that are older, and those that are newer. */
export interface Versions {
  before: readonly (readonly Message[])[];
  after: readonly (readonly Message[])[];
}

export interface Conversation {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  updated: number;
  messages: readonly Message[];
}

/** Not `randomUUID`: pages without https, such as those of a server in the same network, do not have it. */
export const newId = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, '0')).join('');

export const newConversation = (messages: readonly Message[] = [], title = ''): Conversation => ({
  id: newId(),
  title,
  updated: Date.now(),
  messages,
});

const TITLE_LENGTH = 60;

/** The beginning of the first question, or the name of its document. */
function titleOf(messages: readonly Message[]): string {
  const [first] = messages;
  const text = (first?.text || first?.attachments?.[0]?.name || '').replace(/\s+/g, ' ').trim();
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : text;
}

/** A conversation with other messages. A title that the user has not given follows the first question. */
export const withMessages = (conversation: Conversation, messages: readonly Message[]): Conversation => ({
  ...conversation,
  messages,
  title: conversation.title === titleOf(conversation.messages) ? titleOf(messages) : conversation.title,
  updated: Date.now(),
});

/** Documents come before the question. They are named if there are several: a small model answers best without. */
export function contentOf({ text, attachments = [] }: Message): string {
  const documents = attachments.map(({ name, text }) =>
    attachments.length > 1 ? `${name}:\n\n${text.trim()}` : text.trim(),
  );
  return [...documents, text].filter(Boolean).join('\n\n');
}

/**
 * What the model reads. Messages without text, such as failed answers, are left out; the questions around one become one
 * turn, because many chat templates refuse two turns of the user in a row. `begun`: an answer that goes on.
 */
export function turnsOf(messages: readonly Message[], { system, begun }: { system?: string; begun?: Message }): Turn[] {
  const turns: Turn[] = system?.trim() ? [{ role: 'system', content: system.trim() }] : [];
  for (const message of messagesRead(messages)) {
    const content = contentOf(message);
    const last = turns.at(-1);
    if (content && message.role === 'user' && last?.role === 'user') last.content += `\n\n${content}`;
    else if (content) turns.push({ role: message.role, content });
  }
  if (begun)
    turns.push({
      ...{ role: begun.role, content: begun.text },
      ...(begun.reasoning && { reasoning_content: begun.reasoning }),
    });
  return turns;
}

/** The messages that the model reads, but those that were left out. */
export const messagesRead = (messages: readonly Message[]): readonly Message[] =>
  messages.slice(
    Math.max(
      0,
      messages.findLastIndex(message => message.startsContext),
    ),
  );

/** Whether the model reads a question before the last one, which could be left out. */
export const canLeaveOut = (messages: readonly Message[]): boolean =>
  messagesRead(messages).filter(({ role }) => role === 'user').length > 1;

/** Leaves out the oldest questions with their answers: at least one, and until the others take this share of the text. */
export function leaveOut(messages: readonly Message[], share: number): readonly Message[] {
  const read = messagesRead(messages);
  const sizes = read.map(message => contentOf(message).length);
  const all = sizes.reduce((sum, size) => sum + size, 0);
  let left = all;
  const first = read.find(({ role }, i) => {
    const isSmall = i > 0 && role === 'user' && left <= share * all;
    left -= sizes[i]!;
    return isSmall;
  });
  const { id } = first ?? read.findLast(({ role }) => role === 'user')!;
  return messages.map(message => (message.id === id ? { ...message, startsContext: true } : message));
}

/** Whether there was no room for the rest of an answer, or for all of it. */
export const isFull = ({ stats, isFull }: Message, context: number | undefined): boolean =>
  isFull ??
  (stats?.finish === 'length' && stats.promptTokens + stats.completionTokens >= (context ?? Number.POSITIVE_INFINITY));

/** Why an answer is not complete; undefined if it is. It can go on. */
export function describeUnfinished({ stats, error }: Message): string | undefined {
  if (error !== undefined) return '';
  if (stats === undefined) return texts.messages.pageLeft;
  if (stats.finish === 'length') return texts.messages.cutOff;
  if (stats.finish === 'loop') return texts.messages.repeated;
  return stats.finish === 'cancelled' ? texts.messages.stopped : undefined;
}

/** The messages before one, and without it. */
export const before = (messages: readonly Message[], id: string): readonly Message[] =>
  messages.slice(
    0,
    messages.findIndex(message => message.id === id),
  );

/** Tokens in the cache after the last answer: none, if it was made with another model or codec. */
export function cachedTokens(messages: readonly Message[], { id, codec }: Pick<ModelInfo, 'id' | 'codec'>): number {
  const stats = messages.findLast(({ stats }) => stats)?.stats;
  if (stats?.codec !== codec || (stats.model ?? id) !== id) return 0;
  return stats.promptTokens + stats.completionTokens;
}
