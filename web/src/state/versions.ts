/** Versions of a message: what stood in its place before it was edited or answered again, with all that followed. */
import type { Message, Versions } from './conversation.ts';

const NONE: Versions = { before: [], after: [] };

/** The messages from one on, as a version. */
function tailFrom(messages: readonly Message[], id: string): readonly Message[] {
  const [{ versions: _, ...head }, ...rest] = messages.slice(indexOf(messages, id)) as [Message, ...Message[]];
  return [head, ...rest];
}

const indexOf = (messages: readonly Message[], id: string): number => messages.findIndex(message => message.id === id);

/** The versions of a message that takes the place of this one, as the newest. One without text is not kept. */
export function versionsAfter(messages: readonly Message[], message: Message): Versions | undefined {
  const { before, after } = message.versions ?? NONE;
  const tail = message.text || message.reasoning ? [tailFrom(messages, message.id)] : [];
  const all = [...before, ...tail, ...after];
  return all.length > 0 ? { before: all, after: [] } : undefined;
}

/** Puts the next (1) or the previous (-1) version of a message in its place. */
export function switchVersion(messages: readonly Message[], message: Message, step: 1 | -1): readonly Message[] {
  const { before, after } = message.versions ?? NONE;
  const all = [...before, tailFrom(messages, message.id), ...after];
  const chosen = before.length + step;
  const [head, ...rest] = all[chosen] ?? [];
  if (!head) return messages;
  const versions = { before: all.slice(0, chosen), after: all.slice(chosen + 1) };
  return [...messages.slice(0, indexOf(messages, message.id)), { ...head, versions }, ...rest];
}
