/** Eviction policies by name. */
import { closestName } from '../../closest-name.ts';
import { InputError } from '../../errors.ts';
import { createLru, type EvictionPolicy } from '../eviction.ts';
import type { PrefixNode } from '../prefix.ts';
import { createFifo } from './fifo.ts';
import { createGraphPolicy } from './graph.ts';
import { createLfu, createLfuRemembered } from './lfu.ts';
import { createS3Fifo } from './s3-fifo.ts';

export type EvictionPolicyName = 'fifo' | 'lru' | 'lfu' | 'lfu-remembered' | 's3fifo' | 'graph';

const POLICIES: Record<EvictionPolicyName, () => EvictionPolicy<PrefixNode>> = {
  fifo: createFifo,
  lru: createLru,
  lfu: createLfu,
  'lfu-remembered': createLfuRemembered,
  s3fifo: createS3Fifo,
  graph: createGraphPolicy,
};

/** The names of the policies, for `loadModel`, `--eviction` and `kvasir trace`. */
export const policyNames = Object.keys(POLICIES) as EvictionPolicyName[];

/** Throws an InputError with a suggestion if there is no such policy. */
export function checkPolicyName(name: string): asserts name is EvictionPolicyName {
  if (Object.hasOwn(POLICIES, name)) return;
  const suggestion = closestName(name, policyNames);
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`Unknown eviction policy "${name}". ${hint}Policies: ${policyNames.join(', ')}.`);
}

export function createPolicy(name: string): EvictionPolicy<PrefixNode> {
  checkPolicyName(name);
  return POLICIES[name]();
}
