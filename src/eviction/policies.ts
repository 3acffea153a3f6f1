/** Eviction policies by name. */
import { closestName } from '../util/closest-name.ts';
import { InputError } from '../util/errors.ts';
import { createLru, type Evictable, type EvictionPolicy } from './eviction.ts';
import { createFifo } from './fifo.ts';
import { createGraphPolicy } from './graph-policy.ts';
import { createLfu, createLfuRemembered } from './lfu.ts';
import { createS3Fifo } from './s3-fifo.ts';

export type EvictionPolicyName = 'fifo' | 'lru' | 'lfu' | 'lfu-remembered' | 's3fifo' | 'graph';

/** What every policy can order. */
export type Candidate = Evictable & { readonly id: number };

const POLICIES: Record<EvictionPolicyName, <T extends Candidate>() => EvictionPolicy<T>> = {
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

export function createPolicy<T extends Candidate>(name: string): EvictionPolicy<T> {
  checkPolicyName(name);
  return POLICIES[name]();
}
