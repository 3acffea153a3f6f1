/** Answers the questions of a task with a model: as many at once as it runs, sharing the prefixes that they have in common. */
import type { Model } from '../../api/model.ts';
import { thinkVariables, withoutThinking } from '../../model/thinking.ts';
import { ContextError } from '../../util/errors.ts';
import type { ItemResult } from './results-file.ts';
import type { Question, TaskAnswer } from './task.ts';

export interface AnswerOptions {
  /** Answers per question. */
  samples: number;
  temperature: number;
  /** Of the first answer; the next one has the next seed. */
  seed: number;
  /** Whether models that can think before they answer do so, with room for it. Default: false. */
  think?: boolean;
  /** Instead of the limits of the questions. */
  maxTokens?: number;
  signal?: AbortSignal;
  /** `length`: tokens of the prompt and the longest answer. */
  onResult(question: Question, result: ItemResult, length: number): Promise<void>;
  /** A warning about an answer, such as a full context, or a codec that does not suit the model. */
  onNotice?(notice: string): void;
}

/** If the signal aborts it, the questions that were not answered completely have no result. */
export async function answerQuestions(
  model: Model,
  questions: readonly Question[],
  options: AnswerOptions,
): Promise<void> {
  const { samples, onResult } = options;
  // One error ends all: the others would only fail the same way, or answer for nobody.
  const stop = new AbortController();
  const forward = () => stop.abort();
  options.signal?.addEventListener('abort', forward);
  if (options.signal?.aborted) stop.abort();
  const remaining = questions[Symbol.iterator]();
  const work = async () => {
    for (const question of remaining) {
      if (stop.signal.aborted) return;
      const answered = await answer(model, question, { ...options, signal: stop.signal });
      if (answered) await onResult(question, answered.result, answered.length);
    }
  };
  const atOnce = Math.max(1, Math.floor(model.maxSequences / samples));
  const workers = Array.from({ length: Math.min(atOnce, questions.length) }, () =>
    work().catch(error => {
      stop.abort();
      throw error;
    }),
  );
  const ends = await Promise.allSettled(workers);
  options.signal?.removeEventListener('abort', forward);
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
}

/** Room for reasoning before an answer. */
const THINK_TOKENS = 8192;

const ALWAYS_THINKS =
  'The model thinks before it answers, also where its template is told not to: with think (--think on), answers have room for it.';

const itemTooLong = (id: string, context: number, cause: ContextError) =>
  new ContextError(
    option =>
      `The prompt of item "${id}" does not fit into a context of ${context} tokens. Use shorter items, a model with a ` +
      `longer context, or a larger ${option('context')} or ${option('memoryLimit')}.`,
    { cause },
  );

async function answer(
  model: Model,
  question: Question,
  options: AnswerOptions,
): Promise<{ result: ItemResult; length: number } | undefined> {
  const { id, group, prompt, tools, stop } = question;
  const { samples, temperature, seed, signal, think = false } = options;
  const { maxTokens = question.maxTokens + (think ? THINK_TOKENS : 0) } = options;
  // Text to continue is in no template.
  const render = typeof prompt === 'string' ? undefined : { variables: thinkVariables(think) };
  const answers = await model
    .samples(prompt, samples, { temperature, seed, signal, maxTokens, tools, stop, ...(render && { render }) })
    .catch(error => {
      throw error instanceof ContextError ? itemTooLong(id, model.context, error) : error;
    });
  for (const { notices } of answers) for (const notice of notices) options.onNotice?.(notice);
  if (render && !think && answers.some(({ text, reasoning }) => reasoning || withoutThinking(text) !== text))
    options.onNotice?.(ALWAYS_THINKS);
  if (answers.some(({ finish }) => finish === 'cancelled')) return undefined;
  const written = answers.map(({ text, toolCalls }) => ({ text, ...(toolCalls && { toolCalls }) }));
  const tokens = answers.reduce((sum, { usage }) => sum + usage.completionTokens, 0);
  const length = Math.max(...answers.map(({ usage }) => usage.promptTokens + usage.completionTokens));
  const graded = await grade(question, written);
  return { result: { id, ...(group !== undefined && { group }), ...graded, tokens }, length };
}

/** What counts of the answers to a question, and how right they are. */
export async function grade(question: Question, answers: TaskAnswer[]) {
  const said = answers.map(({ text, toolCalls }) => question.read({ text: withoutThinking(text), toolCalls }));
  return { answers, said, scores: await Promise.all(said.map(text => question.score(text))) };
}
