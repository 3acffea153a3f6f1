import { createByValue } from './by-value.ts';
import { createLeaves } from './leaves.ts';
import { createReuse } from './reuse.ts';
import { createShadow } from './shadow.ts';
import { createSlotHeap } from './slot-heap.ts';

/** Leaves that are remembered beyond those that the cache and the shadows hold. */
const MAX_REMEMBERED = 1 << 18;
/** Hits fade by 1/e within so many turnovers of the cache. */
const MEMORY = 128;
/** The share of the cache that a change of the leader is expected to replace. */
const CHANGED_SHARE = 0.5;
/** Candidates that are looked at again per use, after the leader has changed. */
const BATCH = 256;

export interface KvGraph {
  noteUse(key: number, parent: number): void;
  noteIdle(key: number): void;
  noteRemoved(key: number): void;
  offer(key: number): void;
  next(): number | undefined;
}

export function createKvGraph(): KvGraph {
  const leaves = createLeaves();
  const { nodes, parent, uses, lastUsed, isBusy, isCached } = leaves;
  const idleSince = nodes.column(Float64Array, 0);
  let clock = 0;
  let idleClock = 0;
  let size = 0;
  let capacity = Number.POSITIVE_INFINITY;
  let leader = 0;
  let ledSince = 0;
  let updated = 0;
  /** All uses, fading like the hits. */
  let totalUses = 0;
  /** Slots from here on are not yet filed by the current leader. */
  let filed = 0;
  const reuse = createReuse();
  /** Candidates that the leader does not hold, and those that it does: least recently used first. */
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
      if (i === leader) file(slot);
    }),
  );
  const hits = new Float64Array(shadows.length);

  const file = (slot: number) => {
    if (!wanted.has(slot) && !unwanted.has(slot)) return;
    wanted.remove(slot);
    unwanted.remove(slot);
    (shadows[leader].has(slot) ? wanted : unwanted).add(slot);
  };
  const fileBatch = () => {
    for (const end = Math.min(nodes.slots, filed + BATCH); filed < end; filed++) file(filed);
  };
  const forgetOldest = () => {
    for (let slot = nodes.oldest(); nodes.size > MAX_REMEMBERED + 2 * size && slot >= 0; ) {
      const following = nodes.after(slot);
      if (isCached.data[slot] || shadows.some(shadow => shadow.has(slot))) nodes.touch(slot);
      else nodes.remove(slot);
      slot = following;
    }
  };
  const followBest = () => {
    const best = hits.indexOf(Math.max(...hits));
    // Changing costs hits on what the new leader holds and the cache does not. Going back to LRU is always allowed.
    const cost = best === 0 ? 0 : (CHANGED_SHARE * capacity * hits[best]) / totalUses;
    if (best === leader || hits[best] - hits[leader] < cost || clock - ledSince < capacity) return;
    leader = best;
    ledSince = clock;
    filed = 0;
  };
  return {
    noteUse(key, above) {
      clock++;
      let slot = nodes.find(key);
      if (slot < 0) slot = nodes.add(key);
      parent.data[slot] = nodes.find(above);
      if (!isCached.data[slot]) size++;
      isCached.data[slot] = 1;
      isBusy.data[slot] = 1;
      wanted.remove(slot);
      unwanted.remove(slot);
      reuse.note(uses.data[slot], clock - lastUsed.data[slot]);
      uses.data[slot]++;
      lastUsed.data[slot] = clock;
      for (let i = 0; i < shadows.length; i++) {
        if (shadows[i].use(slot)) hits[i]++;
        shadows[i].trim(capacity);
      }
      fileBatch();
      forgetOldest();
      if (!reuse.update(clock, Math.min(capacity, size))) return;
      const fading = Math.exp((updated - clock) / (MEMORY * Math.min(capacity, size)));
      for (let i = 0; i < hits.length; i++) hits[i] *= fading;
      totalUses = totalUses * fading + clock - updated;
      updated = clock;
      followBest();
    },
    noteIdle(key) {
      const slot = nodes.find(key);
      if (slot < 0) return;
      isBusy.data[slot] = 0;
      idleSince.data[slot] = ++idleClock;
      for (const shadow of shadows) shadow.idle(slot);
    },
    noteRemoved(key) {
      const slot = nodes.find(key);
      if (slot < 0) return;
      if (isCached.data[slot]) size--;
      isCached.data[slot] = 0;
      isBusy.data[slot] = 0;
      wanted.remove(slot);
      unwanted.remove(slot);
    },
    offer(key) {
      const slot = nodes.find(key);
      if (slot < 0 || !isCached.data[slot]) return;
      wanted.remove(slot);
      unwanted.remove(slot);
      (shadows[leader].has(slot) ? wanted : unwanted).add(slot);
    },
    next() {
      // One more is about to be cached.
      capacity = size;
      shadows[leader].trim(capacity - 1);
      for (;;) {
        const slot = unwanted.first();
        if (slot >= 0 && shadows[leader].has(slot)) file(slot);
        else if (slot < 0 && filed < nodes.slots) fileBatch();
        else {
          const chosen = slot >= 0 ? slot : wanted.first();
          if (chosen < 0) return undefined;
          wanted.remove(chosen);
          unwanted.remove(chosen);
          return nodes.key.data[chosen];
        }
      }
    },
  };
}
