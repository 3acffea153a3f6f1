/** Conversations by their words. */
import type { Conversation } from './conversation.ts';

/** Those that have all words of a query in their titles, messages or names of documents, in any order and case. */
export function searchConversations(conversations: readonly Conversation[], query: string): readonly Conversation[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return conversations;
  return conversations.filter(({ title, messages }) => {
    const texts = messages.flatMap(({ text, attachments = [] }) => [text, ...attachments.map(({ name }) => name)]);
    const text = [title, ...texts].join('\n').toLowerCase();
    return words.every(word => text.includes(word));
  });
}
