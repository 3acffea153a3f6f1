/** Requests of OpenAI's API. */
import { z } from 'zod';
import type { Limits } from './limits.ts';
import { flag, integer, jsonObject, number, stopStrings, tokenLimit, toolName } from './sampling-schemas.ts';

const MAX_BIASES = 10_000;

/** Entries are counted first: each wrong one would be an issue of its own. */
const logitBias = jsonObject
  .refine(biases => Object.keys(biases).length <= MAX_BIASES, `must have at most ${MAX_BIASES} entries`)
  .pipe(z.record(z.string().regex(/^\d{1,9}$/, 'must be token ids'), z.number().min(-100).max(100)));

/** Fields of /v1/chat/completions and /v1/completions; those after `seed` are vLLM's and llama.cpp's. */
const sampling = (limits: Limits) => ({
  model: z.string().max(500).nullish(),
  stream: flag,
  stream_options: z.object({ include_usage: flag }).nullish(),
  n: integer(1, limits.choices),
  max_tokens: tokenLimit.nullish(),
  temperature: number(0, 100),
  top_p: number(0, 1),
  presence_penalty: number(-2, 2),
  frequency_penalty: number(-2, 2),
  logit_bias: logitBias.nullish(),
  stop: stopStrings(limits).nullish(),
  seed: z.int().nullish(),
  top_k: integer(-1),
  min_p: number(0, 1),
  repetition_penalty: z.number().positive().max(100).nullish(),
  ignore_eos: flag,
  stop_loops: flag,
  cache_salt: z.string().min(1).max(500).nullish(),
  id_slot: integer(-1, 1023),
});

const part = z.looseObject({ type: z.string() });

const message = z.object({
  role: z.string().min(1).max(100),
  content: z.union([z.string(), z.array(part)], { error: 'must be a string or an array of parts' }).nullish(),
  name: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: z
    .array(
      z.object({
        id: z.string().nullish(),
        type: z.string().nullish(),
        function: z.object({
          name: z.string(),
          arguments: z.union([z.string(), jsonObject], { error: 'must be JSON text or an object' }),
        }),
      }),
    )
    .nullish(),
  tool_call_id: z.string().nullish(),
});

export const messageList = ({ messages }: Limits) => z.array(message).min(1).max(messages);

/** Tools of other types are ignored. */
const tool = z
  .object({
    type: z.string(),
    function: z
      .object({
        name: toolName,
        description: z.string().nullish(),
        parameters: jsonObject.nullish(),
        strict: flag,
      })
      .nullish(),
  })
  .refine(({ type, function: called }) => type !== 'function' || called, {
    path: ['function'],
    error: 'must be { name, parameters }',
  });

export const toolList = ({ tools }: Limits) => z.array(tool).max(tools);

const toolChoice = z.union(
  [
    z.enum(['auto', 'none', 'required']),
    z.object({ type: z.literal('function'), function: z.object({ name: z.string() }) }),
    z.object({
      type: z.literal('allowed_tools'),
      allowed_tools: z.object({
        mode: z.enum(['auto', 'required']),
        tools: z.array(z.object({ type: z.string(), function: z.object({ name: z.string() }).nullish() })).min(1),
      }),
    }),
  ],
  {
    error:
      'must be "auto", "none", "required", { "type": "function", "function": { "name" } } or ' +
      '{ "type": "allowed_tools", "allowed_tools": { "mode", "tools" } }',
  },
);

const responseFormat = z.discriminatedUnion(
  'type',
  [
    z.object({ type: z.literal('text') }),
    // With llama.cpp's schema.
    z.object({ type: z.literal('json_object'), schema: jsonObject.nullish() }),
    z.object({
      type: z.literal('json_schema'),
      json_schema: z.object({ name: z.string().nullish(), schema: jsonObject, strict: flag }),
    }),
  ],
  { error: 'must have the type "text", "json_object" or "json_schema"' },
);

export const chatSchema = (limits: Limits) =>
  z.object({
    ...sampling(limits),
    messages: messageList(limits),
    max_completion_tokens: tokenLimit.nullish(),
    return_progress: flag,
    logprobs: flag,
    top_logprobs: integer(0, 20),
    response_format: responseFormat.nullish(),
    tools: toolList(limits).nullish(),
    tool_choice: toolChoice.nullish(),
    // What tools were before they were called tools.
    functions: z.array(z.unknown()).nullish(),
    parallel_tool_calls: flag,
    reasoning_effort: z.string().max(100).nullish(),
    chat_template_kwargs: jsonObject.nullish(),
    // vLLM's.
    continue_final_message: flag,
  });

export type ChatRequest = z.infer<ReturnType<typeof chatSchema>>;
export type OpenaiMessage = ChatRequest['messages'][number];
export type OpenaiTool = z.infer<typeof tool>;

const PROMPT_RULE = 'must be a string, an array of strings, token ids, or an array of arrays of token ids';

type Prompt = string | string[] | number[] | number[][];

const isIds = (value: unknown): boolean =>
  Array.isArray(value) && value.length > 0 && value.every(id => Number.isSafeInteger(id) && id >= 0);

/** Checked at once: a union of arrays would find an issue in each entry, for each of its members. */
const prompt = z
  .union([z.string(), z.array(z.unknown()).min(1)], { error: PROMPT_RULE })
  .refine(
    value =>
      typeof value === 'string' || value.every(one => typeof one === 'string') || isIds(value) || value.every(isIds),
    PROMPT_RULE,
  ) as unknown as z.ZodType<Prompt>;

export const completionSchema = (limits: Limits) =>
  z.object({
    ...sampling(limits),
    prompt,
    logprobs: integer(0, 20),
    echo: flag,
    suffix: z.string().nullish(),
    best_of: integer(1, limits.choices),
  });

export type CompletionRequest = z.infer<ReturnType<typeof completionSchema>>;
