/** How models mark their reasoning, and the variables of chat templates that ask for it. */

export interface ThinkTags {
  readonly open: string;
  readonly close: string;
}

/** Qwen's, which most models have; Mistral's (Magistral, Ministral 3 Reasoning); Seed-OSS's. */
export const THINK_TAGS: readonly ThinkTags[] = [
  { open: '<think>', close: '</think>' },
  { open: '[THINK]', close: '[/THINK]' },
  { open: '<seed:think>', close: '</seed:think>' },
];

/** The tags of a template's source; undefined: its model does not mark reasoning. */
export const detectThinkTags = (template: string): ThinkTags | undefined =>
  THINK_TAGS.find(({ close }) => template.includes(close));

/** Variables that make a model think, or answer at once. Templates ignore those that they do not know. */
export const thinkVariables = (thinks: boolean): Record<string, unknown> =>
  thinks
    ? { enable_thinking: true, thinking: true }
    : { enable_thinking: false, thinking: false, thinking_budget: 0, reasoning_effort: 'low' };

/** Also `<thinking>`, which some models write in the text. */
const ALL_TAGS: readonly ThinkTags[] = [...THINK_TAGS, { open: '<thinking>', close: '</thinking>' }];

/** Removes reasoning that is marked in the text. One that does not end has no answer after it. */
export function withoutThinking(text: string): string {
  const end = Math.max(...ALL_TAGS.map(({ close }) => endOf(text, close)));
  const rest = text.slice(Math.max(0, end));
  const starts = ALL_TAGS.map(({ open }) => rest.indexOf(open)).filter(start => start >= 0);
  return rest.slice(0, Math.min(rest.length, ...starts));
}

function endOf(text: string, tag: string): number {
  const start = text.lastIndexOf(tag);
  return start < 0 ? -1 : start + tag.length;
}
