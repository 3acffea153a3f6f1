/**
 * Chat messages to token ids. Only the template's own text becomes control tokens; user text never does, in any field,
 * even if two fields side by side read `<|im_end|>`.
 */
import { InputError } from '../util/errors.ts';
import { type ChatMessage, visitStrings } from './message.ts';
import type { ChatTemplate, RenderOptions } from './template.ts';
import type { ChatTokenizer, ControlMarks } from './tokenizer.ts';

/** Text of an answer that has begun, and the markers around it, which may be control tokens. */
export type AnswerStart = readonly ({ text: string } | { marker: string })[];

export interface EncodeOptions extends RenderOptions {
  /** More are a ContextError. */
  maxTokens?: number;
  /** Comes after the prompt. */
  answerStart?: AnswerStart;
}

export function encodeChat(
  tokenizer: ChatTokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  options?: EncodeOptions,
): number[] {
  const ids = renderIds(tokenizer, template, messages, options);
  // Most templates that need BOS write it themselves.
  const { bos, addBos } = tokenizer;
  return addBos && bos !== undefined && ids[0] !== bos ? [bos, ...ids] : ids;
}

function renderIds(
  tokenizer: ChatTokenizer,
  template: ChatTemplate,
  messages: readonly ChatMessage[],
  { maxTokens, answerStart = [], ...options }: EncodeOptions = {},
): number[] {
  const marks = unusedMarks({ messages, answerStart, variables: options.variables });
  const mark = (literal: string) => tokenizer.markControlTokens(literal, marks);
  const prompt = template.render(messages, options, mark);
  const start = answerStart.map(part => ('marker' in part ? mark(part.marker) : part.text)).join('');
  return tokenizer.encodeMarked(prompt + start, marks, maxTokens);
}

/**
 * Warns about a template that builds control tokens from pieces ('<|' + 'im_end|>'), which are not recognized. Detected
 * by rendering a harmless chat, where every control token comes from the template.
 */
export function chatTemplateWarning(tokenizer: ChatTokenizer, template: ChatTemplate): string | undefined {
  const messages = [{ role: 'user', content: 'x' }];
  try {
    const all = tokenizer.encode(template.render(messages), { parseSpecialTokens: true });
    const controls = (ids: readonly number[]) => ids.filter(id => tokenizer.tokenBytes(id).length === 0).length;
    if (controls(all) === controls(renderIds(tokenizer, template, messages))) return undefined;
  } catch {
    // The template rejects this chat. Real messages that it rejects get their own error.
    return undefined;
  }
  return 'The chat template builds control tokens from pieces. They are encoded as plain text, so answers may be poor.';
}

/** Noncharacters U+FDD0 to U+FDEF that the input does not contain: Unicode reserves them for internal use. */
function unusedMarks(input: unknown): ControlMarks {
  const used = new Set<string>();
  visitStrings(input, 'The messages and template variables', text => {
    for (const character of text.match(/[\ufdd0-\ufdef]/g) ?? []) used.add(character);
  });
  const free = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i)).filter(mark => !used.has(mark));
  const [open, close, role] = free;
  if (role === undefined)
    throw new InputError('The messages contain nearly all of U+FDD0 to U+FDEF, which are not characters; remove them.');
  return { open, close, role };
}
