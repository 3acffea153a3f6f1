/**
 * What a cache does to a model's predictions: Kullback-Leibler divergence to the f16 cache of the same weights (nats a
 * token), how often both would say the same next token, and perplexity.
 *
 * A text is cut into rows of `context` tokens. Each row is read with the true next token always given, through the real
 * cache: every key and value outside the f16 window is read from codes. Scored are the rows' later tokens (the second
 * half), where there is a cache to speak of. All caches go through a row together, a few tokens of each in turn, so that
 * the predictions of those few are all that is held.
 */
import { countOutliers } from '../cache/outliers.ts';
import type { Sequence } from '../cache/sequence.ts';
import type { Engine } from '../engine/engine.ts';
import { type StepOptions, step } from '../engine/step.ts';
import { InputError } from '../errors.ts';
import type { Outliers } from '../kernel/device.ts';
import type { Chunk } from '../model/forward.ts';
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
  /** Of all pages, where the codec keeps lists of outliers. */
  outliers?: Outliers;
}

/** Tokens that all caches are judged by before any goes on: so many predictions are held, each as long as the vocabulary. */
export const JUDGED_AT_ONCE = 128;

/** Stopped by the signal, it gives what was measured until then: of all caches on the same tokens. */
export async function measureDivergence(
  engine: Engine,
  ids: readonly number[],
  options: DivergenceOptions,
): Promise<DivergenceRow[]> {
  const { context, signal, onProgress, onScored } = options;
  const from = options.from ?? Math.floor(context / 2);
  const rows = cutRows(ids, options, from);
  const exact = createSubject(planOf('f16', { ...engine.config, pageTokens: options.plans[0]?.pageTokens }));
  const subjects = [exact, ...options.plans.filter(({ spec }) => spec !== 'f16').map(createSubject)];
  const total = rows.length * subjects.length * (context - 1);
  let done = 0;
  const run = async (chunk: Chunk, onLogits?: StepOptions['onLogits']) => {
    const progress = (tokens: number) => onProgress?.({ done: done + tokens, total });
    const finished = await step(engine, [chunk], { signal, onLogits, onProgress: progress });
    done += chunk.tokens.length;
    return finished;
  };

  const judge = async (row: readonly number[], sequences: readonly Sequence[]): Promise<boolean> => {
    for (const sequence of sequences) {
      if (!(await run({ sequence, tokens: row.slice(0, from), logits: 'none' }))) return false;
    }
    for (let first = from; first < context - 1; first += JUDGED_AT_ONCE) {
      const tokens = row.slice(first, Math.min(first + JUDGED_AT_ONCE, context - 1));
      const reference: Float32Array[] = [];
      const scores = subjects.map(() => createScore(row));
      for (const [i, sequence] of sequences.entries()) {
        const finished = await run({ sequence, tokens, logits: 'all' }, (_chunk, r, logits) => {
          const logProbs = logSoftmax(logits);
          reference[r] ??= logProbs;
          const kld = scores[i].add(first + r, logProbs, reference[r]);
          if (i > 0) onScored?.(subjects[i].plan, first + r, row[first + r + 1], kld);
        });
        if (!finished) return false;
      }
      for (const [i, subject] of subjects.entries()) subject.take(scores[i]);
    }
    return true;
  };

  for (const row of rows) {
    const sequences = subjects.map(({ plan }) => engine.openSequence(plan, context));
    try {
      if (!(await judge(row, sequences))) break;
      for (const [i, { view }] of sequences.entries()) subjects[i].count(await countOutliers(engine.device, view));
    } finally {
      for (const sequence of sequences) sequence.dispose();
    }
  }
  return subjects.map(subject => subject.report()).filter(({ tokens }) => tokens > 0);
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

/** The same into a sequence that may hold the row's beginning, and stays. */
export async function force(
  engine: Engine,
  sequence: Sequence,
  row: readonly number[],
  from: number,
  options: ForceOptions,
): Promise<boolean> {
  const { onLogits, onProgress, ...others } = options;
  const before = [{ sequence, tokens: row.slice(sequence.length, from), logits: 'none' as const }];
  if (!(await step(engine, before, { ...others, onProgress }))) return false;
  return step(engine, [{ sequence, tokens: row.slice(from, -1), logits: 'all' }], {
    ...others,
    onLogits: (_chunk, r, logits) => onLogits(from + r, logits),
    onProgress: tokens => onProgress?.(from + tokens),
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

function createSubject(plan: Plan) {
  const sum: Score = { kld: 0, same: 0, nll: 0, tokens: 0 };
  let outliers: Outliers | undefined;
  return {
    plan,
    count(found: Outliers | undefined) {
      if (!found) return;
      const { listed, dropped } = outliers ?? { listed: 0, dropped: 0 };
      outliers = { listed: listed + found.listed, dropped: dropped + found.dropped };
    },
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
      outliers,
    }),
  };
}
