/** Where messages end in the tokens of a prompt. */
import { type ChatMessage, textOf } from './message.ts';
import type { Tokenizer } from './tokenizer.ts';

/**
 * For each message the number of tokens up to the end of its content. Templates may trim a content and write other text
 * around it; one that is not found is counted as the template's own text before the next message.
 */
export function messageEnds(
  { tokenBytes }: Pick<Tokenizer, 'tokenBytes'>,
  messages: readonly ChatMessage[],
  ids: readonly number[],
): number[] {
  const bytes = ids.map(tokenId => latin1(tokenBytes(tokenId)));
  const text = bytes.join('');
  let [found, token, read] = [0, 0, 0];
  return messages.map(message => {
    const content = latin1(utf8.encode(textOf(message).trim()));
    const at = content === '' ? -1 : text.indexOf(content, found);
    if (at >= 0) found = at + content.length;
    while (token < ids.length && read < found) read += bytes[token++].length;
    return token;
  });
}

const utf8 = new TextEncoder();

/** One character per byte: a string that can be searched. */
function latin1(bytes: Uint8Array): string {
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  return text;
}
