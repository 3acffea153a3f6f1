/**
 * The keys of a cache: the real one, or a ghost, which holds what the real one would hold under another policy. Its candidates
 * are those of the prefix index: leaves that nobody uses, without children.
 */
import type { GraphNode } from './node.ts';
import type { Order } from './order.ts';

export interface KeyCache {
  readonly size: number;
  has(node: GraphNode): boolean;
  /** Holds a leaf that somebody uses; says whether it was there. */
  use(node: GraphNode): boolean;
  /** Nobody uses it any more. */
  idle(node: GraphNode): void;
  /** Takes it off the candidates, until it is used. */
  withdraw(node: GraphNode): void;
  remove(node: GraphNode): void;
}

/** `index`: its place in `node.children`. `orders`: of its candidates. */
export function createKeyCache(index: number, orders: readonly Order[]): KeyCache {
  let size = 0;
  const has = ({ children }: GraphNode) => children[index] >= 0;
  const offer = (node: GraphNode) => {
    if (!node.isBusy && node.children[index] === 0) for (const order of orders) order.add(node);
  };
  const withdraw = (node: GraphNode) => {
    for (const order of orders) order.remove(node);
  };
  const hold = (node: GraphNode) => {
    const { parent } = node;
    // While a parent is in use, its further uses are not noted: a ghost may have evicted it.
    if (parent && !has(parent)) hold(parent);
    node.children[index] = 0;
    size++;
    if (parent && parent.children[index]++ === 0) withdraw(parent);
    offer(node);
  };
  return {
    get size() {
      return size;
    },
    has,
    use(node) {
      const isHit = has(node);
      if (isHit) withdraw(node);
      else hold(node);
      return isHit;
    },
    idle: offer,
    withdraw,
    remove(node) {
      withdraw(node);
      node.children[index] = -1;
      size--;
      if (!node.parent) return;
      node.parent.children[index]--;
      offer(node.parent);
    },
  };
}
