/** What the prefix index consists of: nodes, their leaves and window pages, and unfinished leaves. */
import type { Evictable } from '../eviction/eviction.ts';
import type { SharedBlock } from './pool.ts';

/** One sealed page of all layers. */
export interface Leaf extends SharedBlock {
  /** Its place in the prefix index; undefined while it is private to a sequence. */
  node?: PrefixNode;
  /** The squared errors of its codes (page-errors.ts), once they were read from the device. */
  errors?: Float32Array;
  /** The page of layers with a window (leaf.ts): it is there while somebody holds it. */
  windowPage?: WindowPage;
}

export interface WindowPage extends SharedBlock {
  /** Whose leaf it belongs to, if the index holds it. */
  node?: PrefixNode;
}

/** Its window page, if it is there. */
export const windowPageOf = ({ windowPage }: Leaf): WindowPage | undefined =>
  windowPage && windowPage.holders > 0 ? windowPage : undefined;

export interface PrefixNode extends Evictable {
  readonly id: number;
  readonly salt: string;
  /** Undefined for a root. */
  readonly parent?: PrefixNode;
  readonly leaf?: Leaf;
  readonly tokens: readonly number[];
  /** The f16 sinks, on the node of the page in which they end. */
  readonly sinks?: SharedBlock;
  /** By a hash of their tokens. */
  readonly children: Map<number, PrefixNode[]>;
  lastUsed: number;
  childCount: number;
  /** Unfinished leaves that are kept after it, the newest last. */
  readonly unfinished: Set<UnfinishedLeaf>;
  isStored?: boolean;
}

/** The tokens of a text after its last sealed page, in f16. */
export interface UnfinishedLeaf {
  readonly salt: string;
  /** Undefined if there is no sealed page. */
  readonly parent?: PrefixNode;
  readonly tokens: readonly number[];
  /** The tail of its sequence: a ring. */
  readonly blocks: readonly (SharedBlock | undefined)[];
  /** If the leaves before it do not have them. */
  readonly sinks?: SharedBlock;
}

/** Whether a node is still in the index. */
export const isIndexed = (node: PrefixNode): boolean => node.leaf?.node === node;
