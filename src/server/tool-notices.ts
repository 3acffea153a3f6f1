/** Tools of a request: those that the engine can call, and what the client is told of the others. */
import type { Tool, ToolChoice } from '../chat/answer.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import { unenforcedKeywords, unenforcedNotice } from '../chat/tools.ts';
import { createTenantCache } from '../engine/grammar/tenant-cache.ts';
import type { Exchange } from './route.ts';

/** A tool that only runs on another server: a web search, for example. */
export interface IgnoredTool {
  type: string;
  name?: string | null;
}

/** One entry per tool of the request: undefined if it can be called. */
type Ignored = readonly (IgnoredTool | undefined)[];

/** A choice that asks for a tool that is ignored is left to the model. */
export function toolOptions(
  tools: readonly Tool[],
  toolChoice: ToolChoice | undefined,
  ignored: Ignored = [],
): Pick<ChatOptions, 'tools' | 'toolChoice'> {
  const isIgnored =
    typeof toolChoice === 'object'
      ? ignored.some(tool => tool?.name === toolChoice.name)
      : tools.length === 0 && ignored.length > 0;
  return { ...(tools.length > 0 && { tools }), ...(toolChoice && !isIgnored && { toolChoice }) };
}

/** As `unenforcedKeywords`, remembered: clients repeat their tools in every request. */
export function createToolCheck(): Exchange['checkTools'] {
  const known = createTenantCache<readonly string[]>(MAX_KNOWN);
  return ({ name }, tools) => known.get(name, JSON.stringify(tools), () => unenforcedKeywords(tools));
}

const MAX_KNOWN = 32;

/** Throws an InputError if a strict tool cannot be enforced. */
export function noteTools(
  { notify, checkTools, fieldOf, tenant }: Exchange,
  { tools = [], toolChoice }: ChatOptions,
  ignored: Ignored = [],
): void {
  ignored.forEach((tool, i) => {
    if (tool) notify(`tools[${i}] is ignored: this server has no tools of the type ${tool.type.slice(0, 60)}.`);
  });
  const unenforced = toolChoice === 'none' ? [] : checkTools(tenant, tools);
  if (unenforced.length > 0) notify(unenforcedNotice(unenforced.map(fieldOf)));
}

/** Calls of tools that ran on another server, and their results, in the history of a request: they are left out. */
export function noteHosted({ notify }: Exchange, field: string, items: readonly { type?: string | null }[]): void {
  if (items.length === 0) return;
  const types = [...new Set(items.map(({ type }) => type?.slice(0, 60)))].slice(0, MAX_NAMED);
  notify(`${field} has ${types.join(', ')} of tools that ran on another server: they are left out.`);
}

/** Types that a notice names. */
const MAX_NAMED = 8;

/** Names of a request's fields by the options that they become. */
type FieldNames = Readonly<Record<string, string>>;

/**
 * The field of a request that an option of its answer comes from: `chat_template_kwargs` for `render.variables`. Tools
 * have their index in the request, where others may be ignored.
 */
export function fieldOfAnswer(path: string, names: FieldNames, ignored: Ignored = []): string {
  const called = ignored.flatMap((tool, i) => (tool ? [] : [i]));
  return path
    .replace(/^tools\[(\d+)\]/, (_, index: string) => `tools[${called[Number(index)] ?? index}]`)
    .replace(/^render\./, '')
    .replace(/^\w+/, option => (Object.hasOwn(names, option) ? names[option] : option));
}
