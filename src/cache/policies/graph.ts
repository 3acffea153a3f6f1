/**
 * Follows the best of several policies. Each runs in a shadow cache of keys over all leaves that are remembered; the real
 * cache evicts what the one with the most recent hits would not hold. The candidates: LRU, LFU with remembered counts, and
 * the value learned from the ages at which leaves are used again (graph/reuse.ts).
 */
import { createLru, createOrdered, type Evictable, type EvictionPolicy } from '../eviction.ts';
import type { GraphNode } from '../graph/node.ts';
import { createByValue, createReuse } from '../graph/reuse.ts';
import { createShadow } from '../graph/shadow.ts';
import { MAX_REMEMBERED } from './memory.ts';

/** Hits fade by 1/e within so many turnovers of the cache. */
const MEMORY = 128;
/** The share of the cache that a change of the leader is expected to replace. */
const CHANGED_SHARE = 0.5;

export function createGraphPolicy<T extends Evictable>(): EvictionPolicy<T> {
  /** Cached and remembered leaves by key, least recently used first. */
  const nodes = new Map<number, GraphNode>();
  let clock = 0;
  let size = 0;
  let capacity = Number.POSITIVE_INFINITY;
  let leader = 0;
  let ledSince = 0;
  let updated = 0;
  /** All uses, fading like the hits. */
  let uses = 0;
  const reuse = createReuse();
  /** Cached candidates that the leader does not hold, and those that it does. */
  const [unwanted, wanted] = [createLru<T>(), createLru<T>()];
  const policies = [
    createLru<GraphNode>(),
    createOrdered<GraphNode>(({ uses }) => uses),
    createByValue(reuse, () => clock),
  ];
  const shadows = policies.map((policy, i) =>
    createShadow(policy, ({ leaf }) => {
      if (i === leader && leaf) unwanted.add(leaf as T);
    }),
  );
  const hits = new Float64Array(shadows.length);

  const forgetOldest = () => {
    for (const [key, node] of nodes) {
      if (nodes.size <= MAX_REMEMBERED + 2 * size) return;
      nodes.delete(key);
      if (node.leaf || shadows.some(shadow => shadow.has(node))) nodes.set(key, node);
    }
  };
  const touch = (leaf: T): GraphNode => {
    let node = nodes.get(leaf.key);
    if (!node) {
      node = { key: leaf.key, parent: undefined, uses: 0, lastUsed: 0, leaf: undefined };
      nodes.set(leaf.key, node);
    }
    node.parent = leaf.parent && nodes.get(leaf.parent.key);
    if (!node.leaf) size++;
    node.leaf = leaf;
    return node;
  };
  const followBest = () => {
    const best = hits.indexOf(Math.max(...hits));
    // Changing costs hits on what the new leader holds and the cache does not. Going back to LRU is always allowed.
    const cost = best === 0 ? 0 : (CHANGED_SHARE * capacity * hits[best]) / uses;
    if (best === leader || hits[best] - hits[leader] < cost || clock - ledSince < capacity) return;
    leader = best;
    ledSince = clock;
    for (const node of nodes.values()) if (node.leaf && !shadows[leader].has(node)) unwanted.add(node.leaf as T);
  };
  return {
    use(leaf) {
      clock++;
      const node = touch(leaf);
      reuse.note(node, clock);
      node.uses++;
      node.lastUsed = clock;
      shadows.forEach((shadow, i) => {
        if (shadow.use(node)) hits[i]++;
        shadow.trim(capacity);
      });
      forgetOldest();
      if (!reuse.update(clock, Math.min(capacity, size))) return;
      const fading = Math.exp((updated - clock) / (MEMORY * Math.min(capacity, size)));
      for (let i = 0; i < hits.length; i++) hits[i] *= fading;
      uses = uses * fading + clock - updated;
      updated = clock;
      followBest();
    },
    remove(leaf) {
      const node = nodes.get(leaf.key);
      if (node?.leaf !== leaf) return;
      node.leaf = undefined;
      size--;
    },
    add(leaf) {
      const node = nodes.get(leaf.key);
      (node && shadows[leader].has(node) ? wanted : unwanted).add(leaf);
    },
    next() {
      // One more is about to be cached.
      capacity = size;
      shadows[leader].trim(capacity - 1);
      for (let leaf = unwanted.next(); leaf; leaf = unwanted.next()) {
        const node = nodes.get(leaf.key);
        if (!node || node.leaf !== leaf) continue;
        if (!shadows[leader].has(node)) return leaf;
        wanted.add(leaf);
      }
      return wanted.next();
    },
  };
}
