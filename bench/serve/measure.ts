/** Runs a load against a server, and summarizes its answers. */
import { setTimeout as delay } from 'node:timers/promises';
import { type Answer, ask, type Message, type Target } from './client.ts';
import type { Chat } from './load.ts';

export interface Outcome {
  answers: Answer[];
  /** Requests that failed, by reason. */
  errors: Record<string, number>;
  /** Until the last answer. */
  seconds: number;
}

/** Every turn is sent at its time, or when the answer before it has come. A chat ends with its first error. */
export async function runLoad(target: Target, chats: readonly Chat[], timeoutMs: number): Promise<Outcome> {
  const started = performance.now();
  const answers: Answer[] = [];
  const errors: Record<string, number> = {};
  await Promise.all(
    chats.map(async ({ system, turns }) => {
      const messages: Message[] = system ? [{ role: 'system', content: system }] : [];
      for (const { at, question, maxTokens } of turns) {
        await delay(Math.max(0, started + at * 1000 - performance.now()));
        messages.push({ role: 'user', content: question });
        try {
          const answer = await ask(target, messages, maxTokens, AbortSignal.timeout(timeoutMs));
          answers.push(answer);
          messages.push({ role: 'assistant', content: answer.text });
        } catch (error) {
          const { message, cause } = error as Error & { cause?: { code?: string } };
          const reason = cause?.code ?? message;
          errors[reason] = (errors[reason] ?? 0) + 1;
          return;
        }
      }
    }),
  );
  return { answers, errors, seconds: (performance.now() - started) / 1000 };
}

export interface Summary {
  requests: number;
  failed: number;
  errors: Record<string, number>;
  seconds: number;
  requestsPerMinute: number;
  outputTokensPerSecond: number;
  /** Part of the prompts' tokens that the server did not have to read. */
  cached: number;
  /** `uncached`: the median of the requests of which nothing was in the cache. */
  firstMs: { p50: number; p99: number; uncached: number };
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
  const first = answers.map(({ firstMs }) => firstMs);
  const uncached = answers.filter(({ cachedTokens }) => cachedTokens === 0).map(({ firstMs }) => firstMs);
  const gaps = answers.flatMap(({ gapsMs }) => gapsMs);
  const prompts = sum(answers.map(({ promptTokens }) => promptTokens));
  return {
    requests: answers.length,
    failed: sum(Object.values(errors)),
    errors,
    seconds,
    requestsPerMinute: (answers.length / seconds) * 60,
    outputTokensPerSecond: sum(answers.map(({ outputTokens }) => outputTokens)) / seconds,
    cached: sum(answers.map(({ cachedTokens }) => cachedTokens)) / Math.max(1, prompts),
    firstMs: { p50: percentile(first, 0.5), p99: percentile(first, 0.99), uncached: percentile(uncached, 0.5) },
    gapMs: { p50: percentile(gaps, 0.5), p99: percentile(gaps, 0.99) },
  };
}

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
