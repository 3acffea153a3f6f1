/**
 * The order of eviction: that of the best of several policies. Each runs in a shadow cache of keys over all leaves that are
 * remembered; the real cache evicts what the one with the most recent hits would not hold. It starts with LRU, and leaves it
 * for a policy that has proven to be better. The policies: LRU, LFU with remembered counts, and the value learned from the
 * ages at which leaves are used again (reuse.ts).
 */
import { createByValue } from './by-value.ts';
import type { Leaves } from './leaves.ts';
import { createReuse } from './reuse.ts';
import { createShadow } from './shadow.ts';
import { createSlotHeap } from './slot-heap.ts';

/** Hits fade by 1/e within so many turnovers of the cache. */
const MEMORY = 128;
/** Standard deviations that the advantage of a policy over LRU must have, to be more than chance. */
const MIN_DEVIATIONS = 3;
/** Candidates that are filed anew per use, after the leader has changed. */
const BATCH = 256;

export interface Ranking {
  /** Whether the cache or a shadow holds a leaf: then it must not be forgotten. */
  isHeld(slot: number): boolean;
  /** A leaf is in use, for the first time or again. */
  use(slot: number): void;
  /** Nobody uses it any more. */
  idle(slot: number): void;
  /** It left the cache. */
  remove(slot: number): void;
  /** Takes the next leaf to evict off the list of candidates; -1: none. */
  next(): number;
  /** The next leaves that would be evicted, in order. Changes nothing. */
  preview(count: number): number[];
}

