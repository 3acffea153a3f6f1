/** Conversations as files: JSON has everything and can be imported, Markdown is for reading. */
import { texts } from '../texts/index.ts';
import type { Attachment, Conversation, Message } from './conversation.ts';

const FORMAT = 'kvasir conversations';
const VERSION = 1;

export const toJson = (conversations: readonly Conversation[]): string =>
  JSON.stringify({ format: FORMAT, version: VERSION, conversations }, undefined, 1);

/** Throws an error in plain words if the text is something else. */
export function fromJson(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error(texts.transfer.notJson);
  }
  if (!isObject(file) || file.format !== FORMAT || !Array.isArray(file.conversations))
    throw new Error(texts.transfer.notOurs);
  if (file.version !== VERSION) throw new Error(texts.transfer.otherVersion(file.version, VERSION));
  return file.conversations.map(readConversation);
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The files may come from anybody: only what is known is taken, and only if it has the right type. */
function readConversation(value: unknown): Conversation {
  const { id, title, updated, messages } = isObject(value) ? value : {};
  if (!isText(id) || !ID.test(id) || !isText(title) || !isNumber(updated)) throw damaged();
  return { id, title, updated, messages: readMessages(messages) };
}

/** It becomes part of a file's name. */
const ID = /^[\w-]{1,64}$/;

const isText = (value: unknown): value is string => typeof value === 'string';
const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);
const damaged = () => new Error(texts.transfer.damaged);

function readMessages(value: unknown): Message[] {
  if (!Array.isArray(value)) throw damaged();
  return value.map(readMessage);
}

function readMessage(value: unknown): Message {
  if (!isObject(value)) throw damaged();
  const { id, role, text, reasoning, error, isFull, startsContext, attachments, stats, versions } = value;
  if (!isText(id) || !isText(text) || (role !== 'user' && role !== 'assistant')) throw damaged();
  return {
    ...{ id, role, text },
    ...(isText(reasoning) && { reasoning }),
    ...(isText(error) && { error }),
    ...(isFull === true && { isFull }),
    ...(startsContext === true && { startsContext }),
    ...(Array.isArray(attachments) && { attachments: attachments.map(readAttachment) }),
    ...(isObject(stats) && { stats: readStats(stats) }),
    ...(isObject(versions) && { versions: readVersions(versions) }),
  };
}

function readAttachment(value: unknown): Attachment {
  const { id, name, text, tokens } = isObject(value) ? value : {};
  if (!isText(id) || !isText(name) || !isText(text)) throw damaged();
  return { id, name, text, ...(isNumber(tokens) && { tokens }) };
}

function readStats(value: Record<string, unknown>): Message['stats'] {
  const { finish, model, codec, ...numbers } = value;
  const { promptTokens, reusedTokens, completionTokens, prefillSeconds, decodeRate } = numbers;
  const counts = { promptTokens, reusedTokens, completionTokens, prefillSeconds, decodeRate };
  if (!isText(codec) || !FINISHES.has(finish) || !Object.values(counts).every(isNumber)) throw damaged();
  return { finish, codec, ...(isText(model) && { model }), ...counts } as Message['stats'];
}

const FINISHES = new Set<unknown>(['stop', 'length', 'cancelled', 'loop']);

function readVersions({ before, after }: Record<string, unknown>): Message['versions'] {
  if (!Array.isArray(before) || !Array.isArray(after)) throw damaged();
  const read = (value: unknown) => {
    const messages = readMessages(value);
    if (messages.length === 0) throw damaged();
    return messages;
  };
  return { before: before.map(read), after: after.map(read) };
}

/** Documents are named, not repeated: they are files already. */
export function toMarkdown({ title, messages }: Conversation): string {
  const parts = messages.map(({ role, text, attachments = [] }) =>
    [
      `## ${role === 'user' ? texts.transfer.question : texts.transfer.answer}`,
      ...attachments.map(({ name }) => `*${texts.transfer.withDocument(name)}*`),
      text.trim(),
    ]
      .filter(Boolean)
      .join('\n\n'),
  );
  return `${[`# ${title || texts.untitled}`, ...parts].join('\n\n')}\n`;
}

/** A name of a file on any system. */
export const fileNameOf = (title: string, extension: string): string =>
  `${
    title
      .replace(/[^\p{L}\p{N} _-]+/gu, '')
      .trim()
      .slice(0, 60)
      .trim() || texts.transfer.fileName
  }.${extension}`;
