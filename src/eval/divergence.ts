/**
 * Measures how a cache format changes a model's predictions: KL divergence from an f16 cache with the same weights (nats per
 * token), top-1 agreement and perplexity.
 *
 * A text is split into rows of `context` tokens. Each row is run with teacher forcing through the real cache: every key and
 * value outside the f16 window is read from codes. Only the later tokens of a row (its second half) are scored, where the
 * cache is filled. All caches run through a row together, block by block, so that only one block of f16 log probabilities is
 * held in memory.
 */
import { countOutliers } from '../cache/outliers.ts';
import type { Sequence } from '../cache/sequence.ts';
import { F16 } from '../codec/spec.ts';
import type { Engine } from '../engine/engine.ts';
import { compareLogProbs, logSoftmax } from '../engine/log-probs.ts';
import { type StepOptions, step } from '../engine/step.ts';
import type { Outliers } from '../kernel/device.ts';
import type { Chunk } from '../model/batch.ts';
import { type ErrorRatio, errorRatio } from '../plan/error-ratio.ts';
import { createPlan, type Plan } from '../plan/plan.ts';
import { InputError, optionError } from '../util/errors.ts';

export interface DivergenceOptions {
  /** The plans to measure. f16 is always measured, and comes first. */
  plans: readonly Plan[];
  /** Tokens per row. */
  context: number;
  /** First scored position. Default: half the context. */
  from?: number;
  /** Rows to skip (default: 0), and rows to measure (default: the rest). */
  skipRows?: number;
  rows?: number;
  signal?: AbortSignal;
  /** Called after each batch, with tokens done and in total. */
  onProgress?: (progress: { done: number; total: number }) => void;
  /** Called for every scored position, with the true next token and the divergence in nats. */
  onScored?: (plan: Plan, position: number, next: number, kld: number) => void;
}

/** The measurements of one cache format. */
export interface DivergenceRow {
  /** The spec. */
  kv: string;
  /** Code bits per value, averaged over keys and values. */
  bits: number;
  perplexity: number;
  /** KL divergence from f16, in nats per token. */
  kld: number;
  /** The divergence that the plan predicted. */
  predicted?: number;
  /** Fraction of tokens whose most likely next token is that of f16, 0 to 1. */
  top1: number;
  /** Tokens (sinks and recent ones) and layers (at each edge) that stay f16. */
  window: { sink: number; recent: number; edge: number };
  /** Scored tokens. */
  tokens: number;
  /** Squared error of the pages relative to the calibration text, for codecs that search for the nearest code (mead, vec). */
  errorRatio?: number;
  /** Outliers in all pages, for codecs that store them in lists. */
  outliers?: Outliers;
}

/** Tokens per block: f16 log probabilities of this many tokens are held in memory. */
export const SCORED_PER_BLOCK = 128;

/** If the signal aborts it, returns what was measured so far, for all plans on the same tokens. */
export async function measureDivergence(
  engine: Engine,
  ids: readonly number[],
  options: DivergenceOptions,
): Promise<DivergenceRow[]> {
  const { context, signal, onProgress, onScored } = options;
  const from = options.from ?? Math.floor(context / 2);
  const rows = splitRows(ids, options, from);
  const exact = createMeasurement(createPlan(F16, { ...engine.config, pageTokens: options.plans[0]?.pageTokens }));
  const measurements = [exact, ...options.plans.filter(({ spec }) => spec !== 'f16').map(createMeasurement)];
  const total = rows.length * measurements.length * (context - 1);
  let done = 0;
  const run = async (chunk: Chunk, onLogits?: StepOptions['onLogits']) => {
    const progress = (tokens: number) => onProgress?.({ done: done + tokens, total });
    const finished = await step(engine, [chunk], { signal, onLogits, onProgress: progress });
    done += chunk.tokens.length;
    return finished;
  };

  const scoreRow = async (row: readonly number[], sequences: readonly Sequence[]): Promise<boolean> => {
    for (const sequence of sequences) {
      if (!(await run({ sequence, tokens: row.slice(0, from), logits: 'none' }))) return false;
    }
    for (let first = from; first < context - 1; first += SCORED_PER_BLOCK) {
      const tokens = row.slice(first, Math.min(first + SCORED_PER_BLOCK, context - 1));
      const reference: Float32Array[] = [];
      const scores = measurements.map(() => createScore(row));
      for (const [i, sequence] of sequences.entries()) {
        const finished = await run({ sequence, tokens, logits: 'all' }, (_chunk, r, logits) => {
          const logProbs = logSoftmax(logits);
          reference[r] ??= logProbs;
          const kld = scores[i].add(first + r, logProbs, reference[r]);
          if (i > 0) onScored?.(measurements[i].plan, first + r, row[first + r + 1], kld);
        });
        if (!finished) return false;
      }
      for (const [i, measurement] of measurements.entries()) measurement.add(scores[i]);
    }
    return true;
  };

  for (const row of rows) {
    const sequences = measurements.map(({ plan }) => engine.openSequence(plan, context));
    try {
      if (!(await scoreRow(row, sequences))) break;
      for (const [i, sequence] of sequences.entries()) {
        measurements[i].addOutliers(await countOutliers(engine.device, sequence.view));
        measurements[i].addErrors(errorRatio(measurements[i].plan, await sequence.readErrors()));
      }
    } finally {
      for (const sequence of sequences) sequence.dispose();
    }
  }
  return measurements.map(measurement => measurement.report()).filter(({ tokens }) => tokens > 0);
}

