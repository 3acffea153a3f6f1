/** Metrics of the tiers. */
import type { Counter, Gauge } from 'prom-client';
import type { TierStats } from '../store/tier-chain.ts';

type Create<T> = (name: string, help: string, labelNames?: string[]) => T;

/** Returns what updates the metrics. */
export function createTierMetrics(
  gauge: Create<Gauge>,
  counter: Create<Counter>,
): (tiers: readonly TierStats[]) => void {
  const gauges = {
    bytes: gauge('kvasir_tier_bytes', 'Bytes that a tier holds, where it is not shared.', ['tier']),
    capacity: gauge('kvasir_tier_capacity_bytes', 'Max bytes of a tier.', ['tier']),
    pendingBytes: gauge('kvasir_tier_pending_bytes', 'Bytes that are being stored.', ['tier']),
  };
  const counters = {
    hits: counter('kvasir_tier_hits_total', 'Records that were found in a tier.', ['tier']),
    misses: counter('kvasir_tier_misses_total', 'Records that were not found in a tier.', ['tier']),
    puts: counter('kvasir_tier_puts_total', 'Records that were stored.', ['tier']),
    skipped: counter('kvasir_tier_skipped_total', 'Records that were not stored: the tier could not keep up.', [
      'tier',
    ]),
    evictions: counter('kvasir_tier_evictions_total', 'Records that were removed to make room.', ['tier']),
    damaged: counter('kvasir_tier_damaged_total', 'Records whose checksum did not match.', ['tier']),
    errors: counter('kvasir_tier_errors_total', 'Errors of the disk or network.', ['tier']),
  };
  const calls = counter('kvasir_tier_calls_total', 'Calls of a tier.', ['tier', 'call']);
  const seconds = counter('kvasir_tier_call_seconds_total', 'Time of these calls; of a get, to its first record.', [
    'tier',
    'call',
  ]);
  return tiers => {
    for (const metric of [...Object.values(gauges), ...Object.values(counters), calls, seconds]) metric.reset();
    for (const stats of tiers) {
      const tier = stats.name;
      for (const [name, metric] of Object.entries(gauges)) {
        const value = stats[name as keyof typeof gauges];
        if (value !== undefined) metric.set({ tier }, value);
      }
      for (const [name, metric] of Object.entries(counters)) metric.inc({ tier }, stats[name as keyof typeof counters]);
      for (const call of ['get', 'put'] as const) {
        calls.inc({ tier, call }, stats[call].count);
        seconds.inc({ tier, call }, stats[call].totalMs / 1000);
      }
    }
  };
}
