/** Session files of `run` and `chat`: a conversation is resumed from its file, and saved to it after each answer. */
import { access, constants, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Model } from '../api/model.ts';
import type { Conversation } from '../chat/conversation.ts';
import type { ChatMessage } from '../model/template.ts';
import { InputError, KvasirError } from '../util/errors.ts';
import { formatCount } from '../util/units.ts';

export const SESSION_HELP = 'session file: the conversation is resumed from it, and saved to it after each answer';

const PREVIEW_CHARACTERS = 200;

export interface SessionFlags {
  session?: string;
  system?: string;
}

export const fileExists = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    error => error.code !== 'ENOENT',
  );

/** The conversation in the session file, or a new one if there is no file. */
export async function openSession(model: Model, { session, system }: SessionFlags): Promise<Conversation> {
  if (session === undefined) return model.conversation({ system });
  if (await fileExists(session)) {
    const conversation = await resumeSession(model, session);
    const [first] = conversation.messages;
    if (system !== undefined && (first?.role !== 'system' || textOf(first) !== system))
      console.error(`--system is not used: ${session} has its own messages.`);
    return conversation;
  }
  // Before the model answers, not after.
  await access(dirname(session), constants.W_OK).catch(({ code }) => {
    throw new InputError(`${session} cannot be written (${code}). Check the path.`);
  });
  return model.conversation({ system });
}

/** Resumes a conversation. A file that does not fit the model, or is damaged, is left as it is. */
export async function resumeSession(model: Model, path: string): Promise<Conversation> {
  try {
    return await model.restore(path);
  } catch (error) {
    if (!(error instanceof KvasirError) || error instanceof InputError) throw error;
    throw new InputError(
      option => `${path}: ${error.describe(option)} The file is left as it is; use another one for a new conversation.`,
      { cause: error },
    );
  }
}

/** "4 messages, 212 tokens". A fork has tokens of its own after its first answer. */
export const formatLength = ({ messages, length }: Conversation): string =>
  `${formatCount(messages.length)} message${messages.length === 1 ? '' : 's'}` +
  (length === 0 ? '' : `, ${formatCount(length)} tokens`);

/** The last question and its answer, each shortened to a few lines; empty if there is none. */
export function formatLastExchange({ messages }: Conversation): string {
  const asked = messages.findLastIndex(({ role }) => role === 'user');
  if (asked < 0) return '';
  const [question, answer] = messages.slice(asked);
  return [`\n> ${previewOf(question)}`, ...(answer ? [previewOf(answer)] : [])].join('\n');
}

/** The beginning of a message on one line. Files are untrusted: control characters could move the cursor or worse. */
export function previewOf(message: ChatMessage): string {
  const text = textOf(message)
    .replace(/[\s\p{Cc}]+/gu, ' ')
    .trim();
  return text.length > PREVIEW_CHARACTERS ? `${text.slice(0, PREVIEW_CHARACTERS).trimEnd()}…` : text;
}

const textOf = ({ content }: ChatMessage): string =>
  typeof content === 'string' ? content : (content ?? []).map(({ text }) => text).join('\n');
