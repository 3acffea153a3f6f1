/** Requests that generate: admission, quotas, time-outs, and the answers of one request as one sequence of events. */
import type { Logger } from 'pino';
import { describeLoss } from '../engine/guard.ts';
import type { Result, Stream } from '../engine/stream.ts';
import type { ModelService } from '../worker/service.ts';
import type { Backend } from './backend.ts';
import { clientLeft, timedOut, tooManyRequests, unavailable } from './errors.ts';
import type { Limits } from './limits.ts';
import type { AnswerCounts, Metrics } from './metrics.ts';
import type { Tenant } from './tenants.ts';

/** A part of one of the answers, or its end. */
export type AnswerEvent<T> = { index: number; value: T; partial: Readonly<Result> } | { index: number; result: Result };

export interface Job<T> {
  tenant: Tenant;
  /** Aborts when the client leaves. */
  signal: AbortSignal;
  /** Number of answers. */
  choices: number;
  /** Characters of the prompt, for the tenant's quota. */
  promptLength: number;
  /** Opens answer `index`. */
  open(service: ModelService, index: number, signal: AbortSignal): Stream<T>;
  /** Tokens in a part. */
  countTokens(value: T): number;
  /** Told of each answer that has ended. */
  onAnswer?(counts: AnswerCounts): void;
}

export interface Jobs {
  /** Requests that are being answered. */
  readonly active: number;
  /** Whether new requests are refused. */
  readonly isDraining: boolean;
  /** The service, or a 503 that says why there is none. */
  service(): ModelService;
  /** Runs a job when it is read. Cancelled if the reader leaves. */
  run<T>(job: Job<T>): AsyncGenerator<AnswerEvent<T>, void, void>;
  /** Refuses new requests, and resolves when the running ones have ended. */
  drain(): Promise<void>;
  /** Cancels what runs. */
  abort(): void;
}

interface TenantLoad {
  answers: number;
  queuedTokens: number;
}

/** Only used for quotas, before anything is tokenized. */
const CHARACTERS_PER_TOKEN = 4;
/** Seconds after which a client may ask a server again that loads or restarts. */
const RESTART_SECONDS = 5;

export function createJobs(backend: Backend, limits: Limits, metrics: Metrics, logger?: Logger): Jobs {
  const loads = new Map<string, TenantLoad>();
  const running = new Set<AbortController>();
  let answers = 0;
  /** Moving average of the seconds that a request takes. */
  let seconds = 1;
  let onIdle: (() => void) | undefined;
  let isDraining = false;

  const service = (): ModelService => {
    if (isDraining) throw unavailable('The server is shutting down.', 1);
    if (backend.state === 'ready' && backend.service) return backend.service;
    const reason = backend.reason ? `: ${backend.reason}` : '';
    throw unavailable(`The engine is not ready (${backend.state}${reason}). Try again later.`, RESTART_SECONDS);
  };

  /** Counts a request, or refuses it. Returns what releases it. */
  const admit = (
    { maxSequences }: ModelService['info'],
    job: Pick<Job<unknown>, 'tenant' | 'choices' | 'promptLength'>,
  ) => {
    const { name, maxRequests, maxQueuedTokens } = job.tenant;
    const { choices } = job;
    const load = loads.get(name) ?? { answers: 0, queuedTokens: 0 };
    const retryAfter = Math.ceil(
      Math.min(60, Math.max(1, (seconds * Math.max(0, answers - maxSequences)) / maxSequences)),
    );
    if (answers + choices > maxSequences + limits.queue)
      throw tooManyRequests(`The queue is full: ${answers} answers are running or waiting.`, retryAfter);
    if (maxRequests !== undefined && load.answers + choices > maxRequests)
      throw tooManyRequests(`Tenant ${name} may have ${maxRequests} answers at the same time.`, retryAfter);
    const tokens = Math.ceil(job.promptLength / CHARACTERS_PER_TOKEN);
    if (maxQueuedTokens !== undefined && load.queuedTokens + tokens > maxQueuedTokens)
      throw tooManyRequests(`Tenant ${name} may have ${maxQueuedTokens} tokens waiting.`, retryAfter);
    answers += choices;
    load.answers += choices;
    load.queuedTokens += tokens;
    loads.set(name, load);
    let queued = tokens;
    return {
      /** The prompt has been read. */
      begin() {
        load.queuedTokens -= queued;
        queued = 0;
      },
      release() {
        this.begin();
        answers -= choices;
        load.answers -= choices;
        if (load.answers === 0) loads.delete(name);
      },
    };
  };

  return {
    get active() {
      return running.size;
    },
    get isDraining() {
      return isDraining;
    },
    service,
    async *run(job) {
      const engine = service();
      const admission = admit(engine.info, job);
      const stop = new AbortController();
      const onLeave = () => stop.abort(clientLeft());
      const timer = setTimeout(() => stop.abort(timedOut(limits.time)), limits.time);
      const started = performance.now();
      const since = (time: number) => (performance.now() - time) / 1000;
      const lastToken: number[] = [];
      const streams: ReturnType<typeof job.open>[] = [];
      running.add(stop);
      job.signal.addEventListener('abort', onLeave);
      if (job.signal.aborted) onLeave();
      try {
        for (let i = 0; i < job.choices; i++) streams.push(job.open(engine, i, stop.signal));
        for await (const event of mergeStreams(streams)) {
          if ('value' in event) {
            const tokens = job.countTokens(event.value);
            if (tokens > 0 && lastToken[event.index] === undefined) metrics.timeToFirstToken.observe(since(started));
            else if (tokens > 0) {
              const gap = since(lastToken[event.index]) / tokens;
              for (let i = 0; i < tokens; i++) metrics.interTokenLatency.observe(gap);
            }
            if (tokens > 0) lastToken[event.index] = performance.now();
            admission.begin();
          }
          stop.signal.throwIfAborted();
          yield event;
        }
        seconds += (since(started) - seconds) / 10;
      } finally {
        // The streams have been asked to end, also if the reader has left.
        stop.abort(clientLeft());
        clearTimeout(timer);
        job.signal.removeEventListener('abort', onLeave);
        await Promise.allSettled(streams.map(stream => stream.return()));
        for (const { partial } of streams) {
          const { usage, finish, qualityLoss } = partial;
          const { reusedTokens: reused, prefilledTokens, completionTokens: generated } = usage;
          const counts = { prompt: reused + prefilledTokens, reused, generated, finish };
          metrics.countAnswer(counts);
          job.onAnswer?.(counts);
          if (qualityLoss) logger?.warn(qualityLoss, describeLoss(qualityLoss));
        }
        metrics.requestLatency.observe(since(started));
        admission.release();
        running.delete(stop);
        if (running.size === 0) onIdle?.();
      }
    },
    async drain() {
      isDraining = true;
      if (running.size > 0)
        await new Promise<void>(resolve => {
          onIdle = resolve;
        });
    },
    abort() {
      for (const stop of running) stop.abort(unavailable('The server is shutting down.', 1));
    },
  };
}

/** The values of streams in the order in which they come, and their results. */
async function* mergeStreams<T>(streams: readonly Stream<T>[]): AsyncGenerator<AnswerEvent<T>, void, void> {
  const read = async (index: number) => ({ index, next: await streams[index].next() });
  const reads = new Map(streams.map((_, index) => [index, read(index)]));
  while (reads.size > 0) {
    const { index, next } = await Promise.race(reads.values());
    if (next.done) {
      reads.delete(index);
      yield { index, result: next.value };
    } else {
      yield { index, value: next.value, partial: streams[index].partial };
      reads.set(index, read(index));
    }
  }
}
