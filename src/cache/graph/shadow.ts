/** What the cache would hold under another policy: keys only, evicted by the same rules as the prefix index has. */
import type { EvictionPolicy } from '../eviction.ts';
import type { GraphNode } from './node.ts';

export interface Shadow {
  has(node: GraphNode): boolean;
  /** Says whether it is a hit, and holds it from now on. */
  use(node: GraphNode): boolean;
  /** Evicts until `capacity` nodes are left, or only those that are in use and their parents. */
  trim(capacity: number): void;
}

/** Somebody other than the index holds it. */
const isBusy = ({ leaf }: GraphNode) => (leaf?.leaf?.holders ?? 0) > 1;

export function createShadow(policy: EvictionPolicy<GraphNode>, onEvict: (node: GraphNode) => void): Shadow {
  /** What it holds, and how many children of each. */
  const children = new Map<GraphNode, number>();
  const addChildren = (node: GraphNode | undefined, change: 1 | -1) => {
    const count = node && children.get(node);
    if (count === undefined) return;
    children.set(node!, count + change);
    if (count + change === 0) policy.add(node!);
  };
  const hold = (node: GraphNode) => {
    // While a parent is in use, its further uses are not noted: it may have been evicted here.
    if (node.parent && !children.has(node.parent)) hold(node.parent);
    children.set(node, 0);
    addChildren(node.parent, 1);
  };
  return {
    has: node => children.has(node),
    use(node) {
      const isHit = children.has(node);
      if (!isHit) hold(node);
      if (children.get(node) === 0) policy.add(node);
      return isHit;
    },
    trim(capacity) {
      const busy: GraphNode[] = [];
      while (children.size > capacity) {
        const node = policy.next();
        if (!node) break;
        if (children.get(node) !== 0) continue;
        if (isBusy(node)) {
          busy.push(node);
          continue;
        }
        children.delete(node);
        addChildren(node.parent, -1);
        onEvict(node);
      }
      for (const node of busy) policy.add(node);
    },
  };
}
