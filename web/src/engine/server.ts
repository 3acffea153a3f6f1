/** `kvasir serve` as an engine. */

import { texts } from '../texts/index.ts';
import {
  type AnswerEnd,
  type AnswerPart,
  type AskOptions,
  type CacheUse,
  type Engine,
  EngineError,
  type ModelInfo,
  type PageField,
  type ScoredToken,
  type Turn,
} from './engine.ts';
import { modelTitle } from './model-names.ts';
import { readEvents } from './sse.ts';

/** The JSON of GET /status that is used here. */
interface Status {
  status: string;
  reason?: string;
  model: string;
  info?: {
    modelName?: string;
    kv: string;
    kvBits: number;
    expectedDivergence?: number;
    context: number;
    pageTokens: number;
    pageBytes: number;
    f16TokenBytes: number;
    maxSequences: number;
    thinks: boolean;
    pageFields: PageField[];
    device: { name: string; threads: number; why: string };
    notices: string[];
  };
  /** Only for operators: it is about all tenants. */
  stats?: { capacity: number; used: number; cachedBytes: number };
}

/** A chunk of /v1/chat/completions. */
interface Chunk {
  choices: {
    delta: { content?: string; reasoning_content?: string };
    logprobs?: { content: TokenLogprob[] } | null;
    finish_reason?: string | null;
    stop_reason?: string;
  }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details: { cached_tokens: number };
  } | null;
  prompt_progress?: { processed: number; total: number };
  error?: ApiError;
}

interface ApiError {
  message: string;
  code?: string | null;
}

interface TokenLogprob {
  token: string;
  logprob: number;
  top_logprobs: { token: string; logprob: number }[];
}

export interface ServerOptions {
  /** Where it listens. Default: where this page comes from. */
  address?: string;
  apiKey?: string;
  /** Called while it loads its model. */
  onWait?: (status: string) => void;
}

/** Milliseconds between two questions to a server that loads, and to one that is ready. */
const POLL_MS = 500;
const WATCH_MS = 5000;

/** A static host answers like this, or with a page, where a server would with its status. */
const NOT_FOUND: readonly number[] = [403, 404];

/** Addresses at which a server has answered: another answer there comes from what is in between. */
const known = new Set<string>();

async function errorOf(response: Response): Promise<EngineError> {
  if (response.status === 401) return new EngineError(texts.connection.needsKey, 'key');
  const { error }: { error?: ApiError } = await response.json().catch(() => ({}));
  return error?.message ? describeError(error) : new EngineError(texts.connection.badStatus(response.status));
}

/** What a full context is told with is about options of the server. */
const describeError = ({ message, code }: ApiError): EngineError =>
  code === 'context_length_exceeded' ? new EngineError(texts.messages.full, 'full') : new EngineError(message);

/** Connects to a server, and waits until its model is loaded. */
export async function openServer({ address = '', apiKey, onWait }: ServerOptions = {}): Promise<Engine> {
  let end: (reason: EngineError) => void;
  const ended = new Promise<EngineError>(resolve => {
    end = resolve;
  });
  const lose = (): never => {
    const error = new EngineError(texts.connection.lost, 'lost');
    end(error);
    throw error;
  };
  const fetchFrom = (path: string, body?: object, signal?: AbortSignal): Promise<Response> =>
    fetch(address + path, {
      ...(body && { method: 'POST', body: JSON.stringify(body) }),
      headers: { 'content-type': 'application/json', ...(apiKey && { authorization: `Bearer ${apiKey}` }) },
      signal,
    }).catch(error => {
      if (signal?.aborted) throw error;
      return lose();
    });
  const send = async (path: string, body?: object, signal?: AbortSignal): Promise<Response> => {
    const response = await fetchFrom(path, body, signal);
    if (!response.ok) throw await errorOf(response);
    return response;
  };
  const readStatus = async (): Promise<Status> => {
    const response = await fetchFrom('/status');
    // Of a proxy whose server is down, or busy.
    if (response.status >= 500 || response.status === 429) return lose();
    const isNotFound = NOT_FOUND.includes(response.status);
    if (!response.ok && !isNotFound) throw await errorOf(response);
    const status = isNotFound ? undefined : await response.json().catch(() => undefined);
    if (typeof status?.status === 'string') {
      known.add(address);
      return status;
    }
    if (known.has(address)) return lose();
    throw new EngineError(texts.connection.noServer(address || location.origin), 'absent');
  };

  let status = await readStatus();
  while (status.status !== 'ready' || !status.info) {
    if (status.status === 'failed') throw new EngineError(status.reason ?? texts.connection.notLoaded);
    onWait?.(status.status);
    await new Promise(resolve => setTimeout(resolve, POLL_MS));
    status = await readStatus();
  }

  // The answer does not matter: without one, the server is lost.
  const watch = setInterval(() => !document.hidden && readStatus().catch(() => {}), WATCH_MS);
  return {
    info: describe(status),
    ask: (turns, options) => ask(send, lose, turns, options),
    // A server keeps what prompts have in common by itself.
    async keep() {},
    async countTokens(text) {
      const { count } = await (await send('/tokenize', { content: text })).json();
      return count;
    },
    async cacheUse(): Promise<CacheUse | undefined> {
      const { stats } = await readStatus();
      return stats && { capacity: stats.capacity, used: stats.used, reusable: stats.cachedBytes };
    },
    ended,
    async close() {
      clearInterval(watch);
    },
  };
}

