/** A request's sampling fields as options of the engine. */
import type { GenerateOptions } from '../engine/generate.ts';
import { invalidRequest } from './errors.ts';
import type { Limits } from './limits.ts';
import type { CompletionRequest } from './openai-schemas.ts';

type Fields = Omit<CompletionRequest, 'prompt' | 'logprobs' | 'echo' | 'suffix' | 'best_of'>;

/** Null and undefined both mean: not given. */
const given = <T>(value: T | null | undefined): T | undefined => value ?? undefined;

/** The options of OpenAI's fields, with OpenAI's defaults. */
export function samplingOptions(fields: Fields, maxTokens: number | null | undefined, limits: Limits): GenerateOptions {
  const { top_k: topK } = fields;
  return {
    temperature: fields.temperature ?? 1,
    topP: topPOf(fields.top_p),
    // -1 is vLLM's word for "off".
    topK: topK == null || topK < 0 ? undefined : topK,
    minP: given(fields.min_p),
    repetitionPenalty: given(fields.repetition_penalty),
    presencePenalty: given(fields.presence_penalty),
    frequencyPenalty: given(fields.frequency_penalty),
    logitBias: given(fields.logit_bias),
    stop: stopsOf(fields.stop),
    ignoreEos: given(fields.ignore_eos),
    stopLoops: given(fields.stop_loops),
    maxTokens: maxTokensOf(maxTokens, limits),
  };
}

/** As many as the server allows, if the request has no limit of its own. */
export const maxTokensOf = (limit: number | null | undefined, { output }: Limits): number =>
  limit == null || limit <= 0 ? output : Math.min(limit, output);

/** Less than the most likely token of any vocabulary has. */
const SMALLEST_TOP_P = 1e-6;

/** 0 leaves the most likely token, as with other servers. */
export const topPOf = (share: number | null | undefined): number | undefined =>
  share === 0 ? SMALLEST_TOP_P : given(share);

/** Empty ones stop nothing. */
export function stopsOf(stop: string | readonly string[] | null | undefined): string[] | undefined {
  const stops = [stop ?? []].flat().filter(text => text !== '');
  return stops.length > 0 ? stops : undefined;
}

/** Each answer of a request has a seed of its own. */
export const seedOf = (seed: number | null | undefined, index: number): number | undefined =>
  seed == null ? undefined : seed + index;

/** The slot that a request asks for; -1 is llama.cpp's word for "any". */
export function requestedSlot({ id_slot: slot, cache_salt: salt }: Fields, choices: number): number | undefined {
  if (slot == null || slot < 0) return undefined;
  if (choices > 1) throw invalidRequest('A slot has one answer at a time. Use n: 1 with id_slot.', 'id_slot');
  if (salt != null) throw invalidRequest('A slot has a cache of its own. Use id_slot without cache_salt.', 'id_slot');
  return slot;
}
