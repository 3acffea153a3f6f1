/** Evaluation of KV cache formats on a model: divergence from an f16 cache on a text, and retrieval of planted facts. */
import { F16 } from '../codec/spec.ts';
import { type EngineOptions, loadEngine, planShape } from '../engine/engine.ts';
import { engineRules } from '../engine/options.ts';
import type { ModelInput } from '../model/input.ts';
import { createPlan, type Plan, planBytes } from '../plan/plan.ts';
import type { Profile } from '../plan/profile.ts';
import type { ProfileInput } from '../plan/profile-input.ts';
import { boolean, callback, checkOptions, integer, type Rule, rule, string } from '../util/rules.ts';
import { type Breakdown, createBreakdowns } from './breakdown.ts';
import { type DivergenceRow, measureDivergence, SCORED_PER_BLOCK } from './divergence.ts';
import { measureNeedle, type NeedleRow } from './needle/measure.ts';
import { type MatchRule, matchFor } from './needle/questions.ts';
import { openForEvaluation, specs } from './open.ts';

/** Options of `evaluate` and `evaluateNeedle`. */
export interface EvaluationOptions
  extends Pick<EngineOptions, 'device' | 'threads' | 'memoryLimit' | 'prefillChunk' | 'signal'> {
  /** The codec specs to compare, such as `['tq4', 'auto:2.25']`. Default: f16 and the presets. */
  kv?: readonly string[];
  /** The result of calibration, for codecs that need it. Default: searched on disk. */
  profile?: ProfileInput;
  /** Use the faster integer kernels, as generation does. Default: false. */
  fast?: boolean;
  /** Called after each batch, with tokens done and in total. */
  onProgress?: (progress: { done: number; total: number }) => void;
}

/** Options of `evaluate`. */
export interface EvaluateOptions extends EvaluationOptions {
  /** The text to predict. */
  text: string;
  /** Parse control tokens in the text (`<|im_start|>`). Default: false. */
  parseSpecialTokens?: boolean;
  /** Tokens per row: the text is split into rows, each evaluated with an empty cache. Default: 2048. */
  context?: number;
  /** Rows to skip at the start of the text. Default: 0. */
  skipRows?: number;
  /** Rows to evaluate. Default: 4, or as many as there are. */
  rows?: number | 'all';
  /** First scored position in a row. Default: half the context. */
  from?: number;
  /** Also break the divergence down by position and token class. Default: false. */
  breakdown?: boolean;
  /** Called before the first row. */
  onStart?: (work: EvaluationWork) => void;
}

/** The size of an evaluation. */
export interface EvaluationWork {
  /** Rows that will be evaluated. */
  rows: number;
  /** Rows in the text after `skipRows`. */
  availableRows: number;
}

/** What every evaluation reports. */
export interface EvaluationContext {
  /** The model's name, from its metadata. */
  model: string;
  /** The device, and why it was chosen. */
  device: string;
  plans: Plan[];
  /** The profile in use, if a codec needs one. */
  profile?: Profile;
  /** Warnings about the profile and the plans. */
  notices: readonly string[];
}

/** The result of `evaluate`. */
export interface Evaluation extends EvaluationContext {
  /** The f16 cache first, then one row per spec. */
  rows: DivergenceRow[];
  /** By spec, with the option `breakdown`. */
  breakdowns?: ReadonlyMap<string, Breakdown>;
}

/** Options of `evaluateNeedle`. */
export interface NeedleEvaluationOptions extends EvaluationOptions {
  /** Lengths of the documents, in tokens. Default: 1000, 2000, 4000 and 6000. */
  lengths?: readonly number[];
  /** Facts per document, at evenly spaced depths. Default: 10. */
  depths?: number;
  /** Documents of each length. Default: 4. */
  documents?: number;
  /** Seed of the first document; the next one has the next seed. Default: 1. */
  seed?: number;
}

/** The result of `evaluateNeedle`. */
export interface NeedleEvaluation extends EvaluationContext {
  /** One row per spec. */
  rows: NeedleRow[];
  /** How answers were compared with the expected words. */
  match: MatchRule;
}

/** A few thousand tokens are enough to rank codecs, and take minutes. */
export const DEFAULT_ROWS = 4;
/** Tokens of a question and its answer. */
const QUESTION_TOKENS = 256;

