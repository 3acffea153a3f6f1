/** Metrics of the thread that ranks leaves for `--eviction graph`. */
import type { Counter, Gauge } from 'prom-client';
import type { AdvisorStats } from '../eviction/graph/advisor.ts';

type Create<T> = (name: string, help: string, labelNames?: string[]) => T;

/** Returns what updates the metrics. Without an advisor they are 0. */
export function createAdvisorMetrics(
  gauge: Create<Gauge>,
  counter: Create<Counter>,
): (advisor: AdvisorStats | undefined) => void {
  const evictions = counter(
    'kvasir_advisor_evictions_total',
    "Evictions by the advisor's ranking, and by LRU because the ranking was too old (stale) or used up.",
    ['reason'],
  );
  const lostEvents = counter('kvasir_advisor_lost_events_total', 'Events that the advisor has missed.');
  const cycle = gauge('kvasir_advisor_cycle_seconds', 'Time that the last ranking took; 0 before the first one.');
  const age = gauge('kvasir_advisor_ranking_age_seconds', 'Age of the last ranking; 0 before the first one.');
  return advisor => {
    for (const metric of [evictions, lostEvents, cycle, age]) metric.reset();
    if (!advisor) return;
    const { ranked, stale, usedUp } = advisor;
    for (const [reason, count] of Object.entries({ ranked, stale, used_up: usedUp })) evictions.inc({ reason }, count);
    lostEvents.inc(advisor.lostEvents);
    cycle.set((advisor.cycleMs ?? 0) / 1000);
    age.set((advisor.ageMs ?? 0) / 1000);
  };
}