function describe({ model, info }: Status): ModelInfo {
  const { modelName, kv, kvBits, expectedDivergence, device, maxSequences, ...rest } = info!;
  return {
    ...rest,
    name: modelTitle(model, modelName),
    id: model,
    device: device.name,
    threads: device.threads,
    deviceReason: device.why,
    codec: kv,
    bits: kvBits,
    maxAnswers: maxSequences,
    divergence: expectedDivergence,
  };
}

async function* ask(
  send: (path: string, body: object, signal: AbortSignal) => Promise<Response>,
  lose: () => never,
  turns: readonly Turn[],
  { scored, signal, onPrefill, ...options }: AskOptions,
): AsyncGenerator<AnswerPart, AnswerEnd, void> {
  const request = {
    messages: turns,
    ...{ temperature: options.temperature, top_p: options.topP, repetition_penalty: options.repetitionPenalty },
    ...{ seed: options.seed, max_tokens: options.maxTokens, stop_loops: options.stopLoops },
    continue_final_message: options.continueAnswer,
    ...(options.thinks !== undefined && { chat_template_kwargs: { enable_thinking: options.thinks } }),
    ...{ stream: true, return_progress: true },
    stream_options: { include_usage: true },
    ...(scored && { logprobs: true, top_logprobs: 10 }),
  };
  const end: AnswerEnd = { finish: 'cancelled' };
  try {
    const { body } = await send('/v1/chat/completions', request, signal);
    for await (const { data } of readEvents(body!)) {
      if (data === '[DONE]') return end;
      const { choices, usage, prompt_progress: progress, error }: Chunk = JSON.parse(data);
      if (error) throw describeError(error);
      if (progress) onPrefill?.(progress.processed, progress.total);
      if (usage)
        end.usage = {
          promptTokens: usage.prompt_tokens,
          reusedTokens: usage.prompt_tokens_details.cached_tokens,
          completionTokens: usage.completion_tokens,
        };
      for (const { delta, logprobs, finish_reason: finish, stop_reason: reason } of choices) {
        if (finish) end.finish = reason === 'loop' ? reason : finish === 'length' ? finish : 'stop';
        const { content: text = '', reasoning_content: reasoning = '' } = delta;
        const tokens = logprobs?.content ?? [];
        // Without log probabilities a chunk is one token; the usage at the end is exact.
        if (text || reasoning || tokens.length > 0)
          yield { text, reasoning, tokens: tokens.length || 1, scored: tokens.map(toScored) };
      }
    }
  } catch (error) {
    if (!signal.aborted && error instanceof EngineError) throw error;
  }
  // It broke off.
  if (!signal.aborted) lose();
  end.finish = 'cancelled';
  return end;
}

const toScored = ({ token, logprob, top_logprobs: top }: TokenLogprob): ScoredToken => ({
  text: token,
  logprob,
  top: top.map(({ token, logprob }) => ({ text: token, logprob })),
});