export function createRanking(leaves: Leaves): Ranking {
  const { nodes, parent, uses, lastUsed, idleSince, isCached, isBusy, children } = leaves;
  let clock = 0;
  /** Leaves in the cache now, and when it was full. */
  let size = 0;
  let capacity = Number.POSITIVE_INFINITY;
  let isEvicting = false;
  let leader = 0;
  let ledSince = 0;
  /** Hits that the leader had more than LRU since it leads. */
  let lead = 0;
  let updated = 0;
  /** All uses, fading like the hits. */
  let totalUses = 0;
  /** Slots from here on may be filed by what an earlier leader holds. */
  let filed = 0;
  const reuse = createReuse();
  /** Candidates that the leader does not hold, and those that it does. */
  const leastRecent = (a: number, b: number) => idleSince.data[a] < idleSince.data[b];
  const [unwanted, wanted] = [createSlotHeap(nodes, leastRecent), createSlotHeap(nodes, leastRecent)];
  const orders = [
    createSlotHeap(nodes, (a, b) => lastUsed.data[a] < lastUsed.data[b]),
    createSlotHeap(nodes, (a, b) => {
      const difference = uses.data[a] - uses.data[b];
      return difference < 0 || (difference === 0 && lastUsed.data[a] < lastUsed.data[b]);
    }),
    createByValue(leaves, reuse, () => clock),
  ];
  const shadows = orders.map((order, i) =>
    createShadow(leaves, order, slot => {
      if (!isCached.data[slot]) missing[i]--;
      if (i === leader && wanted.has(slot)) offer(slot);
    }),
  );
  /** Hits in the current cycle, and in the cycles before it, fading. */
  const cycleHits = new Float64Array(shadows.length);
  const hits = new Float64Array(shadows.length);
  /** The variance of the advantage over LRU: the sum of its squares per cycle, since hits within a text come together. */
  const variance = new Float64Array(shadows.length);
  /** Leaves that each shadow holds and the cache does not. */
  const missing = new Float64Array(shadows.length);

  const withdraw = (slot: number) => {
    wanted.remove(slot);
    unwanted.remove(slot);
  };
  /** Makes it a candidate, and files it by what the leader holds. */
  const offer = (slot: number) => {
    withdraw(slot);
    (shadows[leader].has(slot) ? wanted : unwanted).add(slot);
  };
  const offerIfEvictable = (slot: number) => {
    if (isCached.data[slot] && !isBusy.data[slot] && children.data[slot] === 0) offer(slot);
  };
  const fileBatch = () => {
    for (const end = Math.min(nodes.slots, filed + BATCH); filed < end; filed++)
      if (wanted.has(filed) || unwanted.has(filed)) offer(filed);
  };
  const endCycle = (fading: number) => {
    for (let i = 0; i < hits.length; i++) {
      hits[i] = hits[i] * fading + cycleHits[i];
      variance[i] = variance[i] * fading ** 2 + (cycleHits[i] - cycleHits[0]) ** 2;
    }
    lead += cycleHits[leader] - cycleHits[0];
    cycleHits.fill(0);
    totalUses = totalUses * fading + clock - updated;
    updated = clock;
  };
  const follow = (policy: number) => {
    leader = policy;
    ledSince = clock;
    lead = 0;
    filed = 0;
  };
  /** Going back to LRU is always allowed. Anything else must pay off, and be better than LRU by more than chance. */
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
    // Changing costs hits on what the new leader holds and the cache does not.
    const cost = (missing[best] * hits[best]) / totalUses;
    const isProven = hits[best] - hits[0] >= MIN_DEVIATIONS * Math.sqrt(variance[best]);
    if (best !== 0 && (!isProven || hits[best] - hits[leader] < cost)) return;
    follow(best);
  };
  const noteMissing = (slot: number, change: 1 | -1) => {
    for (let i = 0; i < shadows.length; i++) if (shadows[i].has(slot)) missing[i] += change;
  };
  const addToCache = (slot: number) => {
    isCached.data[slot] = 1;
    noteMissing(slot, -1);
    size++;
    isEvicting = false;
    const above = parent.data[slot];
    if (above >= 0 && children.data[above]++ === 0) withdraw(above);
  };
  /** A leaf has left the cache, or would: then its parent may be the next. */
  const leaveParent = (slot: number) => {
    const above = parent.data[slot];
    if (above < 0) return;
    children.data[above]--;
    offerIfEvictable(above);
  };
  /** The first candidate, once the leader holds no more than `max` leaves; -1: none. */
  const firstAfterTrim = (max: number): number => {
    shadows[leader].trim(max);
    for (;;) {
      const slot = unwanted.first();
      if (slot >= 0 && shadows[leader].has(slot)) offer(slot);
      else if (slot < 0 && filed < nodes.slots) fileBatch();
      else return slot >= 0 ? slot : wanted.first();
    }
  };
  return {
    isHeld: slot => isCached.data[slot] === 1 || shadows.some(shadow => shadow.has(slot)),
    use(slot) {
      clock++;
      if (!isCached.data[slot]) addToCache(slot);
      isBusy.data[slot] = 1;
      withdraw(slot);
      reuse.note(uses.data[slot], clock - lastUsed.data[slot]);
      uses.data[slot]++;
      lastUsed.data[slot] = clock;
      for (let i = 0; i < shadows.length; i++) {
        if (shadows[i].use(slot)) cycleHits[i]++;
        shadows[i].trim(capacity);
      }
      fileBatch();
      const turnover = Math.min(capacity, size);
      if (!reuse.update(clock, turnover)) return;
      endCycle(Math.exp((updated - clock) / (MEMORY * turnover)));
      followBest();
    },
    idle(slot) {
      isBusy.data[slot] = 0;
      for (const shadow of shadows) shadow.idle(slot);
      offerIfEvictable(slot);
    },
    remove(slot) {
      if (!isCached.data[slot]) return;
      // Several may be evicted before one is cached: the cache was full before the first.
      if (!isEvicting) capacity = size;
      isEvicting = true;
      size--;
      isCached.data[slot] = 0;
      noteMissing(slot, 1);
      isBusy.data[slot] = 0;
      withdraw(slot);
      leaveParent(slot);
    },
    next() {
      // One more is about to be cached.
      const slot = firstAfterTrim(size - 1);
      if (slot >= 0) withdraw(slot);
      return slot;
    },
    preview(count) {
      const taken: number[] = [];
      const missed = missing[leader];
      const undo = shadows[leader].remember();
      while (taken.length < count) {
        const slot = firstAfterTrim(size - 1 - taken.length);
        if (slot < 0) break;
        taken.push(slot);
        withdraw(slot);
        leaveParent(slot);
      }
      missing[leader] = missed;
      for (const slot of undo()) if (unwanted.has(slot)) offer(slot);
      for (const slot of taken.toReversed()) {
        const above = parent.data[slot];
        if (above >= 0 && children.data[above]++ === 0) withdraw(above);
        offer(slot);
      }
      return taken;
    },
  };
}
