/** Requests of Anthropic's API. */
import { z } from 'zod';
import type { Limits } from './limits.ts';
import { flag, integer, jsonObject, number, tokenLimit, toolName } from './sampling-schemas.ts';

const text = z.object({ type: z.literal('text'), text: z.string() });

const textOrBlocks = z.union([z.string(), z.array(text)], { error: 'must be a string or an array of text blocks' });

/** What Anthropic's servers have done for an earlier answer. */
const HOSTED = [
  'server_tool_use',
  'mcp_tool_use',
  'mcp_tool_result',
  'tool_search_tool_result',
  'web_search_tool_result',
  'web_fetch_tool_result',
  'code_execution_tool_result',
  'bash_code_execution_tool_result',
  'text_editor_code_execution_tool_result',
] as const;

const block = z.discriminatedUnion('type', [
  text,
  z.object({ type: z.literal('thinking'), thinking: z.string() }),
  // What other servers have encrypted cannot be read.
  z.object({ type: z.literal('redacted_thinking') }),
  z.object({ type: z.literal('tool_use'), id: z.string(), name: z.string(), input: jsonObject }),
  z.object({
    type: z.literal('tool_result'),
    tool_use_id: z.string(),
    content: textOrBlocks.nullish(),
    is_error: flag,
  }),
  z.object({ type: z.enum(HOSTED) }),
]);

export const isHosted = ({ type }: { type: string }): boolean => (HOSTED as readonly string[]).includes(type);

/** Which block is wrong: a union tells only that none of its members fits. */
function describeContent(content: unknown): string {
  const index = Array.isArray(content) ? content.findIndex(one => !block.safeParse(one).success) : -1;
  return index < 0
    ? 'must be a string or an array of blocks'
    : `block ${index} must be text, tool_use, tool_result (of text) or thinking. Images and documents are not supported`;
}

const message = z.object({
  role: z.enum(['user', 'assistant', 'system']),
  content: z.union([z.string(), z.array(block)], { error: ({ input }) => describeContent(input) }),
});

/** Tools of other types than `custom` are Anthropic's own, which are ignored. */
const tool = z
  .object({
    type: z.string().nullish(),
    name: toolName.nullish(),
    description: z.string().nullish(),
    input_schema: jsonObject.nullish(),
    strict: flag,
  })
  .refine(tool => !isCustom(tool) || tool.name, { path: ['name'], error: 'must be a string' })
  .refine(tool => !isCustom(tool) || tool.input_schema, { path: ['input_schema'], error: 'must be an object' });

export const isCustom = ({ type }: { type?: string | null }): boolean => type == null || type === 'custom';

const toolChoice = z.discriminatedUnion(
  'type',
  [
    z.object({ type: z.literal('auto'), disable_parallel_tool_use: flag }),
    z.object({ type: z.literal('any'), disable_parallel_tool_use: flag }),
    z.object({ type: z.literal('tool'), name: z.string(), disable_parallel_tool_use: flag }),
    z.object({ type: z.literal('none') }),
  ],
  { error: 'must have the type "auto", "any", "tool" or "none"' },
);

const prompt = (limits: Limits) => ({
  model: z.string().max(500).nullish(),
  messages: z.array(message).min(1).max(limits.messages),
  system: textOrBlocks.nullish(),
  tools: z.array(tool).max(limits.tools).nullish(),
  tool_choice: toolChoice.nullish(),
  thinking: z.object({ type: z.enum(['enabled', 'disabled', 'adaptive']) }).nullish(),
});

/** Of the answer. */
const format = z
  .object({ type: z.literal('json_schema', { error: 'must be "json_schema"' }), schema: jsonObject })
  .nullish();

export const countTokensSchema = (limits: Limits) => z.object(prompt(limits));

export const messagesSchema = (limits: Limits) =>
  z.object({
    ...prompt(limits),
    max_tokens: tokenLimit,
    stream: flag,
    temperature: number(0, 1),
    top_p: number(0, 1),
    top_k: integer(0),
    output_config: z.object({ format }).nullish(),
    // Its name in the beta.
    output_format: format,
    stop_sequences: z.array(z.string().max(limits.stopLength)).max(limits.stops).nullish(),
  });

export type MessagesRequest = z.infer<ReturnType<typeof messagesSchema>>;
export type CountTokensRequest = z.infer<ReturnType<typeof countTokensSchema>>;
export type AnthropicMessage = MessagesRequest['messages'][number];
