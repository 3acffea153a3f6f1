/** The eviction policy of a running cache. `graph` ranks in a thread of its own where there are threads. */
import type { EvictionPolicy } from '../eviction.ts';
import { type AdvisorStats, startAdvisor } from '../graph/advisor.ts';
import type { PrefixNode } from '../prefix.ts';
import { createPolicy, type EvictionPolicyName } from './policies.ts';

export type { EvictionPolicyName };

export interface EvictionStats {
  policy: EvictionPolicyName;
  /** What the thread of `graph` has done. */
  advisor?: AdvisorStats;
}

export interface Eviction {
  readonly policy: EvictionPolicy<PrefixNode>;
  stats(): EvictionStats;
}

export function openEviction(name: EvictionPolicyName = 'lru'): Eviction {
  const advised = name === 'graph' ? startAdvisor<PrefixNode>() : undefined;
  return {
    policy: advised ?? createPolicy(name),
    stats: () => ({ policy: name, ...(advised && { advisor: advised.stats }) }),
  };
}
