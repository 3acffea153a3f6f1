/** The results of a task by codec: accuracy with its interval, and the difference from f16. */
import type { Plan } from '../../plan/plan.ts';
import type { ItemResult } from './results-file.ts';
import { compareScores, type Interval, mean, type PairedComparison, wilsonInterval } from './statistics.ts';

/** A codec against f16 on the same items. */
export interface TaskComparison extends PairedComparison {
  /** The share of answers that are the same, whether right or wrong. */
  agreement: number;
}

/** The results with one cache format. */
export interface TaskRow {
  /** The spec. */
  kv: string;
  /** Code bits per value, averaged over keys and values. */
  bits: number;
  /** Items that were answered. */
  items: number;
  /** Mean score, 0 to 1. */
  accuracy: number;
  /** 95 % interval of the accuracy. */
  interval: Interval;
  /** Of choices: accuracy by the total log probability of the endings, without dividing it by their length. */
  unnormalized?: number;
  /** Against f16; not of f16 itself. */
  comparison?: TaskComparison;
  /** Accuracy by group, if there is more than one. */
  groups?: Record<string, number>;
  /** Tokens generated, or of choices read, per second, if anything was run. */
  tokensPerSecond?: number;
  results: ItemResult[];
}

/** What was measured with one plan. */
export interface PlanResults {
  plan: Pick<Plan, 'spec' | 'bits'>;
  results: ItemResult[];
  tokensPerSecond?: number;
}

/** f16 is the first. */
export function summarize(measured: readonly PlanResults[]): TaskRow[] {
  const reference = new Map(measured[0]?.results.map(result => [result.id, result]));
  return measured.flatMap(({ plan, results, tokensPerSecond }, i) => {
    if (results.length === 0) return [];
    const accuracy = mean(results.map(scoreOf));
    const unnormalized = results.flatMap(result => result.unnormalized ?? []);
    return {
      kv: plan.spec,
      bits: plan.bits,
      items: results.length,
      accuracy,
      interval: wilsonInterval(accuracy, results.length),
      unnormalized: unnormalized.length > 0 ? mean(unnormalized) : undefined,
      comparison: i > 0 ? compare(results, reference) : undefined,
      groups: groupsOf(results),
      tokensPerSecond,
      results,
    };
  });
}

const scoreOf = ({ scores }: ItemResult) => mean(scores);

function compare(results: readonly ItemResult[], reference: ReadonlyMap<string, ItemResult>): TaskComparison {
  const pairs = results.flatMap(result => {
    const other = reference.get(result.id);
    return other ? [{ result, other }] : [];
  });
  return {
    ...compareScores(
      pairs.map(({ result }) => scoreOf(result)),
      pairs.map(({ other }) => scoreOf(other)),
    ),
    agreement: mean(
      pairs.map(({ result, other }) => mean(result.said.map((text, i) => (text === other.said[i] ? 1 : 0)))),
    ),
  };
}

function groupsOf(results: readonly ItemResult[]): Record<string, number> | undefined {
  const groups = new Map<string, number[]>();
  for (const result of results) {
    const group = result.group ?? '';
    groups.set(group, [...(groups.get(group) ?? []), scoreOf(result)]);
  }
  if (groups.size < 2) return undefined;
  return Object.fromEntries([...groups].map(([name, scores]) => [name || 'other', mean(scores)]));
}
