/**
 * What a cache does to a model's predictions: Kullback-Leibler divergence to the f16 cache of the same weights (nats a
 * token), how often both would say the same next token, and perplexity.
 *
 * A text is cut into rows of `context` tokens. Each row is read with the true next token always given, through the real
 * cache: every key and value outside the f16 window is read from codes. Scored are the rows' later tokens (the second
 * half), where there is a cache to speak of.
 */
import type { Sequence } from '../cache/sequence.ts';
import type { Engine } from '../engine/engine.ts';
import { type StepOptions, step } from '../engine/step.ts';
import { InputError } from '../errors.ts';
import { type Plan, planOf } from '../plan/plan.ts';
import { compare, logSoftmax } from './vocabulary.ts';

export interface DivergenceOptions {
  /** What is judged; f16 is always measured, and comes first. */
  plans: readonly Plan[];
  context: number;
  /** First position that is scored: half the context unless given. */
  from?: number;
  /** Rows to pass over, and rows to judge: all that there are unless given. */
  skip?: number;
  chunks?: number;
  signal?: AbortSignal;
  /** Tokens run, of all that will be. */
  onProgress?: (progress: { done: number; total: number }) => void;
  /** Every scored prediction: where it was made, of which token, and its divergence. */
  onScored?: (plan: Plan, position: number, next: number, kld: number) => void;
}

export interface DivergenceRow {
  kv: string;
  /** Code bits a value, keys and values together. */
  bits: number;
  perplexity: number;
  /** Nats a token. */
  kld: number;
  /** What the plan let one expect of it. */
  predicted?: number;
  /** Share of tokens, 0 to 1. */
  top1: number;
  /** Tokens and layers that stay f16. */
  window: { sink: number; recent: number; edge: number };
  /** Scored. */
  tokens: number;
}

/** Stopped by the signal, it gives what was measured until then. */
export async function measureDivergence(
  engine: Engine,
  ids: readonly number[],
  options: DivergenceOptions,
): Promise<DivergenceRow[]> {
  const { context, signal, onProgress } = options;
  const from = options.from ?? Math.floor(context / 2);
  const rows = cutRows(ids, options, from);
  const exact = createSubject(planOf('f16', { ...engine.config, pageTokens: options.plans[0]?.pageTokens }));
  const others = options.plans.filter(({ spec }) => spec !== 'f16').map(createSubject);
  const total = rows.length * (1 + others.length) * (context - 1);
  let done = 0;
  const run = async (
    subject: Subject,
    row: readonly number[],
    onLogits: (position: number, l: Float32Array) => void,
  ) => {
    const finished = await teacherForce(engine, subject.plan, row, from, {
      signal,
      onLogits,
      onProgress: tokens => onProgress?.({ done: done + tokens, total }),
    });
    done += context - 1;
    return finished;
  };

  judging: for (const row of rows) {
    const reference: Float32Array[] = [];
    const score = createScore(row);
    const finished = await run(exact, row, (position, logits) => {
      const logProbs = logSoftmax(logits);
      reference[position] = logProbs;
      score.add(position, logProbs, logProbs);
    });
    if (!finished) break;
    exact.take(score);
    for (const subject of others) {
      const score = createScore(row);
      const judge = (position: number, logits: Float32Array) => {
        const kld = score.add(position, logSoftmax(logits), reference[position]);
        options.onScored?.(subject.plan, position, row[position + 1], kld);
      };
      if (!(await run(subject, row, judge))) break judging;
      subject.take(score);
    }
  }
  return [exact, ...others].map(subject => subject.report()).filter(({ tokens }) => tokens > 0);
}

function cutRows(ids: readonly number[], { context, skip = 0, chunks }: DivergenceOptions, from: number): number[][] {
  if (!Number.isInteger(context) || context < 2)
    throw new InputError(`A context of ${context} tokens cannot be scored.`);
  if (!Number.isInteger(from) || from < 0 || from > context - 2)
    throw new InputError(`Scoring can start at 0 to ${context - 2} in a context of ${context}, not at ${from}.`);
  const there = Math.floor(ids.length / context);
  const count = chunks ?? there - skip;
  if (count < 1 || skip + count > there)
    throw new InputError(
      `The text has ${ids.length} tokens: ${there} rows of ${context}, and rows ${skip} to ${skip + Math.max(1, count)} ` +
        'were asked for. Give a longer text, a smaller context, or fewer rows.',
    );
  return Array.from({ length: count }, (_, i) => ids.slice((skip + i) * context, (skip + i + 1) * context));
}

export interface ForceOptions extends Omit<StepOptions, 'onLogits'> {
  onLogits: (position: number, logits: Float32Array) => void;
}

/** Runs a row but for its last token, and hands out the logits of every position from `from` on. */
export async function teacherForce(
  engine: Engine,
  plan: Plan,
  row: readonly number[],
  from: number,
  options: ForceOptions,
): Promise<boolean> {
  const sequence = engine.openSequence(plan, row.length);
  try {
    return await force(engine, sequence, row, from, options);
  } finally {
    sequence.dispose();
  }
}

/** The same into a sequence that is empty, and stays. */
export async function force(
  engine: Engine,
  sequence: Sequence,
  row: readonly number[],
  from: number,
  options: ForceOptions,
): Promise<boolean> {
  const before = [{ sequence, tokens: row.slice(0, from), logits: 'none' as const }];
  const { onLogits: _, ...silent } = options;
  return (await step(engine, before, silent)) && forceRest(engine, sequence, row, options);
}

/** The rest of a row whose beginning the sequence holds. */
export function forceRest(
  engine: Engine,
  sequence: Sequence,
  row: readonly number[],
  { onLogits, ...options }: ForceOptions,
): Promise<boolean> {
  const from = sequence.length;
  return step(engine, [{ sequence, tokens: row.slice(from, -1), logits: 'all' }], {
    ...options,
    onLogits: (_chunk, r, logits) => onLogits(from + r, logits),
    onProgress: tokens => options.onProgress?.(from + tokens),
  });
}

interface Score {
  kld: number;
  same: number;
  nll: number;
  tokens: number;
}

/** One row's sums. */
export function createScore(row: readonly number[]): Score & {
  /** Gives the divergence of this one. */
  add(position: number, logProbs: Float32Array, reference: Float32Array): number;
} {
  return {
    kld: 0,
    same: 0,
    nll: 0,
    tokens: 0,
    add(position, logProbs, reference) {
      const { kld, same } = compare(logProbs, reference);
      this.kld += kld;
      this.same += same ? 1 : 0;
      this.nll -= logProbs[row[position + 1]];
      this.tokens++;
      return kld;
    },
  };
}

type Subject = ReturnType<typeof createSubject>;

function createSubject(plan: Plan) {
  const sum: Score = { kld: 0, same: 0, nll: 0, tokens: 0 };
  return {
    plan,
    take(score: Score) {
      for (const name of ['kld', 'same', 'nll', 'tokens'] as const) sum[name] += score[name];
    },
    report: (): DivergenceRow => ({
      kv: plan.spec,
      bits: plan.bits,
      perplexity: Math.exp(sum.nll / sum.tokens),
      kld: sum.kld / sum.tokens,
      predicted: plan.predicted,
      top1: sum.same / sum.tokens,
      window: plan.window,
      tokens: sum.tokens,
    }),
  };
}
