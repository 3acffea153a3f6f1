/**
 * The prefix index: a radix tree from pages of token ids to sealed leaves. Every node is one leaf; its path from the root is
 * the text before it. Each salt (a tenant) has a root of its own, so that nothing is shared across salts.
 *
 * The index is one holder of each of its leaves. A leaf that only the index holds is cached: it can be found again, and it
 * can be evicted, children before their parents.
 *
 * Layers with a window see only the last pages, so a text goes on where these have their window pages. Those that a text has
 * left behind stay, for texts that part from it there, until room is needed.
 *
 * A text ends in an unfinished leaf: the tail of a sequence, of which a prompt can use any number of tokens. That of a
 * sequence which has ended is kept below its last leaf, and dropped with it.
 */
import { createLru, type EvictionPolicy } from '../eviction/eviction.ts';
import type { Pool, SharedBlock } from './pool.ts';
import {
  isIndexed,
  type Leaf,
  type PrefixNode,
  type UnfinishedLeaf,
  type WindowPage,
  windowPageOf,
} from './prefix-node.ts';
import { createWindowPages } from './window-pages.ts';

/** A change of the index. Replaying all events reproduces it. */
export type PrefixEvent =
  | { type: 'stored'; id: number; parent: number; salt: string; tokens: readonly number[] }
  | { type: 'removed'; id: number };

/** The unfinished leaf of a sequence, if it follows this node, or begins this salt. */
export type FindUnfinished = (salt: string, node?: PrefixNode) => UnfinishedLeaf | undefined;

export interface PrefixIndex {
  /** Number of leaves. */
  readonly size: number;
  /** Number of leaves that only the index holds. */
  readonly idle: number;
  /** Number of unfinished leaves that are kept, and their bytes. */
  readonly unfinished: number;
  readonly unfinishedBytes: number;
  /** Bytes of window pages that sequences hold, too. */
  readonly sharedWindowBytes: number;
  /** Bytes of window pages that texts have left behind. */
  readonly passedBytes: number;
  /** Bytes of all that only the index holds: leaves, their window pages, unfinished ones, and their sinks. */
  readonly idleBytes: number;
  /** The root of a salt, where page 0 is inserted. Do not keep it: a root with nothing below it is removed. */
  root(salt: string): PrefixNode;
  /**
   * The longest chain of leaves whose tokens are a prefix of the first `limit` tokens. `known`: the chain that was found
   * last for these tokens; it is brought up to date, without looking at its tokens again, and returned.
   */
  find(salt: string, tokens: ArrayLike<number>, limit: number, known?: PrefixNode[]): PrefixNode[];
  /** The pages that follow a node, or the first pages of a salt. */
  following(salt: string, node?: PrefixNode): PrefixNode[];
  /** The unfinished leaves that follow a node, or begin a salt: those that are kept, and those of sequences. */
  unfinishedAfter(salt: string, node?: PrefixNode): UnfinishedLeaf[];
  /** Adds a sequence, whose unfinished leaf others can copy. Returns what removes it. */
  join(find: FindUnfinished): () => void;
  /** Keeps an unfinished leaf, in place of those that it begins with. */
  keepUnfinished(leaf: UnfinishedLeaf): void;
  /** Holds an unfinished leaf while `work` runs, whatever is dropped. It is now the most recently used one. */
  using<T>(leaf: UnfinishedLeaf, work: () => T): T;
  /** Drops the unfinished leaf that was used least recently; false if none is kept. */
  dropUnfinished(): boolean;
  /** Adds a leaf, and the sinks if they end in it; returns the existing node if these tokens are already there. */
  insert(parent: PrefixNode, tokens: readonly number[], leaf: Leaf, sinks?: SharedBlock): PrefixNode;
  /** The leaf of these tokens has lost its window page: it gets this one. */
  addWindowPage(node: PrefixNode, page: WindowPage): void;
  /** A text has gone on until its layers do not see the leaf's window page any more. */
  notePassed(leaf: Leaf): void;
  /** Drops the window page that was left behind first; false if there is none. */
  dropPassed(): boolean;
  /** Tells the index that only itself holds the block now, or that somebody else does again. */
  noteIdle(block: Leaf | WindowPage): void;
  noteBusy(block: Leaf | WindowPage): void;
  /** Runs work that may evict leaves, but not this one, nor those before it. */
  keeping<T>(node: PrefixNode, work: () => T): T;
  /** Evicts a leaf that nobody uses, and what is below it; false if there is none. */
  evict(): boolean;
  /** Removes a leaf and what is below it, also if it is in use. */
  remove(node: PrefixNode): void;
}

