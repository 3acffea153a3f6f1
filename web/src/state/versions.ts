/** Versions of a message: what stood in its place before it was edited or answered again, with all that followed. */
import type { Message, Versions } from './conversation.ts';

const NONE: Versions = { before: [], after: [] };

/** The messages from one on, as a version. */
function tailFrom(messages: readonly Message[], id: string): readonly Message[] {
  const [{ versions: _, ...head }, ...rest] = messages.slice(indexOf(messages, id)) as [Message, ...Message[]];
  return [head, ...rest];
}

const indexOf = (messages: readonly Message[], id: string): number => messages.findIndex(message => message.id === id);

/** The versions of a message that takes the place of this one, as the newest. An empty one that nothing follows is not kept. */
export function versionsAfter(messages: readonly Message[], message: Message): Versions | undefined {
  const { text, reasoning, attachments, versions: { before, after } = NONE } = message;
  const tail = tailFrom(messages, message.id);
  const isWorthKeeping = text || reasoning || attachments?.length || tail.length > 1;
  const all = [...before, ...(isWorthKeeping ? [tail] : []), ...after];
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

/**
 * Puts an answer after its question, which may be in a version by now. What was there of the answer before it was complete
 * is replaced; of another message there, the answer becomes an older version.
 */
export function withAnswer(messages: readonly Message[], answer: Message, question: string): readonly Message[] {
  const at = indexOf(messages, question);
  if (at < 0)
    return messages.map(message => {
      const { versions } = message;
      const put = (tail: readonly Message[]) => withAnswer(tail, answer, question);
      return versions
        ? { ...message, versions: { before: versions.before.map(put), after: versions.after.map(put) } }
        : message;
    });
  const next = messages[at + 1];
  if (!next) return [...messages, answer];
  const { versions: own = NONE, ...head } = answer;
  if (next.id === answer.id) return messages.with(at + 1, { ...head, versions: next.versions });
  const { before, after } = next.versions ?? NONE;
  const isPart = (tail: readonly Message[]) => tail[0]!.id === answer.id;
  const put = (tail: readonly Message[]) => (isPart(tail) ? [head, ...tail.slice(1)] : tail);
  const versions = [...before, ...after].some(isPart)
    ? { before: before.map(put), after: after.map(put) }
    : { before: [...before, ...own.before, [head], ...own.after], after };
  return messages.with(at + 1, { ...next, versions });
}
