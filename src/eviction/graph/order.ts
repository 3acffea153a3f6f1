/** Leaves in some order, as a binary heap that knows where each leaf is: one can be removed in O(log n). */
import type { GraphNode } from './node.ts';

export interface Order {
  add(node: GraphNode): void;
  /** Removes a leaf, if it is there. */
  remove(node: GraphNode): void;
  first(): GraphNode | undefined;
}

/**
 * `index`: its place in `node.places`. What `precedes` compares may change only after a leaf was removed, or before it is
 * added.
 */
export function createOrder(index: number, precedes: (a: GraphNode, b: GraphNode) => boolean): Order {
  const heap: GraphNode[] = [];
  const put = (at: number, node: GraphNode) => {
    heap[at] = node;
    node.places[index] = at;
  };
  /** Puts a leaf into the empty place `at`, or above it. */
  const siftUp = (start: number, node: GraphNode) => {
    let at = start;
    for (let parent = (at - 1) >> 1; at > 0 && precedes(node, heap[parent]); parent = (at - 1) >> 1) {
      put(at, heap[parent]);
      at = parent;
    }
    put(at, node);
  };
  const siftDown = (start: number, node: GraphNode) => {
    let at = start;
    for (let child = 2 * at + 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && precedes(heap[child + 1], heap[child])) child++;
      if (!precedes(heap[child], node)) break;
      put(at, heap[child]);
      at = child;
    }
    put(at, node);
  };
  return {
    add: node => siftUp(heap.length, node),
    remove(node) {
      const at = node.places[index];
      if (at < 0) return;
      node.places[index] = -1;
      const moved = heap.pop()!;
      if (moved === node) return;
      if (at > 0 && precedes(moved, heap[(at - 1) >> 1])) siftUp(at, moved);
      else siftDown(at, moved);
    },
    first: () => heap[0],
  };
}