export interface PrefixOptions {
  pageTokens: number;
  policy?: EvictionPolicy<PrefixNode>;
  onEvent?: (event: PrefixEvent) => void;
  /** A leaf was added. */
  onInsert?: (node: PrefixNode) => void;
}

export function createPrefixIndex(pool: () => Pool, options: PrefixOptions): PrefixIndex {
  const { pageTokens, policy = createLru(), onEvent, onInsert } = options;
  const roots = new Map<string, PrefixNode>();
  const sequences = new Set<FindUnfinished>();
  /** Those that are kept, the least recently used first. */
  const unfinished = new Set<UnfinishedLeaf>();
  /** How many idle leaves and kept unfinished ones have these sinks. */
  const sinkUses = new Map<SharedBlock, number>();
  const windowPages = createWindowPages(pool);
  let size = 0;
  let idle = 0;
  let leafBytes = 0;
  let unfinishedBytes = 0;
  let clock = 0;
  let ids = 0;
  /** The leaf that must not be evicted now, and whether the policy has named it meanwhile. */
  let kept: { node: PrefixNode; wasNext: boolean } | undefined;

  // Named one by one: V8 takes forty times as long to spread them into a new object.
  const createNode = ({
    salt,
    parent,
    leaf,
    tokens,
    sinks,
    key,
  }: Pick<PrefixNode, 'salt' | 'parent' | 'leaf' | 'tokens' | 'sinks' | 'key'>): PrefixNode => ({
    salt,
    parent,
    leaf,
    tokens,
    sinks,
    key,
    id: ids++,
    children: new Map(),
    unfinished: new Set(),
    lastUsed: 0,
    uses: 0,
    childCount: 0,
  });
  const noteUse = (node: PrefixNode) => {
    node.uses++;
    policy.use?.(node);
  };
  const countSinks = (sinks: SharedBlock | undefined, change: 1 | -1) => {
    if (!sinks) return;
    const uses = (sinkUses.get(sinks) ?? 0) + change;
    if (uses > 0) sinkUses.set(sinks, uses);
    else sinkUses.delete(sinks);
  };
  /** Bytes of the sinks that no sequence holds. */
  const idleSinkBytes = () => {
    let bytes = 0;
    for (const [{ holders, block }, uses] of sinkUses) if (holders === uses) bytes += block.bytes;
    return bytes;
  };
  const noteIdleCount = ({ leaf, sinks }: PrefixNode, change: 1 | -1) => {
    idle += change;
    leafBytes += change * (leaf?.block.bytes ?? 0);
    countSinks(sinks, change);
  };
  const noteUnfinished = ({ blocks, sinks }: UnfinishedLeaf, change: 1 | -1) => {
    for (const shared of blocks) unfinishedBytes += change * (shared?.block.bytes ?? 0);
    countSinks(sinks, change);
  };
  const isIdle = ({ leaf }: PrefixNode) => leaf?.holders === 1;
  const isEvictable = (node: PrefixNode) => isIdle(node) && node.childCount === 0;
  const offer = (node: PrefixNode) => {
    if (isEvictable(node)) policy.add(node);
  };
  const findChild = (parent: PrefixNode, tokens: ArrayLike<number>, start: number) =>
    parent.children
      .get(hashTokens(tokens, start, pageTokens))
      ?.find(node => node.tokens.every((id, i) => id === tokens[start + i]));
  /** These nodes and their descendants, parents before their children. */
  function* walk(nodes: Iterable<PrefixNode>): Generator<PrefixNode> {
    const pending = [...nodes];
    for (let node = pending.pop(); node; node = pending.pop()) {
      yield node;
      for (const children of node.children.values()) pending.push(...children);
    }
  }
  /** A node and its ancestors. */
  function* pathTo(node?: PrefixNode): Generator<PrefixNode> {
    for (let at = node; at; at = at.parent) yield at;
  }
  const getRoot = (salt: string): PrefixNode => {
    const root = roots.get(salt) ?? createNode({ salt, tokens: [], key: rootHash(salt) });
    roots.set(salt, root);
    return root;
  };
  const removeIfEmpty = (root: PrefixNode) => {
    if (!root.parent && root.childCount + root.unfinished.size === 0) roots.delete(root.salt);
  };
  const drop = (leaf: UnfinishedLeaf) => {
    const parent = leaf.parent ?? getRoot(leaf.salt);
    parent.unfinished.delete(leaf);
    unfinished.delete(leaf);
    noteUnfinished(leaf, -1);
    for (const shared of blocksOf(leaf)) pool().release(shared);
    removeIfEmpty(parent);
  };
  const remove = (node: PrefixNode) => {
    const { leaf, parent, tokens, sinks } = node;
    if (!leaf || !parent) return;
    windowPages.drop(leaf);
    const hash = hashTokens(tokens, 0, pageTokens);
    const siblings = parent.children.get(hash)!.filter(other => other !== node);
    if (siblings.length > 0) parent.children.set(hash, siblings);
    else parent.children.delete(hash);
    parent.childCount--;
    size--;
    if (isIdle(node)) noteIdleCount(node, -1);
    leaf.node = undefined;
    policy.remove?.(node);
    onEvent?.({ type: 'removed', id: node.id });
    for (const one of [...node.unfinished]) drop(one);
    pool().release(leaf);
    if (sinks) pool().release(sinks);
    removeIfEmpty(parent);
    offer(parent);
  };
  const removeTree = (node: PrefixNode) => {
    for (const descendant of [...walk([node])].reverse()) remove(descendant);
  };

  return {
    get size() {
      return size;
    },
    get idle() {
      return idle;
    },
    get unfinished() {
      return unfinished.size;
    },
    get unfinishedBytes() {
      return unfinishedBytes;
    },
    get idleBytes() {
      return leafBytes + windowPages.idleBytes + unfinishedBytes + idleSinkBytes();
    },
    get sharedWindowBytes() {
      return windowPages.sharedBytes;
    },
    get passedBytes() {
      return windowPages.passedBytes;
    },
    root: getRoot,
    find(salt, tokens, limit, path = []) {
      // Children leave before their parents: those before the last one that is there are there, too.
      while (path.length > 0 && !isIndexed(path[path.length - 1])) path.pop();
      let node = path.at(-1) ?? roots.get(salt);
      for (let start = path.length * pageTokens; node && start + pageTokens <= limit; start += pageTokens) {
        node = findChild(node, tokens, start);
        if (node) path.push(node);
      }
      return path;
    },
    following: (salt, node = roots.get(salt)) => [...(node?.children.values() ?? [])].flat(),
    unfinishedAfter(salt, node) {
      const kept = (node ?? roots.get(salt))?.unfinished ?? [];
      return [...kept, ...Array.from(sequences, find => find(salt, node) ?? []).flat()];
    },
    join(find) {
      sequences.add(find);
      return () => sequences.delete(find);
    },
    keepUnfinished(leaf) {
      for (const shared of blocksOf(leaf)) pool().retain(shared);
      const siblings = (leaf.parent ?? getRoot(leaf.salt)).unfinished;
      siblings.add(leaf);
      unfinished.add(leaf);
      noteUnfinished(leaf, 1);
      // The turn before this one, or the same question again.
      for (const other of [...siblings])
        if (other !== leaf && countShared(other.tokens, leaf.tokens) === other.tokens.length) drop(other);
    },
    using(leaf, work) {
      if (unfinished.delete(leaf)) unfinished.add(leaf);
      const held = blocksOf(leaf).map(block => pool().retain(block));
      try {
        return work();
      } finally {
        for (const block of held) pool().release(block);
      }
    },
    dropUnfinished() {
      const [oldest] = unfinished;
      if (oldest) drop(oldest);
      return oldest !== undefined;
    },
    insert(parent, tokens, leaf, sinks) {
      const known = findChild(parent, tokens, 0);
      if (known) return known;
      const held = { leaf: pool().retain(leaf), sinks: sinks && pool().retain(sinks) };
      const hash = hashTokens(tokens, 0, pageTokens);
      const key = childHash(parent.key, hash);
      const node = createNode({ salt: parent.salt, parent, tokens: [...tokens], key, ...held });
      parent.children.set(hash, [...(parent.children.get(hash) ?? []), node]);
      parent.childCount++;
      size++;
      leaf.node = node;
      windowPages.hold(node, windowPageOf(leaf));
      noteUse(node);
      if (onEvent) onEvent({ type: 'stored', id: node.id, parent: parent.id, salt: node.salt, tokens: node.tokens });
      onInsert?.(node);
      return node;
    },
    addWindowPage: windowPages.hold,
    notePassed: windowPages.notePassed,
    dropPassed: windowPages.dropPassed,
    noteIdle(block) {
      const { node } = block;
      if (!node) return;
      if (block !== node.leaf) return windowPages.noteIdle(block);
      noteIdleCount(node, 1);
      node.lastUsed = ++clock;
      policy.idle?.(node);
      offer(node);
    },
    noteBusy(block) {
      const { node } = block;
      if (!node) return;
      if (block !== node.leaf) return windowPages.noteBusy(block);
      noteIdleCount(node, -1);
      noteUse(node);
    },
    keeping(node, work) {
      kept = { node, wasNext: false };
      try {
        return work();
      } finally {
        const { wasNext } = kept;
        kept = undefined;
        if (wasNext) offer(node);
      }
    },
    evict() {
      for (let node = policy.next(); node; node = policy.next()) {
        if (node === kept?.node) {
          kept.wasNext = true;
          continue;
        }
        // It is in use again, or has children now; it is offered again when that ends.
        if (!isEvictable(node) || !isIndexed(node)) continue;
        remove(node);
        return true;
      }
      // What is still idle precedes what is kept, or has descendants that only sequences hold which have slid. These
      // sequences publish nothing more, so their leaves may leave the index while they are in use.
      const keptPath = new Set(pathTo(kept?.node));
      for (const node of walk(roots.values())) {
        if (!isIdle(node) || keptPath.has(node)) continue;
        removeTree(node);
        return true;
      }
      return false;
    },
    remove: removeTree,
  };
}

