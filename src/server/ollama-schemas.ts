/** Requests of Ollama's API. */
import { z } from 'zod';
import type { Limits } from './limits.ts';
import { toolList } from './openai-schemas.ts';
import { flag, integer, jsonObject, number, stopStrings } from './sampling-schemas.ts';

const images = z.array(z.unknown()).max(0, 'are not supported: the model reads text').nullish();

/** Options of the runner, such as `num_ctx` and `num_gpu`, are set when the server starts, and ignored here. */
const options = (limits: Limits) =>
  z.object({
    // -1: no limit, -2: the rest of the context.
    num_predict: integer(-2),
    seed: z.int().nullish(),
    temperature: number(0, 100),
    top_k: integer(-1),
    top_p: number(0, 1),
    min_p: number(0, 1),
    repeat_penalty: z.number().positive().max(100).nullish(),
    presence_penalty: number(-2, 2),
    frequency_penalty: number(-2, 2),
    stop: stopStrings(limits).nullish(),
  });

const common = (limits: Limits) => ({
  model: z.string().max(500),
  stream: flag,
  format: z.union([z.enum(['json', '']), jsonObject], { error: 'must be "json" or a JSON Schema' }).nullish(),
  options: options(limits).nullish(),
  think: z
    .union([z.boolean(), z.string().max(100)], { error: 'must be true, false or a level such as "high"' })
    .nullish(),
  keep_alive: z.union([z.number(), z.string()], { error: 'must be seconds, or a text such as "5m"' }).nullish(),
  logprobs: flag,
  top_logprobs: integer(0, 20),
});

const message = z.object({
  role: z.string().min(1).max(100),
  content: z.string().nullish(),
  thinking: z.string().nullish(),
  images,
  tool_calls: z
    .array(
      z.object({ id: z.string().nullish(), function: z.object({ name: z.string(), arguments: jsonObject.nullish() }) }),
    )
    .nullish(),
  tool_name: z.string().nullish(),
  tool_call_id: z.string().nullish(),
});

export const ollamaChatSchema = (limits: Limits) =>
  z.object({
    ...common(limits),
    messages: z.array(message).max(limits.messages).nullish(),
    tools: toolList(limits).nullish(),
  });

export const ollamaGenerateSchema = (limits: Limits) =>
  z.object({
    ...common(limits),
    prompt: z.string().nullish(),
    suffix: z.string().nullish(),
    system: z.string().nullish(),
    raw: flag,
    images,
    template: z.string().max(0, 'is not supported: the template of the model file is used').nullish(),
    context: z.array(z.int()).max(0, 'is not supported. Send the conversation to /api/chat').nullish(),
  });

export const ollamaShowSchema = () =>
  z.object({ model: z.string().max(500).nullish(), name: z.string().max(500).nullish() });

export type OllamaChatRequest = z.infer<ReturnType<typeof ollamaChatSchema>>;
export type OllamaGenerateRequest = z.infer<ReturnType<typeof ollamaGenerateSchema>>;
export type OllamaShowRequest = z.infer<ReturnType<typeof ollamaShowSchema>>;
