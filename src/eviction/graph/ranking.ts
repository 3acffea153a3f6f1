/**
 * The order of eviction: that of the best of several policies. Each policy runs in a ghost cache of keys; the real cache
 * follows the one with the most recent hits. It starts with LRU, and leaves it for a policy that has proven to be better. The
 * policies: LRU, LFU with remembered counts, and the value learned from the ages at which leaves are used again.
 */
import { createKeyCache, type KeyCache } from './key-cache.ts';
import type { GraphNode } from './node.ts';
import { createOrder, type Order } from './order.ts';
import { createReuse, createValueOrder } from './reuse-value.ts';

/** Hits fade by 1/e within so many turnovers of the cache. */
const MEMORY = 128;
/** Standard deviations that the advantage of a policy over LRU must have, to be more than chance. */
const MIN_DEVIATIONS = 3;

export interface Ranking {
  createNode(key: number): GraphNode;
  /** Whether the cache or a ghost holds a leaf: then it must not be forgotten. */
  isHeld(node: GraphNode): boolean;
  /** A leaf is in use, for the first time or again. */
  use(node: GraphNode): void;
  /** Nobody uses it any more. */
  idle(node: GraphNode): void;
  /** It left the cache. */
  remove(node: GraphNode): void;
  /** Takes the next leaf to evict off the candidates. */
  next(): GraphNode | undefined;
}

export function createRanking(): Ranking {
  /** The number of uses of all leaves. */
  let clock = 0;
  /** The number of uses that have ended. */
  let ended = 0;
  /** Leaves in the cache when it was full. */
  let capacity = Number.POSITIVE_INFINITY;
  let isEvicting = false;
  let leader = 0;
  let ledSince = 0;
  /** Hits that the leader had more than LRU since it leads. */
  let lead = 0;
  let updated = 0;
  const reuse = createReuse();
  /** Numbers that a leaf has in the orders so far. */
  let places = 0;
  const createOrders = (): Order[] => [
    createOrder(places++, (a, b) => a.idleSince < b.idleSince),
    createOrder(places++, (a, b) => a.uses < b.uses || (a.uses === b.uses && a.idleSince < b.idleSince)),
    createValueOrder(places++, places++, reuse.values, () => clock),
  ];
  const candidates = createOrders();
  const cache = createKeyCache(0, candidates);
  const orders = createOrders();
  const ghosts = orders.map((order, i) => createKeyCache(1 + i, [order]));
  /** Hits in the current cycle, and in the cycles before it, fading. */
  const cycleHits = ghosts.map(() => 0);
  const hits = ghosts.map(() => 0);
  /** The variance of the advantage over LRU: the sum of its squares per cycle, since hits within a text come together. */
  const variance = ghosts.map(() => 0);

  /** Evicts until as many leaves are left as the cache holds, or only those that are in use and their parents. */
  const trim = (ghost: KeyCache, order: Order) => {
    while (ghost.size > capacity) {
      const node = order.first();
      if (!node) return;
      ghost.remove(node);
    }
  };
  const endCycle = (fading: number) => {
    for (let i = 0; i < hits.length; i++) {
      hits[i] = hits[i] * fading + cycleHits[i];
      variance[i] = variance[i] * fading ** 2 + (cycleHits[i] - cycleHits[0]) ** 2;
    }
    lead += cycleHits[leader] - cycleHits[0];
    cycleHits.fill(0);
    updated = clock;
  };
  const follow = (policy: number) => {
    leader = policy;
    ledSince = clock;
    lead = 0;
  };
  /** Going back to LRU is always allowed. Any other policy must be better than LRU by more than chance. */
  const followBest = () => {
    if (clock - ledSince < capacity) return;
    // It was better, and is not any more, as when the requests have changed: it has to prove itself anew. A first turnover
    // says little.
    if (lead < 0 && clock - ledSince >= 2 * capacity) {
      hits[leader] = hits[0];
      variance[leader] = 0;
      return follow(0);
    }
    const best = hits.indexOf(Math.max(...hits));
    if (best === leader) return;
    if (best === 0 || hits[best] - hits[0] >= MIN_DEVIATIONS * Math.sqrt(variance[best])) follow(best);
  };
  const idle = (node: GraphNode) => {
    if (!node.isBusy) return;
    node.isBusy = false;
    node.lastUsed = clock;
    node.idleSince = ++ended;
    for (const one of [cache, ...ghosts]) one.idle(node);
  };
  return {
    createNode: key => ({
      key,
      parent: undefined,
      tier: 'none',
      uses: 0,
      lastUsed: 0,
      idleSince: 0,
      isBusy: false,
      isRecent: false,
      importance: Number.NaN,
      edges: undefined,
      children: Array<number>(1 + ghosts.length).fill(-1),
      places: Array<number>(places).fill(-1),
    }),
    isHeld: node => node.children.some(count => count >= 0),
    use(node) {
      clock++;
      node.isBusy = true;
      reuse.note(node.uses, clock - node.lastUsed);
      if (!cache.use(node)) isEvicting = false;
      ghosts.forEach((ghost, i) => {
        if (ghost.use(node)) cycleHits[i]++;
        trim(ghost, orders[i]);
      });
      node.uses++;
      const turnover = Math.min(capacity, cache.size);
      if (!reuse.update(clock, turnover)) return;
      endCycle(Math.exp((updated - clock) / (MEMORY * turnover)));
      followBest();
    },
    idle,
    remove(node) {
      if (!cache.has(node)) return;
      // Several may be evicted before one is cached: the cache was full before the first.
      if (!isEvicting) capacity = cache.size;
      isEvicting = true;
      idle(node);
      cache.remove(node);
    },
    next() {
      const node = candidates[leader].first();
      if (node) cache.withdraw(node);
      return node;
    },
  };
}
