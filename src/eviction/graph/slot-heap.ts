/** A binary heap of slots that knows where each slot is: one can be moved or removed in O(log n). */
import type { Nodes } from './nodes.ts';

/** Slots in some order. */
export interface Order {
  has(slot: number): boolean;
  /** Adds a slot. */
  add(slot: number): void;
  /** Adds a slot that was the first one when it was removed. */
  putBack(slot: number): void;
  /** Removes a slot, if it is there. */
  remove(slot: number): void;
  /** The first slot; -1: none. */
  first(): number;
}

/** What `precedes` reads of a slot may change only while the slot is not in the heap. */
export function createSlotHeap(nodes: Nodes, precedes: (a: number, b: number) => boolean): Order {
  const position = nodes.column(Int32Array, -1);
  let items = new Int32Array(64);
  let size = 0;
  const put = (at: number, slot: number) => {
    items[at] = slot;
    position.data[slot] = at;
  };
  /** Moves `slot` from the place `at`, which is empty, toward the first one. */
  const siftUp = (start: number, slot: number) => {
    let at = start;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!precedes(slot, items[parent])) break;
      put(at, items[parent]);
      at = parent;
    }
    put(at, slot);
  };
  const siftDown = (start: number, slot: number) => {
    let at = start;
    for (let child = 2 * at + 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && precedes(items[child + 1], items[child])) child++;
      if (!precedes(items[child], slot)) break;
      put(at, items[child]);
      at = child;
    }
    put(at, slot);
  };
  const add = (slot: number) => {
    if (size === items.length) {
      const grown = new Int32Array(2 * size);
      grown.set(items);
      items = grown;
    }
    siftUp(size++, slot);
  };
  return {
    has: slot => position.data[slot] >= 0,
    add,
    putBack: add,
    remove(slot) {
      const at = position.data[slot];
      if (at < 0) return;
      position.data[slot] = -1;
      const moved = items[--size];
      if (moved === slot) return;
      if (at > 0 && precedes(moved, items[(at - 1) >> 1])) siftUp(at, moved);
      else siftDown(at, moved);
    },
    first: () => (size > 0 ? items[0] : -1),
  };
}
