/** Least valuable first. Leaves wait in one queue per class and age: there they have the same value, and the oldest is first. */
import type { Leaves } from './leaves.ts';
import { CELLS, cellEnd, cellOf, type Reuse } from './reuse.ts';
import type { Order } from './slot-heap.ts';

export function createByValue({ nodes, uses, lastUsed }: Leaves, { values }: Reuse, clock: () => number): Order {
  const cellOfSlot = nodes.column(Int16Array, -1);
  const [before, after] = [nodes.column(Int32Array, -1), nodes.column(Int32Array, -1)];
  const heads = new Int32Array(CELLS).fill(-1);
  const tails = new Int32Array(CELLS).fill(-1);
  /** The queues that are not empty, and where each is in this list. */
  const occupied = new Int16Array(CELLS);
  const place = new Int16Array(CELLS);
  let queues = 0;
  const insert = (slot: number, atHead: boolean) => {
    const cell = cellOf(uses.data[slot], clock() - lastUsed.data[slot]);
    const [head, tail] = [heads[cell], tails[cell]];
    cellOfSlot.data[slot] = cell;
    before.data[slot] = atHead ? -1 : tail;
    after.data[slot] = atHead ? head : -1;
    if (head < 0) {
      place[cell] = queues;
      occupied[queues++] = cell;
    } else if (atHead) before.data[head] = slot;
    else after.data[tail] = slot;
    if (atHead || head < 0) heads[cell] = slot;
    if (!atHead || head < 0) tails[cell] = slot;
  };
  const unlink = (slot: number) => {
    const cell = cellOfSlot.data[slot];
    const [a, b] = [before.data[slot], after.data[slot]];
    cellOfSlot.data[slot] = -1;
    if (a >= 0) after.data[a] = b;
    else heads[cell] = b;
    if (b >= 0) before.data[b] = a;
    else tails[cell] = a;
    if (heads[cell] >= 0) return;
    const moved = occupied[--queues];
    occupied[place[cell]] = moved;
    place[moved] = place[cell];
  };
  /** Moves on what has become older; the first of what is left, or -1. */
  const headOf = (cell: number, now: number): number => {
    for (let slot = heads[cell]; slot >= 0; slot = heads[cell]) {
      const age = now - lastUsed.data[slot];
      if (age < cellEnd(cell) || cellOf(uses.data[slot], age) === cell) return slot;
      unlink(slot);
      insert(slot, false);
    }
    return -1;
  };
  return {
    has: slot => cellOfSlot.data[slot] >= 0,
    add: slot => insert(slot, false),
    putBack: slot => insert(slot, true),
    remove(slot) {
      if (cellOfSlot.data[slot] >= 0) unlink(slot);
    },
    first() {
      const now = clock();
      let [best, least] = [-1, Number.POSITIVE_INFINITY];
      // Backwards: a queue that becomes empty is replaced by the last one.
      for (let i = queues - 1; i >= 0; i--) {
        const cell = occupied[i];
        const slot = headOf(cell, now);
        if (slot < 0) continue;
        const value = values[cell];
        if (value > least || (value === least && lastUsed.data[slot] >= lastUsed.data[best])) continue;
        [best, least] = [slot, value];
      }
      return best;
    },
  };
}
