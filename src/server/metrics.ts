/** Metrics for Prometheus: vLLM's names where it has them, so that its dashboards work, and `kvasir_` for the rest. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { Finish } from '../engine/stream.ts';
import type { Backend } from './backend.ts';
import { createTierMetrics } from './tier-metrics.ts';

export interface Metrics {
  /** The text of `/metrics`, and its content type. */
  render(): Promise<string>;
  readonly contentType: string;
  readonly timeToFirstToken: Histogram;
  readonly interTokenLatency: Histogram;
  readonly requestLatency: Histogram;
  /** Counts an answer that has ended. */
  countAnswer(answer: AnswerCounts): void;
}

/** The tokens of an answer that has ended. */
export interface AnswerCounts {
  /** Tokens of the prompt that were read or found in the cache: all, unless it was cancelled before. */
  prompt: number;
  reused: number;
  generated: number;
  finish: Finish;
}

const SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160];
const TOKEN_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5];
const REQUEST_SECONDS = [0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960];

const FINISHED_REASONS: Record<Finish, string> = {
  stop: 'stop',
  tool_calls: 'stop',
  length: 'length',
  cancelled: 'abort',
};

export function createMetrics(modelName: string, backend: Backend): Metrics {
  const registry = new Registry();
  registry.setDefaultLabels({ model_name: modelName });
  const registers = [registry];
  const gauge = (name: string, help: string, labelNames: string[] = []) =>
    new Gauge({ name, help, labelNames, registers });
  const counter = (name: string, help: string, labelNames: string[] = []) =>
    new Counter({ name, help, labelNames, registers });
  const histogram = (name: string, help: string, buckets: number[]) =>
    new Histogram({ name, help, buckets, registers });

  const running = gauge('vllm:num_requests_running', 'Answers that run.');
  const waiting = gauge('vllm:num_requests_waiting', 'Answers that wait.');
  const usage = gauge(
    'vllm:kv_cache_usage_perc',
    'Part of the KV cache that answers and sessions hold; 1 is all of it.',
  );
  const queries = counter('vllm:prefix_cache_queries_total', 'Prompt tokens that were looked up in the KV cache.');
  const hits = counter('vllm:prefix_cache_hits_total', 'Prompt tokens that were found in the KV cache.');
  const preemptions = counter('vllm:num_preemptions_total', 'Answers that were interrupted to make room for others.');
  const drafted = counter('vllm:spec_decode_num_draft_tokens_total', 'Tokens that were guessed.');
  const accepted = counter('vllm:spec_decode_num_accepted_tokens_total', 'Guessed tokens that were right.');
  const promptTokens = counter('vllm:prompt_tokens_total', 'Tokens of prompts.');
  const generatedTokens = counter('vllm:generation_tokens_total', 'Tokens generated.');
  const success = counter('vllm:request_success_total', 'Answers that ended, by reason.', ['finished_reason']);
  const leafBytes = gauge(
    'kvasir_leaf_bytes',
    'Bytes of the KV cache: sealed pages in use, sealed pages kept for later prompts, f16 tails.',
    ['state'],
  );
  const capacity = gauge('kvasir_kv_capacity_bytes', 'Max bytes of the KV cache.');
  const evictions = counter('kvasir_evictions_total', 'Sealed pages that were evicted.');
  const restarts = counter('kvasir_engine_restarts_total', 'Restarts of the engine process.');
  const codeError = gauge(
    'kvasir_code_error',
    'How far attention on codes is from attention on f16, 0 to 1: mean of all layers, and the worst layer.',
    ['layers'],
  );
  const codeErrorLimit = gauge(
    'kvasir_code_error_limit',
    'The limit of the worst layer: above it, the codec does not suit the model.',
  );
  const setTiers = createTierMetrics(gauge, counter);
  const ready = gauge('kvasir_engine_ready', 'Whether the engine answers.');

  /** The engine counts some things itself, from its start on. */
  const set = (counter: Counter, value: number) => {
    counter.reset();
    counter.inc(value);
  };

  const collect = async () => {
    ready.set(backend.state === 'ready' ? 1 : 0);
    set(restarts, backend.restarts);
    if (backend.state !== 'ready' || !backend.service) return;
    const stats = await backend.service.stats();
    running.set(stats.running);
    waiting.set(stats.waiting);
    usage.set((stats.used - stats.cachedBytes) / stats.capacity);
    capacity.set(stats.capacity);
    set(preemptions, stats.preemptions);
    set(drafted, stats.draftedTokens);
    set(accepted, stats.acceptedTokens);
    set(evictions, stats.evictions);
    setTiers(stats.tiers);
    codeError.set({ layers: 'mean' }, stats.guard.meanError);
    codeError.set({ layers: 'worst' }, stats.guard.error);
    codeErrorLimit.set(stats.guard.limit);
    const { pages, cached, tails } = stats.memory;
    for (const [state, bytes] of Object.entries({ used: pages, cached, tail: tails })) leafBytes.set({ state }, bytes);
  };

  return {
    contentType: registry.contentType,
    timeToFirstToken: histogram('vllm:time_to_first_token_seconds', 'Time to the first token.', SECONDS),
    interTokenLatency: histogram('vllm:inter_token_latency_seconds', 'Time between two tokens.', TOKEN_SECONDS),
    requestLatency: histogram('vllm:e2e_request_latency_seconds', 'Time of a whole request.', REQUEST_SECONDS),
    async render() {
      // An engine that ends while it is asked must not take the other metrics with it.
      await collect().catch(() => ready.set(0));
      return registry.metrics();
    },
    countAnswer({ prompt, reused, generated, finish }) {
      queries.inc(prompt);
      hits.inc(reused);
      promptTokens.inc(prompt);
      generatedTokens.inc(generated);
      success.inc({ finished_reason: FINISHED_REASONS[finish] });
    },
  };
}