const blocksOf = ({ blocks, sinks }: UnfinishedLeaf) => [...blocks, sinks].filter(block => block !== undefined);

/** How many of the ids are the tokens from `from` on. */
export function countShared(ids: readonly number[], tokens: readonly number[], from = 0): number {
  const max = Math.min(ids.length, tokens.length - from);
  let shared = 0;
  while (shared < max && ids[shared] === tokens[from + shared]) shared++;
  return shared;
}

/** 52 bits that name a text: policies remember evicted leaves by it. A collision costs a policy accuracy, nothing else. */
export const rootHash = (salt: string): number =>
  childHash(
    0,
    hashTokens(
      [...salt].map(char => char.codePointAt(0)!),
      0,
    ),
  );

export function childHash(parent: number, hash: number): number {
  const low = mix((parent % 2 ** 32) ^ hash);
  const high = mix(Math.floor(parent / 2 ** 32) ^ Math.imul(hash, 0x9e3779b1) ^ low);
  return (high >>> 12) * 2 ** 32 + (low >>> 0);
}

/** The finalizer of MurmurHash3. */
function mix(hash: number): number {
  let x = hash | 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return x ^ (x >>> 16);
}

/** FNV-1a over token ids. Tokens are compared on a hit, so collisions only cost time. */
export function hashTokens(tokens: ArrayLike<number>, start: number, count = tokens.length): number {
  let hash = 0x811c9dc5;
  for (let i = start; i < start + count; i++) hash = Math.imul(hash ^ tokens[i], 0x01000193);
  return hash;
}
