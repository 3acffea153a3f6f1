/** `kvasir/eval`: measure the quality of codecs with a model, and learn its profile. Node only. */
export {
  type CalibrateOptions,
  type CalibrationProgress,
  type CalibrationResult,
  type CalibrationStage,
  type CalibrationWork,
  calibrate,
} from './calibrate/calibrate.ts';
export type { CalibrationDataOptions, CalibrationText } from './calibrate/job.ts';
export type { Breakdown, BreakdownEntry } from './eval/breakdown.ts';
export type { DivergenceRow } from './eval/divergence.ts';
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
} from './eval/evaluate.ts';
export type { NeedleCell, NeedleRow } from './eval/needle/measure.ts';
export type { MatchRule } from './eval/needle/questions.ts';
export { evaluateTask, type TaskEvaluation, type TaskOptions } from './eval/tasks/evaluate-task.ts';
export type { LoadSettings } from './eval/tasks/measure-items.ts';
export type { ItemResult } from './eval/tasks/results-file.ts';
export type { Interval, PairedComparison } from './eval/tasks/statistics.ts';
export type { TaskComparison, TaskRow } from './eval/tasks/summarize.ts';
export type { Choice, Question, Task, TaskAnswer } from './eval/tasks/task.ts';
