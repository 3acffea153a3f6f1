/** Eviction policies by name. */
import { closestName } from '../../closest-name.ts';
import { InputError } from '../../errors.ts';
import { createLru, type EvictionPolicy } from '../eviction.ts';
import type { PrefixNode } from '../prefix.ts';
import { createFifo } from './fifo.ts';
import { createGraphPolicy } from './graph.ts';
import { createLfu, createLfuRemembered } from './lfu.ts';
import { createS3Fifo } from './s3-fifo.ts';

const POLICIES = {
  fifo: createFifo,
  lru: createLru,
  lfu: createLfu,
  'lfu-remembered': createLfuRemembered,
  s3fifo: createS3Fifo,
  graph: createGraphPolicy,
} satisfies Record<string, () => EvictionPolicy<PrefixNode>>;

export type PolicyName = keyof typeof POLICIES;

export const policyNames = Object.keys(POLICIES) as PolicyName[];

export function createPolicy(name: string): EvictionPolicy<PrefixNode> {
  const policies: Record<string, () => EvictionPolicy<PrefixNode>> = POLICIES;
  if (Object.hasOwn(policies, name)) return policies[name]();
  const suggestion = closestName(name, policyNames);
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`Unknown eviction policy "${name}". ${hint}Policies: ${policyNames.join(', ')}.`);
}
