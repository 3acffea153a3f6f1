/** Runs a load against a server, and summarizes its answers. */
import { setMaxListeners } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, ask, type Message, type Target } from './client.ts';
import type { Chat } from './load.ts';

export interface Outcome {
  answers: Answer[];
  /** Requests that failed, by reason. */
  errors: Record<string, number>;
  /** Requests that ran when the time was up. */
  unfinished: Unfinished[];
  /** Turns that were not asked, since the time was up or the turn before had failed. */
  unasked: number;
  /** Until the last answer, or until the time was up. */
  seconds: number;
}

export interface Unfinished {
  /** Milliseconds to the first token; without one, the time that was waited for it. */
  firstMs: number;
  hasFirst: boolean;
}

export interface LoadOptions {
  /** Milliseconds until whatever runs is cancelled. */
  limitMs: number;
  onProgress?(progress: { answered: number; running: number; failed: number; seconds: number }): void;
}

const PROGRESS_MS = 10_000;

/** Every turn is sent at its time, or when the answer before it has come. A chat ends with its first error. */
export async function runLoad(
  target: Target,
  chats: readonly Chat[],
  { limitMs, onProgress }: LoadOptions,
): Promise<Outcome> {
  const started = performance.now();
  const since = (time: number) => performance.now() - time;
  const signal = AbortSignal.timeout(limitMs);
  // Every request listens.
  setMaxListeners(0, signal);
  const outcome: Outcome = { answers: [], errors: {}, unfinished: [], unasked: 0, seconds: 0 };
  let running = 0;

  /** Returns the text of the answer, if it is complete. */
  const request = async (messages: readonly Message[], maxTokens: number): Promise<string | undefined> => {
    const asked = performance.now();
    let firstMs: number | undefined;
    const onFirstToken = (ms: number) => {
      firstMs = ms;
    };
    running++;
    try {
      const answer = await ask(target, messages, { maxTokens, signal, onFirstToken });
      outcome.answers.push(answer);
      return answer.text;
    } catch (error) {
      if (signal.aborted) {
        outcome.unfinished.push({ firstMs: firstMs ?? since(asked), hasFirst: firstMs !== undefined });
        return undefined;
      }
      const { message, cause } = error as Error & { cause?: { code?: string } };
      const reason = cause?.code ?? message;
      outcome.errors[reason] = (outcome.errors[reason] ?? 0) + 1;
      return undefined;
    } finally {
      running--;
    }
  };

  const converse = async ({ system, turns }: Chat) => {
    const messages: Message[] = system ? [{ role: 'system', content: system }] : [];
    for (const { at, question, maxTokens } of turns) {
      await delay(Math.max(0, at * 1000 - since(started)), undefined, { signal }).catch(() => {});
      if (signal.aborted) return;
      messages.push({ role: 'user', content: question });
      const text = await request(messages, maxTokens);
      if (text === undefined) return;
      messages.push({ role: 'assistant', content: text });
    }
  };

  const reportProgress = () => {
    const failed = sum(Object.values(outcome.errors));
    onProgress?.({ answered: outcome.answers.length, running, failed, seconds: since(started) / 1000 });
  };
  const timer = setInterval(reportProgress, PROGRESS_MS);
  await Promise.all(chats.map(converse));
  clearInterval(timer);
  const turns = sum(chats.map(chat => chat.turns.length));
  const unasked = turns - outcome.answers.length - outcome.unfinished.length - sum(Object.values(outcome.errors));
  return { ...outcome, unasked, seconds: since(started) / 1000 };
}

export interface Summary {
  /** Requests that were answered. */
  requests: number;
  failed: number;
  /** Requests without a complete answer when the time was up, and turns that were not asked. */
  unfinished: number;
  unasked: number;
  errors: Record<string, number>;
  seconds: number;
  requestsPerMinute: number;
  outputTokensPerSecond: number;
  /** Part of the prompts' tokens that the server did not have to read. */
  cached: number;
  /**
   * Of answered and unfinished requests. `isBound`: some were still waiting for their first token, so that the
   * percentiles are at least these. `uncached`: the median of the answers of which nothing was in the cache.
   */
  firstMs: { p50: number; p99: number; isBound: boolean; uncached: number };
  gapMs: { p50: number; p99: number };
}

/** The smallest value that at least this part of the values do not exceed; NaN without values. */
export function percentile(values: readonly number[], part: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(part * sorted.length) - 1)] ?? Number.NaN;
}

/** Rounds of the same load are one sample. */
export function summarize(outcomes: readonly Outcome[]): Summary {
  const answers = outcomes.flatMap(outcome => outcome.answers);
  const seconds = sum(outcomes.map(outcome => outcome.seconds));
  const errors: Record<string, number> = {};
  for (const outcome of outcomes)
    for (const [reason, count] of Object.entries(outcome.errors)) errors[reason] = (errors[reason] ?? 0) + count;
  const unfinished = outcomes.flatMap(outcome => outcome.unfinished);
  const first = [...answers, ...unfinished].map(({ firstMs }) => firstMs);
  const uncached = answers.filter(({ cachedTokens }) => cachedTokens === 0).map(({ firstMs }) => firstMs);
  const gaps = answers.flatMap(({ gapsMs }) => gapsMs);
  const prompts = sum(answers.map(({ promptTokens }) => promptTokens));
  return {
    requests: answers.length,
    failed: sum(Object.values(errors)),
    unfinished: unfinished.length,
    unasked: sum(outcomes.map(outcome => outcome.unasked)),
    errors,
    seconds,
    requestsPerMinute: (answers.length / seconds) * 60,
    outputTokensPerSecond: sum(answers.map(({ outputTokens }) => outputTokens)) / seconds,
    cached: sum(answers.map(({ cachedTokens }) => cachedTokens)) / Math.max(1, prompts),
    firstMs: {
      p50: percentile(first, 0.5),
      p99: percentile(first, 0.99),
      isBound: unfinished.some(({ hasFirst }) => !hasFirst),
      uncached: percentile(uncached, 0.5),
    },
    gapMs: { p50: percentile(gaps, 0.5), p99: percentile(gaps, 0.99) },
  };
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
