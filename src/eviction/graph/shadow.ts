/** What the cache would hold under another policy: keys only, evicted by the same rules as the prefix index has. */
import type { Leaves } from './leaves.ts';
import type { Order } from './slot-heap.ts';

export interface Shadow {
  has(slot: number): boolean;
  /** Says whether it is a hit, and holds it from now on. It is in use until `idle`. */
  use(slot: number): boolean;
  /** Nobody uses it any more. */
  idle(slot: number): void;
  /** Evicts until `capacity` leaves are left, or only those that are in use and their parents. */
  trim(capacity: number): void;
  /** Returns a function that takes back all evictions from now on, and returns what was evicted. */
  remember(): () => number[];
}

export function createShadow({ nodes, parent, isBusy }: Leaves, order: Order, onEvict: (slot: number) => void): Shadow {
  /** The number of children that it holds; -1: it does not hold the leaf. */
  const children = nodes.column(Int32Array, -1);
  let size = 0;
  /** What was evicted, while it is remembered. */
  let evicted: number[] | undefined;
  const hold = (slot: number, addTo: (slot: number) => void) => {
    const above = parent.data[slot];
    // While a parent is in use, its further uses are not noted: it may have been evicted here.
    if (above >= 0 && children.data[above] < 0) hold(above, addTo);
    children.data[slot] = 0;
    size++;
    if (above >= 0 && children.data[above]++ === 0) order.remove(above);
    if (!isBusy.data[slot]) addTo(slot);
  };
  const evict = (slot: number) => {
    order.remove(slot);
    children.data[slot] = -1;
    size--;
    const above = parent.data[slot];
    if (above >= 0 && --children.data[above] === 0 && !isBusy.data[above]) order.add(above);
    evicted?.push(slot);
    onEvict(slot);
  };
  return {
    has: slot => children.data[slot] >= 0,
    use(slot) {
      const isHit = children.data[slot] >= 0;
      if (isHit) order.remove(slot);
      else hold(slot, order.add);
      return isHit;
    },
    idle(slot) {
      if (children.data[slot] === 0) order.add(slot);
    },
    trim(capacity) {
      while (size > capacity) {
        const slot = order.first();
        if (slot < 0) return;
        evict(slot);
      }
    },
    remember() {
      const remembered: number[] = [];
      evicted = remembered;
      return () => {
        evicted = undefined;
        for (const slot of remembered.toReversed()) hold(slot, order.putBack);
        return remembered;
      };
    },
  };
}
