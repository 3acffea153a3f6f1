/** The keys by which tiers know the leaves of the prefix index. */
import { childKey, type LeafKey } from '../store/leaf-key.ts';
import type { RecordName } from '../store/leaf-store.ts';
import type { PrefixNode } from './prefix-node.ts';

export interface NodeKeys {
  /** Computes the key of a node that was inserted. Parents come before their children. */
  add(node: PrefixNode): void;
  of(node: PrefixNode): LeafKey;
  /** The key of what precedes the first page of a salt. */
  root(salt: string): LeafKey;
  /** Names the sinks of a text by its first tokens. */
  sinks(salt: string, tokens: readonly number[]): RecordName;
}

export function createNodeKeys(rootKey: (salt: string) => LeafKey): NodeKeys {
  const keys = new WeakMap<PrefixNode, LeafKey>();
  const of = (node: PrefixNode): LeafKey => (node.parent ? keys.get(node)! : rootKey(node.salt));
  return {
    add(node) {
      keys.set(node, childKey(of(node.parent!), node.tokens));
    },
    of,
    root: rootKey,
    sinks: (salt, tokens) => ({ kind: 'sinks', key: childKey(rootKey(salt), tokens) }),
  };
}
