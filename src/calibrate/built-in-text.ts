/**
 * The calibration text of the package: `calibration-text/`, one file per kind of text, documents separated by lines of
 * `%%%%`. Node only.
 */
import { readFile } from 'node:fs/promises';
import type { ModelFile } from '../engine/engine.ts';
import { encodeChat } from '../model/chat.ts';
import type { ChatMessage } from '../model/message.ts';
import { InputError } from '../util/errors.ts';
import type { BuiltInText } from './rows.ts';

/** The files, name.txt, and their shares of the rows. Natural language is diverse: it needs more text than code. */
const SHARES = {
  encyclopedia: 13,
  prose: 6,
  chat: 6,
  'web-code': 4,
  'systems-code': 4,
  'c-headers': 3,
  structured: 3,
  tables: 2,
  logs: 2,
  maths: 3,
  markdown: 2,
  legal: 2,
  languages: 4,
  recall: 3,
};
type Kind = keyof typeof SHARES;

const DOCUMENT_END = '\n%%%%\n';
/** A line that starts a message of a chat. */
const MESSAGE_START = /^\[(system|user|assistant)\]\n/m;
/** Some templates print the current date; calibration must not depend on it. */
const CHAT_DATE = new Date(Date.UTC(2025, 0, 15));

/** Hyphens within words, commas and points within numbers; and other punctuation, with the spaces around it. */
const PUNCTUATION = /(?<=\w)-(?=\w)|(?<=\d)[.,](?=\d)| *([.,;:!?()"\n]|'s) */g;

export const readBuiltInText = (file: Pick<ModelFile, 'tokenizer' | 'template'>): Promise<BuiltInText[]> =>
  Promise.all(
    (Object.keys(SHARES) as Kind[]).map(async kind => ({
      name: kind,
      share: SHARES[kind],
      ids: encodeDocuments(file, kind, await readDocuments(kind)),
    })),
  );

export async function readDocuments(kind: Kind): Promise<string[]> {
  const text = await readFile(new URL(`../../calibration-text/${kind}.txt`, import.meta.url), 'utf8');
  return text.trimEnd().split(DOCUMENT_END);
}

function encodeDocuments(file: Pick<ModelFile, 'tokenizer' | 'template'>, kind: Kind, documents: string[]): number[] {
  if (kind === 'chat') return documents.flatMap(chat => encodeConversation(file, parseConversation(chat)));
  return documents.flatMap((document, i) =>
    file.tokenizer.encode(`${kind === 'encyclopedia' && i % 2 === 1 ? addSpaces(document) : document}\n\n\n`),
  );
}

/** Spaces around punctuation, as in older corpora: the same words, other tokens. */
export function addSpaces(text: string): string {
  const spaced = text.replace(PUNCTUATION, (all, mark?: string) => (mark ? ` ${mark} ` : ` @${all}@ `));
  return spaced.replace(/ +/g, ' ');
}

export function parseConversation(text: string): ChatMessage[] {
  const [, ...parts] = text.split(MESSAGE_START);
  return Array.from({ length: parts.length / 2 }, (_, i) => ({
    role: parts[2 * i],
    content: parts[2 * i + 1].trimEnd(),
  }));
}

/** Encodes a conversation with the model's chat template; without its system message if the template refuses it. */
function encodeConversation(
  { tokenizer, template }: Pick<ModelFile, 'tokenizer' | 'template'>,
  messages: readonly ChatMessage[],
): number[] {
  const options = { addGenerationPrompt: false, now: CHAT_DATE };
  try {
    return encodeChat(tokenizer, template, messages, options);
  } catch (error) {
    if (!(error instanceof InputError) || messages[0].role !== 'system') throw error;
    return encodeChat(tokenizer, template, messages.slice(1), options);
  }
}
