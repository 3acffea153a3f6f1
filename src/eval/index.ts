/** Evaluation: `kvasir/eval`. */
export type { Breakdown, BreakdownEntry } from './breakdown.ts';
export type { DivergenceRow } from './divergence.ts';
export {
  type EvaluateOptions,
  type Evaluation,
  type EvaluationContext,
  type EvaluationOptions,
  type EvaluationWork,
  evaluate,
  evaluateNeedle,
  type NeedleEvaluation,
  type NeedleEvaluationOptions,
} from './evaluate.ts';
export type { NeedleCell, NeedleRow } from './needle/measure.ts';
export type { MatchRule } from './needle/questions.ts';
