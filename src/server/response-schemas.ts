/** Requests of OpenAI's Responses API. */
import { z } from 'zod';
import type { Limits } from './limits.ts';
import { flag, integer, jsonObject, number, tokenLimit, toolName } from './sampling-schemas.ts';

const id = z.string().max(200);

const text = z.discriminatedUnion('type', [
  z.object({ type: z.enum(['input_text', 'output_text', 'text']), text: z.string() }),
  z.object({ type: z.literal('refusal'), refusal: z.string() }),
]);

const textOrParts = z.union([z.string(), z.array(text)]);

const message = z.object({
  type: z.literal('message').nullish(),
  role: z.enum(['user', 'assistant', 'system', 'developer']),
  content: textOrParts,
});

const functionCall = z.object({
  type: z.literal('function_call'),
  call_id: id,
  name: z.string(),
  arguments: z.string(),
});

const functionCallOutput = z.object({ type: z.literal('function_call_output'), call_id: id, output: textOrParts });

/** What other servers have encrypted cannot be read, and is left out. */
const reasoning = z.object({
  type: z.literal('reasoning'),
  content: z.array(z.object({ text: z.string() })).nullish(),
});

/** Clients that rely on stored answers send the ids of their items instead. */
const itemReference = z.object({ type: z.literal('item_reference'), id });

/** What tools that are ignored have done for an earlier answer: most of them run on OpenAI's servers. */
const HOSTED_ITEMS = [
  'web_search_call',
  'file_search_call',
  'code_interpreter_call',
  'image_generation_call',
  'computer_call',
  'computer_call_output',
  'local_shell_call',
  'local_shell_call_output',
  'shell_call',
  'shell_call_output',
  'apply_patch_call',
  'apply_patch_call_output',
  'mcp_call',
  'mcp_list_tools',
  'mcp_approval_request',
  'mcp_approval_response',
  'custom_tool_call',
  'custom_tool_call_output',
] as const;

const hosted = z.object({ type: z.enum(HOSTED_ITEMS) });

const inputItem = z.union([message, functionCall, functionCallOutput, reasoning, itemReference, hosted]);

export const isHosted = (item: { type?: string | null }): item is HostedItem =>
  (HOSTED_ITEMS as readonly unknown[]).includes(item.type);

/** Which item is wrong: a union tells only that none of its members fits. */
function describeInput(input: unknown): string {
  const index = Array.isArray(input) ? input.findIndex(item => !inputItem.safeParse(item).success) : -1;
  return index < 0
    ? 'must be a string or an array of items'
    : `item ${index} must be a message of text, a function_call, a function_call_output, reasoning or an item_reference. ` +
        'Others, and images, audio and files, are not supported';
}

/** Tools of other types are ignored. */
const tool = z
  .object({
    type: z.string(),
    name: toolName.nullish(),
    description: z.string().nullish(),
    parameters: jsonObject.nullish(),
    strict: flag,
  })
  .refine(({ type, name }) => type !== 'function' || name != null, { path: ['name'], error: 'must be a string' });

/** Tools that OpenAI runs; they are not here, and a choice of one is left to the model. */
const HOSTED_TOOLS = [
  'code_interpreter',
  'computer_use_preview',
  'file_search',
  'image_generation',
  'mcp',
  'web_search',
  'web_search_preview',
  'web_search_preview_2025_03_11',
] as const;

const toolChoice = z.union(
  [
    z.enum(['auto', 'none', 'required']),
    z.object({ type: z.literal('function'), name: z.string() }),
    z.object({
      type: z.literal('allowed_tools'),
      mode: z.enum(['auto', 'required']),
      tools: z.array(z.object({ type: z.string(), name: z.string().nullish() })).min(1),
    }),
    z.object({ type: z.enum(HOSTED_TOOLS) }),
  ],
  {
    error:
      'must be "auto", "none", "required", { "type": "function", "name" } or { "type": "allowed_tools", "mode", "tools" }',
  },
);

const textFormat = z.discriminatedUnion(
  'type',
  [
    z.object({ type: z.literal('text') }),
    z.object({ type: z.literal('json_object') }),
    z.object({
      type: z.literal('json_schema'),
      name: z.string(),
      description: z.string().nullish(),
      schema: jsonObject,
      strict: flag,
    }),
  ],
  { error: 'must have the type "text", "json_object" or "json_schema"' },
);

const unsupported = (error: string) => z.union([z.null(), z.literal(false)], { error }).optional();

export const responsesSchema = (limits: Limits) =>
  z.object({
    model: z.string().max(500).nullish(),
    input: z.union([z.string(), z.array(inputItem).min(1).max(limits.messages)], {
      error: ({ input }) => describeInput(input),
    }),
    instructions: z.string().nullish(),
    previous_response_id: id.nullish(),
    store: flag,
    stream: flag,
    max_output_tokens: tokenLimit.nullish(),
    temperature: number(0, 100),
    top_p: number(0, 1),
    top_logprobs: integer(0, 20),
    include: z.array(z.string()).max(100).nullish(),
    text: z.object({ format: textFormat.nullish() }).nullish(),
    reasoning: z.object({ effort: z.string().max(100).nullish() }).nullish(),
    tools: z.array(tool).max(limits.tools).nullish(),
    tool_choice: toolChoice.nullish(),
    parallel_tool_calls: flag,
    metadata: z.record(z.string().max(64), z.string().max(512)).nullish(),
    cache_salt: z.string().min(1).max(500).nullish(),
    chat_template_kwargs: jsonObject.nullish(),
    background: unsupported('must be false: answers are streamed, or waited for'),
    conversation: unsupported('is not supported. Use previous_response_id, or send all items as input'),
    prompt: unsupported('is not supported: there are no stored prompts. Send instructions and input'),
  });

export type ResponsesRequest = z.infer<ReturnType<typeof responsesSchema>>;
export type HostedItem = z.infer<typeof hosted>;
export type InputItem = z.infer<typeof inputItem>;