const commonRules = { ...engineRules, kv: specs, fast: boolean };

const evaluateRules: Record<keyof EvaluateOptions, Rule> = {
  ...commonRules,
  text: string(),
  parseSpecialTokens: boolean,
  context: integer(2),
  skipRows: integer(0),
  rows: (value, name) => value === 'all' || integer(1)(value, name),
  from: integer(0),
  breakdown: boolean,
  onStart: callback,
};

const needleRules: Record<keyof NeedleEvaluationOptions, Rule> = {
  ...commonRules,
  lengths: rule('an array of lengths in tokens', value => Array.isArray(value) && value.length > 0),
  depths: integer(1),
  documents: integer(1),
  seed: integer(0),
};

/**
 * Measures how much each cache format changes a model's predictions on a text: KL divergence from an f16 cache, top-1
 * agreement and perplexity. If the signal aborts it, the result holds what was measured so far; while the model is
 * loaded, the promise rejects with the signal's reason.
 */
export async function evaluate(model: ModelInput, options: EvaluateOptions): Promise<Evaluation> {
  checkOptions('evaluate', options, evaluateRules);
  evaluateRules.text(options?.text, 'text');
  const { text, context = 2048, skipRows = 0, parseSpecialTokens, signal, onProgress } = options;
  const from = options.from ?? Math.floor(context / 2);
  const { file, ...setup } = await openForEvaluation(model, { ...options, context });
  const { plans } = setup;
  const { tokenizer, config } = file;
  // The f16 log probabilities of a block, which the others are compared with.
  const extra = 4 * Math.min(SCORED_PER_BLOCK, context - from) * config.vocab;
  const f16 = createPlan(F16, planShape(file));
  const compared = plans.filter(({ spec }) => spec !== f16.spec);
  const engine = await loadEngine(file, { plan: f16, compared, context, extra }, engineOptions(options));
  try {
    const ids = tokenizer.encode(text, { bos: tokenizer.addBos, parseSpecialTokens });
    const availableRows = Math.floor(ids.length / context) - skipRows;
    const rowCount = options.rows === 'all' ? availableRows : (options.rows ?? Math.min(DEFAULT_ROWS, availableRows));
    options.onStart?.({ rows: rowCount, availableRows });
    const breakdowns = options.breakdown ? createBreakdowns(from, context, tokenizer) : undefined;
    const rows = await measureDivergence(engine, ids, {
      plans,
      context,
      from,
      skipRows,
      rows: rowCount,
      signal,
      onProgress,
      onScored: breakdowns?.add,
    });
    return { model: config.name, device: engine.why, ...setup, rows, breakdowns: breakdowns?.result() };
  } finally {
    await engine.dispose();
  }
}

/**
 * Measures how many facts, planted in generated documents, a model retrieves with each cache format, by document length
 * and depth of the fact. Node only. If the signal aborts it, the result holds what was measured so far; while the model
 * is loaded, the promise rejects with the signal's reason.
 */
export async function evaluateNeedle(
  model: ModelInput,
  options: NeedleEvaluationOptions = {},
): Promise<NeedleEvaluation> {
  checkOptions('evaluateNeedle', options, needleRules);
  const { lengths = [1000, 2000, 4000, 6000], depths = 10, documents = 4, seed = 1, signal, onProgress } = options;
  const longest = Math.max(...lengths) + QUESTION_TOKENS;
  const { file, ...setup } = await openForEvaluation(model, { ...options, context: longest });
  const { plans } = setup;
  const { name, context: maxContext } = file.config;
  const plan = plans.reduce((a, b) => (planBytes(b, maxContext) > planBytes(a, maxContext) ? b : a));
  const context = Math.min(maxContext, longest);
  const engine = await loadEngine(file, { plan, context }, engineOptions(options));
  try {
    const rows = await measureNeedle(engine, { plans, lengths, depths, documents, seed, signal, onProgress });
    return { model: name, device: engine.why, ...setup, rows, match: matchFor(name) };
  } finally {
    await engine.dispose();
  }
}

const engineOptions = ({ device, threads, memoryLimit, prefillChunk, signal, fast }: EvaluationOptions) => ({
  device,
  threads,
  memoryLimit,
  prefillChunk,
  signal,
  precise: !fast,
});