function splitRows(
  ids: readonly number[],
  { context, skipRows = 0, rows }: DivergenceOptions,
  from: number,
): number[][] {
  if (!Number.isInteger(context) || context < 2)
    throw optionError('context', `must be an integer, 2 or more; got ${context}.`);
  if (!Number.isInteger(from) || from < 0 || from > context - 2)
    throw optionError('from', `must be an integer from 0 to ${context - 2} in a context of ${context}; got ${from}.`);
  const available = Math.floor(ids.length / context);
  const count = rows ?? available - skipRows;
  if (count < 1 || skipRows + count > available)
    throw new InputError(
      option =>
        `The text has ${ids.length} tokens: ${available} rows of ${context}. Rows ${skipRows} to ${skipRows + Math.max(1, count)} ` +
        `were requested. Use a longer text, a smaller ${option('context')}, or fewer rows.`,
    );
  return Array.from({ length: count }, (_, i) => ids.slice((skipRows + i) * context, (skipRows + i + 1) * context));
}

export interface TeacherForceOptions extends Omit<StepOptions, 'onLogits'> {
  onLogits: (position: number, logits: Float32Array) => void;
}

/** Runs a row except its last token, and passes the logits of every position from `from` on to `onLogits`. */
export async function teacherForce(
  engine: Engine,
  plan: Plan,
  row: readonly number[],
  from: number,
  options: TeacherForceOptions,
): Promise<boolean> {
  const sequence = engine.openSequence(plan, row.length);
  try {
    return await teacherForceSequence(engine, sequence, row, from, options);
  } finally {
    sequence.dispose();
  }
}

/** As `teacherForce`, with a sequence that may already hold the start of the row, and is not disposed. */
export async function teacherForceSequence(
  engine: Engine,
  sequence: Sequence,
  row: readonly number[],
  from: number,
  options: TeacherForceOptions,
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

/** Sums over the scored positions of one row. */
export function createScore(row: readonly number[]): Score & {
  /** Adds a position and returns its divergence. */
  add(position: number, logProbs: Float32Array, reference: Float32Array): number;
} {
  return {
    kld: 0,
    same: 0,
    nll: 0,
    tokens: 0,
    add(position, logProbs, reference) {
      const { kld, same } = compareLogProbs(logProbs, reference);
      this.kld += kld;
      this.same += same ? 1 : 0;
      this.nll -= logProbs[row[position + 1]];
      this.tokens++;
      return kld;
    },
  };
}

function createMeasurement(plan: Plan) {
  const sum: Score = { kld: 0, same: 0, nll: 0, tokens: 0 };
  const errors = { pages: 0, sum: 0 };
  let outliers: Outliers | undefined;
  return {
    plan,
    addErrors(found: ErrorRatio | undefined) {
      if (!found) return;
      errors.pages += found.pages;
      errors.sum += found.pages * found.ratio;
    },
    addOutliers(found: Outliers | undefined) {
      if (!found) return;
      const { listed, dropped } = outliers ?? { listed: 0, dropped: 0 };
      outliers = { listed: listed + found.listed, dropped: dropped + found.dropped };
    },
    add(score: Score) {
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
      errorRatio: errors.pages > 0 ? errors.sum / errors.pages : undefined,
      outliers,
    }),
  };
}
