/** POST /v1/completions: continues texts or token ids. */
import type { Result, Token } from '../engine/stream.ts';
import { NO_INFILL } from '../model/tokenizer.ts';
import type { ModelService } from '../worker/service.ts';
import { cacheDifference, explainPromptCache } from './cache-difference.ts';
import { createChunks } from './chunks.ts';
import { invalidRequest } from './errors.ts';
import type { AnswerEvent } from './jobs.ts';
import type { Limits } from './limits.ts';
import { type CompletionRequest, completionSchema } from './openai-schemas.ts';
import type { Exchange, Route } from './route.ts';
import { requestedSlot, samplingOptions, seedOf } from './sampling.ts';
import { completionLogprobs } from './token-texts.ts';
import { openaiUsage } from './usage.ts';

type Prompt = string | number[];

/** OpenAI's default of this route. */
const DEFAULT_MAX_TOKENS = 16;

export const completions: Route<CompletionRequest> = {
  method: 'post',
  path: '/v1/completions',
  summary: 'Continues a text or token ids. Streams with `stream: true`.',
  schema: completionSchema,
  streams: true,
  promptField: 'prompt',
  async handle(exchange, request) {
    const { id, jobs } = exchange;
    const model = exchange.resolveModel(request.model);
    const events = await runCompletions(exchange, request);
    const prompts = promptsOf(request.prompt);
    const perPrompt = request.n ?? 1;
    const choices = prompts.length * perPrompt;
    const service = jobs.service();
    const echoes = await Promise.all(
      prompts.map(prompt => (request.echo ? (typeof prompt === 'string' ? prompt : service.detokenize(prompt)) : '')),
    );
    const completion = {
      head: { id: `cmpl-${id}`, object: 'text_completion', created: Math.floor(Date.now() / 1000), model },
      request,
      service,
      echoOf: (index: number) => echoes[Math.floor(index / perPrompt)],
      usage: (results: Result[]) => usageOf(results, perPrompt, cacheDifference(exchange)),
    };
    return request.stream
      ? exchange.stream(streamChunks(completion, events, choices))
      : exchange.json(await collectChoices(completion, events, choices));
  },
};

/** Starts the completions of a request. Other APIs bring their requests into this form. */
export async function runCompletions(exchange: Exchange, request: CompletionRequest): Promise<Events> {
  const { limits, jobs, tenant, signal, onAnswer } = exchange;
  checkRequest(request, jobs.service());
  const prompts = promptsOf(request.prompt);
  const perPrompt = request.n ?? 1;
  const choices = prompts.length * perPrompt;
  checkChoices(choices, limits);
  const slot = requestedSlot(request, choices);
  const suffix = request.suffix || undefined;
  // A raw prompt has no template that could write control tokens.
  const encoding = { parseSpecialTokens: suffix === undefined, suffix };
  const cacheSalt = request.cache_salt ?? undefined;
  const options = {
    ...samplingOptions(request, request.max_tokens ?? DEFAULT_MAX_TOKENS, limits),
    ...(request.logprobs != null && { logprobs: request.logprobs }),
    ...encoding,
  };
  await explainPromptCache(exchange, prompts[0], { ...encoding, cacheSalt });
  return jobs.run<Token>({
    ...{ tenant, signal, choices, onAnswer },
    promptLength: prompts.reduce((sum, { length }) => sum + length + (suffix?.length ?? 0), 0) * perPrompt,
    open: (service, index, stop) =>
      service.generate(prompts[Math.floor(index / perPrompt)], {
        ...options,
        slot,
        seed: seedOf(request.seed, index % perPrompt),
        tenant: tenant.name,
        cacheSalt,
        signal: stop,
      }),
    countTokens: () => 1,
  });
}

type Events = AsyncGenerator<AnswerEvent<Token>, void, void>;

interface Completion {
  head: object;
  request: CompletionRequest;
  service: ModelService;
  /** The prompt of an answer, if it is to be repeated. */
  echoOf(index: number): string;
  usage(results: Result[]): object;
}

function checkRequest(request: CompletionRequest, { info }: ModelService): void {
  if (request.suffix && !info.infill) throw invalidRequest(NO_INFILL, 'suffix');
  if (request.suffix && promptsOf(request.prompt).some(prompt => typeof prompt !== 'string'))
    throw invalidRequest('suffix needs a prompt that is a text, not token ids.', 'suffix');
  if (request.echo && request.logprobs != null)
    throw invalidRequest('echo with logprobs is not supported: prompts have no log probabilities.', 'echo');
  if (request.best_of != null && request.best_of > (request.n ?? 1))
    throw invalidRequest('best_of above n is not supported. Ask for n answers and choose one.', 'best_of');
}

function checkChoices(choices: number, limits: Limits): void {
  if (choices > limits.choices)
    throw invalidRequest(`n times the prompts is ${choices}; at most ${limits.choices} are allowed.`, 'prompt');
}

function promptsOf(prompt: CompletionRequest['prompt']): Prompt[] {
  if (typeof prompt === 'string') return [prompt];
  return typeof prompt[0] === 'number' ? [prompt as number[]] : (prompt as Prompt[]);
}

/** Every prompt is counted once. */
function usageOf(results: Result[], perPrompt: number, difference: { cache_difference?: object }): object {
  const firsts = results.filter((_, index) => index % perPrompt === 0);
  const sum = (list: Result[], count: (result: Result) => number) => list.reduce((total, one) => total + count(one), 0);
  return openaiUsage({
    promptTokens: sum(firsts, ({ usage }) => usage.promptTokens),
    cachedTokens: sum(firsts, ({ usage }) => usage.reusedTokens),
    completionTokens: sum(results, ({ usage }) => usage.completionTokens),
    ...difference,
  });
}

const finishReason = ({ finish }: Result): string => (finish === 'length' ? 'length' : 'stop');

async function collectChoices({ head, request, service, echoOf, usage }: Completion, events: Events, choices: number) {
  const tokens: Token[][] = Array.from({ length: choices }, () => []);
  const results: Result[] = [];
  for await (const event of events) {
    if ('result' in event) results[event.index] = event.result;
    else tokens[event.index].push(event.value);
  }
  const choice = async (result: Result, index: number) => ({
    index,
    text: echoOf(index) + result.text,
    logprobs: request.logprobs == null ? null : await completionLogprobs(service, tokens[index], 0),
    finish_reason: finishReason(result),
  });
  return { ...head, choices: await Promise.all(results.map(choice)), usage: usage(results) };
}

async function* streamChunks({ head, request, service, echoOf, usage }: Completion, events: Events, choices: number) {
  const { part, finish, end } = createChunks(head, request);
  const written = Array.from({ length: choices }, () => 0);
  const echoed = new Set<number>();
  const results: Result[] = [];
  for await (const event of events) {
    const { index } = event;
    if (!echoed.has(index) && echoOf(index)) yield part(index, { text: echoOf(index) });
    echoed.add(index);
    if ('result' in event) {
      results[index] = event.result;
      yield finish(index, { text: '' }, finishReason(event.result));
      continue;
    }
    const { text } = event.value;
    const logprobs = request.logprobs == null ? null : await completionLogprobs(service, [event.value], written[index]);
    written[index] += text.length;
    if (text || logprobs) yield part(index, { text }, logprobs);
  }
  yield end(usage(results));
}
