/** The eviction policy of a running cache. `graph` ranks in a thread of its own where there are threads. */
import type { EvictionPolicy } from './eviction.ts';
import { type AdvisorStats, startAdvisor } from './graph/advisor.ts';
import { type Candidate, createPolicy, type EvictionPolicyName } from './policies.ts';

export type { EvictionPolicyName };

export interface EvictionStats {
  policy: EvictionPolicyName;
  /** What the thread of `graph` has done. */
  advisor?: AdvisorStats;
}

export interface Eviction<T> {
  readonly policy: EvictionPolicy<T>;
  stats(): EvictionStats;
}

export function openEviction<T extends Candidate>(name: EvictionPolicyName = 'lru'): Eviction<T> {
  const advised = name === 'graph' ? startAdvisor<T>() : undefined;
  return {
    policy: advised ?? createPolicy(name),
    stats: () => ({ policy: name, ...(advised && { advisor: advised.stats }) }),
  };
}
