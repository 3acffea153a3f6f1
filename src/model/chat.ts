/**
 * Messages to token ids. The template's own words become control tokens; what people wrote never does, even if it
 * reads `<|im_end|>`: a mark is put into such look-alikes before the template sees them, and taken out after.
 */
import { InputError } from '../errors.ts';
import type { ChatMessage, ChatTemplate, RenderOptions } from './template.ts';
import type { Tokenizer } from './tokenizer.ts';

export function encodeChat(
  tokenizer: Tokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  options?: RenderOptions,
): number[] {
  const mark = unusedMark(messages);
  const guarded = messages.map(message => ({
    ...message,
    role: tokenizer.guard(message.role, mark),
    content: tokenizer.guard(message.content, mark),
  }));
  const ids = tokenizer.encode(template.render(guarded, options), { special: true, mark });
  // Most templates that want BOS write it themselves.
  const { bos, addBos } = tokenizer;
  return addBos && bos !== undefined && ids[0] !== bos ? [bos, ...ids] : ids;
}

/** Unicode sets U+FDD0 to U+FDEF aside for inner use; text hardly ever has one, and never has all. */
function unusedMark(messages: readonly ChatMessage[]): string {
  for (let code = 0xfdd0; code <= 0xfdef; code++) {
    const mark = String.fromCharCode(code);
    if (!messages.some(({ role, content }) => role.includes(mark) || content.includes(mark))) return mark;
  }
  throw new InputError('The messages use all of U+FDD0 to U+FDEF, which are no characters; take them out.');
}
