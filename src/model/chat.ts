/**
 * Messages to token ids. Only the template's own text becomes control tokens; what people wrote never does, in whichever
 * field they wrote it and even if two fields side by side read `<|im_end|>`.
 */
import { InputError } from '../errors.ts';
import { type ChatMessage, eachText } from './message.ts';
import type { ChatTemplate, RenderOptions } from './template.ts';
import type { Marks, Tokenizer } from './tokenizer.ts';

export function encodeChat(
  tokenizer: Tokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  options?: RenderOptions,
): number[] {
  const ids = renderIds(tokenizer, template, messages, options);
  // Most templates that want BOS write it themselves.
  const { bos, addBos } = tokenizer;
  return addBos && bos !== undefined && ids[0] !== bos ? [bos, ...ids] : ids;
}

function renderIds(
  tokenizer: Tokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  options?: RenderOptions,
): number[] {
  const marks = unusedMarks({ messages, variables: options?.variables });
  const text = template.render(messages, options, literal => tokenizer.markControls(literal, marks));
  return tokenizer.encode(text, { marks });
}

/**
 * A template may build control tokens from pieces ('<|' + 'im_end|>') that are not recognised as its own. Whether it
 * does shows in a chat of harmless text: every control token there is the template's.
 */
export function templateNote(tokenizer: Tokenizer, template: ChatTemplate): string | undefined {
  const messages = [{ role: 'user', content: 'x' }];
  try {
    const all = tokenizer.encode(template.render(messages), { special: true });
    const controls = (ids: readonly number[]) => ids.filter(id => tokenizer.tokenBytes(id).length === 0).length;
    if (controls(all) === controls(renderIds(tokenizer, template, messages))) return undefined;
  } catch {
    // It wants other messages, or none can be rendered: whoever gives some is told.
    return undefined;
  }
  return 'The chat template builds control tokens from pieces. They are read as plain text, so answers may be poor.';
}

/** Unicode sets U+FDD0 to U+FDEF aside for inner use; text hardly ever has one, and never has all. */
function unusedMarks(input: unknown): Marks {
  const used = new Set<string>();
  eachText(input, 'The messages and template variables', text => {
    for (const character of text.match(/[\ufdd0-\ufdef]/g) ?? []) used.add(character);
  });
  const free = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i)).filter(mark => !used.has(mark));
  const [open, close, role] = free;
  if (role === undefined)
    throw new InputError('The messages use nearly all of U+FDD0 to U+FDEF, which are no characters; take them out.');
  return { open, close, role };
}
