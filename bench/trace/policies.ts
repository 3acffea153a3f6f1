/** Policies that `lru` and `graph` are compared with. */
import { createOrdered, type Evictable, type EvictionPolicy } from '../../src/eviction/eviction.ts';
import { createKvGraph } from '../../src/eviction/graph/kv-graph.ts';
import { createPolicy } from '../../src/eviction/policies.ts';
import { closestName } from '../../src/util/closest-name.ts';
import { InputError } from '../../src/util/errors.ts';
import { createMemory } from './memory.ts';
import { createS3Fifo } from './s3-fifo.ts';

/** What every policy can order. */
export type Candidate = Evictable & { readonly id: number };

/** First cached, first evicted. */
const createFifo = <T extends Candidate>(): EvictionPolicy<T> => createOrdered(({ id }) => id);

/** Least frequently used first, among equals least recently used. Uses are counted while a leaf is cached. */
const createLfu = <T extends Evictable>(): EvictionPolicy<T> => createOrdered(({ uses }) => uses);

/** LFU that remembers the uses of leaves after they were evicted. */
function createLfuRemembered<T extends Evictable>(): EvictionPolicy<T> {
  const remembered = createMemory<number>();
  return {
    ...createLfu(),
    use(leaf) {
      if (leaf.uses === 1) leaf.uses += remembered.take(leaf.key) ?? 0;
    },
    remove: leaf => remembered.put(leaf.key, leaf.uses),
  };
}

const POLICIES: Record<string, <T extends Candidate>() => EvictionPolicy<T>> = {
  fifo: createFifo,
  lru: () => createPolicy('lru'),
  lfu: createLfu,
  'lfu-remembered': createLfuRemembered,
  s3fifo: createS3Fifo,
  graph: () => createPolicy(createKvGraph()),
};

/** Belady knows the future: replay.ts makes it from the trace. */
export const tracePolicyNames: readonly string[] = [...Object.keys(POLICIES), 'belady'];

/** Throws an InputError with a suggestion if there is no such policy. */
export function checkTracePolicy(name: string): void {
  if (tracePolicyNames.includes(name)) return;
  const suggestion = closestName(name, tracePolicyNames);
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`Unknown eviction policy "${name}". ${hint}Policies: ${tracePolicyNames.join(', ')}.`);
}

export function createTracePolicy<T extends Candidate>(name: string): EvictionPolicy<T> {
  checkTracePolicy(name);
  return POLICIES[name]();
}
