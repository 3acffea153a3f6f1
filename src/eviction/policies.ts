/** Eviction policies by name. */
import { closestName } from '../util/closest-name.ts';
import { InputError } from '../util/errors.ts';
import { createLru, type Evictable, type EvictionPolicy } from './eviction.ts';
import type { KvGraph } from './graph/kv-graph.ts';

export const policyNames = ['lru', 'graph'] as const;
/** Least recently used first, or what a `KvGraph` says. */
export type EvictionPolicyName = (typeof policyNames)[number];

/** Throws an InputError with a suggestion if there is no such policy. */
export function checkPolicyName(name: string): asserts name is EvictionPolicyName {
  if ((policyNames as readonly string[]).includes(name)) return;
  const suggestion = closestName(name, policyNames);
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`Unknown eviction policy "${name}". ${hint}Policies: ${policyNames.join(', ')}.`);
}

export const createPolicy = <T extends Evictable>(choice: 'lru' | KvGraph): EvictionPolicy<T> =>
  choice === 'lru' ? createLru() : followGraph(choice);

/** Tells a graph what happens in the cache, and evicts what it says. */
function followGraph<T extends Evictable>(graph: KvGraph): EvictionPolicy<T> {
  const cached = new Map<number, T>();
  return {
    use(leaf) {
      cached.set(leaf.key, leaf);
      graph.noteUse(leaf.key, leaf.parent?.key);
    },
    idle: leaf => graph.noteIdle(leaf.key),
    remove(leaf) {
      if (cached.get(leaf.key) !== leaf) return;
      cached.delete(leaf.key);
      graph.noteMove(leaf.key, leaf.isStored ? 'stored' : 'none');
    },
    // The graph knows which leaves are candidates.
    add() {},
    next() {
      const key = graph.nextEviction();
      return key === undefined ? undefined : cached.get(key);
    },
  };
}
