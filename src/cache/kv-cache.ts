/**
 * The KV cache of a model with one plan: a pool of fixed capacity that all sequences share, an index of the prefixes that it
 * holds, and snapshots.
 *
 * A snapshot is an idle sequence, kept so that a later prompt can continue exactly there. Without a recent window every page
 * boundary is such a point anyway, and a snapshot only saves the unsealed tail; with one, only snapshots are.
 */
import { CapacityError } from '../errors.ts';
import type { Device, KvShape } from '../kernel/device.ts';
import { tailBlockTokens } from '../kernel/visibility.ts';
import type { EvictionPolicy } from './eviction.ts';
import { f16Block, f16BlockBytes, type LeafLayout, partOffsets } from './leaf.ts';
import type { LeafKey } from './leaf-key.ts';
import { createNodeKeys } from './node-keys.ts';
import { pageErrorBytes } from './page-errors.ts';
import { createPool, type Pool, type SharedBlock } from './pool.ts';
import { createPrefixIndex, type Leaf, type PrefixEvent, type PrefixIndex, type PrefixNode } from './prefix.ts';
import { createSequence, type Sequence, type SequenceStart, sinkPage } from './sequence.ts';
import { createSpill } from './spill.ts';
import type { TierChain } from './store/tier-chain.ts';
import { tailFileBytes, tailTokens, writeTail } from './tail.ts';
import { createWarmer, type Warm } from './warm.ts';

export interface KvCacheOptions {
  device: Device;
  shape: Omit<KvShape, 'layers' | 'tailTokens'>;
  leaf: LeafLayout;
  recent: number;
  /** Max tokens per sequence. */
  context: number;
  overflow?: 'error' | 'slide';
  /** Max bytes of leaves, tails and sinks. Default: no limit. */
  capacity?: number;
  policy?: EvictionPolicy<PrefixNode>;
  onEvent?: (event: PrefixEvent) => void;
  /** Where sealed leaves are stored, and found again after they were evicted. Not with a recent window. */
  tiers?: CacheTiers;
}

/** What connects a cache with its tiers. */
export interface CacheTiers {
  chain: TierChain;
  /** The key of what precedes the first page of a salt. */
  rootKey(salt: string): LeafKey;
  /** Runs work between two passes. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
}

/** Who may continue a snapshot: a conversation. */
export type Owner = object;

export interface KvCacheStats {
  /** Max bytes of leaves, tails and sinks. */
  capacity: number;
  /** Bytes in use, including what is cached. */
  used: number;
  /** Leaves in the index that sequences or snapshots hold. */
  sharedLeaves: number;
  /** Leaves that are only kept for later prompts, and can be evicted; their bytes, with their sinks. */
  cachedLeaves: number;
  cachedBytes: number;
  snapshots: number;
  /** Pages of prompts that were looked up, and that were found. */
  pageQueries: number;
  pageHits: number;
  evictions: number;
}

export interface KvCache {
  readonly stats: KvCacheStats;
  /** Bytes of a new sequence: it has no tail yet. */
  readonly sequenceBytes: number;
  /** Whether leaves are found again by later prompts: not with a recent window, where only snapshots are exact. */
  readonly sharesLeaves: boolean;
  /**
   * Whether a prompt fits beside `running` sequences that each seal a leaf or grow their tail by a block, without taking
   * anything from them.
   */
  fits(prompt: readonly number[], salt: string, running: number): boolean;
  /** Tokens of the prompt that `open` would find, without opening anything. */
  known(prompt: readonly number[], salt?: string): number;
  /**
   * Opens a sequence that holds as much of the prompt as is known, but not its last token: its logits are needed. An owner
   * continues its own snapshot; others copy it. Evicts what it must, and throws a CapacityError if that is not enough.
   */
  open(prompt: readonly number[], salt?: string, owner?: Owner): Sequence;
  /** Keeps an idle sequence as a snapshot, or disposes it. `owner` can drop it again. */
  keep(sequence: Sequence, owner?: Owner): void;
  /** Keeps a copy as a snapshot, if a recent window makes this an exact point that leaves alone would not be. */
  snapshot(sequence: Sequence): void;
  /** The snapshot of an owner. */
  snapshotOf(owner: Owner): Sequence | undefined;
  /** Disposes the owner's snapshot. Its leaves stay cached. */
  forget(owner: Owner): void;
  /** Takes an owner's snapshot out of the cache; give it back with `keep`. */
  take(owner: Owner): Sequence | undefined;
  /** Starts restoring a sequence from stored bytes. Call `finish` or `discard`. */
  restore(salt?: string): Restoring;
  /** Fetches the pages of a prompt that the tiers have and the index lacks; undefined if there are none to look for. */
  warm: Warm;
  /** Hands the leaves that were sealed so far to the tiers. */
  settle(): Promise<void>;
  /** Whether `bytes` more fit, after evicting snapshots and leaves that nobody uses. */
  makeRoom(bytes: number): boolean;
  /** Frees snapshots and cached leaves. Running sequences must be disposed before. */
  dispose(): void;
}

/** A sequence that is being restored. No pass may be recorded while its methods run. */
export interface Restoring {
  readonly sinkBytes: number;
  /** Bytes of the tail in a file. */
  readonly tailBytes: number;
  /** Adds the next leaf. */
  addLeaf(bytes: Uint8Array): Promise<void>;
  /**
   * Keeps the sequence as a snapshot of `owner`. `shares`: its leaves are those that this device would compute, so other
   * prompts may use them.
   */
  finish(content: RestoredContent, owner: Owner, shares: boolean): Promise<void>;
  discard(): void;
}

/** What a restored sequence holds besides its leaves. */
export interface RestoredContent {
  ids: readonly number[];
  sinks: Uint8Array;
  /** As in a file. */
  tail: Uint8Array;
}

interface Snapshot {
  sequence: Sequence;
  owner?: Owner;
}

export function createKvCache(options: KvCacheOptions): KvCache {
  const { device, shape, leaf: layout, recent, capacity } = options;
  const { pageTokens } = shape;
  /** Least recently used first. */
  const snapshots = new Set<Snapshot>();
  const sealing = { pageTokens, recent };
  const f16Shape = { ...shape, layers: layout.layers };
  const f16Bytes = (tokens: number) => f16BlockBytes(f16Shape, tokens);
  const tailBlockBytes = f16Bytes(tailBlockTokens(pageTokens));
  const sequenceBytes = f16Bytes(shape.sinks) + pageErrorBytes(layout);
  const counts = { pageQueries: 0, pageHits: 0, evictions: 0 };

  const dropOldestSnapshot = (): boolean => {
    const [oldest] = snapshots;
    if (!oldest) return false;
    drop(oldest);
    return true;
  };
  const drop = (snapshot: Snapshot) => {
    snapshots.delete(snapshot);
    snapshot.sequence.dispose();
  };
  const evict = () => {
    const done = index.evict();
    if (done) counts.evictions++;
    return done;
  };
  const pool = createPool(device, {
    capacity,
    reclaim: () => dropOldestSnapshot() || evict(),
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  const { policy, onEvent } = options;
  const index: PrefixIndex = createPrefixIndex(() => pool, {
    ...{ pageTokens, policy, onEvent },
    onInsert: node => tiers?.onInsert(node),
  });
  const tiers = options.tiers && connectTiers({ ...options, ...options.tiers, pool, index });
  // In shadow mode prompts read f16 pages and answers codes, so a page depends on more than its tokens.
  const published = layout.exact ? undefined : index;
  const create = (salt: string, start?: SequenceStart) =>
    createSequence({ ...options, pool, index: published, salt, start });

  /** Leaves that hold the beginning of the prompt. With a recent window, rows after them would differ from a cold run. */
  const findLeaves = (prompt: readonly number[], salt: string): PrefixNode[] => {
    if (recent > 0) return [];
    const path = index.find(salt, prompt, prompt.length - 1);
    return path.length > sinkPage(shape) ? path : [];
  };

  /** The snapshot from which the most tokens can be reused, and how many. */
  const findSnapshot = (
    prompt: readonly number[],
    salt: string,
    owner?: Owner,
  ): { snapshot?: Snapshot; length: number } => {
    let best: { snapshot?: Snapshot; length: number } = { length: 0 };
    for (const snapshot of snapshots) {
      const { sequence } = snapshot;
      if (sequence.salt !== salt || !(sequence.shares || snapshot.owner === owner)) continue;
      const length = sequence.croppedLength(sharedLength(sequence.ids, prompt));
      if (length > best.length) best = { snapshot, length };
    }
    return best;
  };

  const known = (prompt: readonly number[], salt = '') =>
    Math.max(findLeaves(prompt, salt).length * pageTokens, findSnapshot(prompt, salt).length);

  const openFrom = (path: readonly PrefixNode[], salt: string): Sequence => {
    const leaves = path.map(({ leaf }) => leaf!);
    const sinks = path[sinkPage(shape)].sinks!;
    return create(salt, { ids: path.flatMap(({ tokens }) => tokens), leaves, sinks });
  };

  const continueSnapshot = (snapshot: Snapshot, length: number, owner?: Owner): Sequence => {
    const { sequence } = snapshot;
    // It must not be dropped to make room for its own copy.
    snapshots.delete(snapshot);
    // Others may need it, and later prompts what is cropped. With a recent window they may need this exact point, too: only
    // the snapshot keeps it.
    const moves = recent === 0 && snapshot.owner === owner && length === sequence.length;
    const copies = !moves && pool.makeRoom(sequence.privateBytes);
    try {
      const continued = copies ? sequence.fork() : sequence;
      continued.crop(length);
      return continued;
    } finally {
      // Now the most recently used one.
      if (copies) snapshots.add(snapshot);
    }
  };

  /** Reuses as much as possible. */
  const openLongest = (prompt: readonly number[], salt: string, owner?: Owner): Sequence => {
    const path = findLeaves(prompt, salt);
    const { snapshot, length } = findSnapshot(prompt, salt, owner);
    if (snapshot && length > path.length * pageTokens) return continueSnapshot(snapshot, length, owner);
    return path.length > 0 ? openFrom(path, salt) : create(salt);
  };

  return {
    sequenceBytes,
    sharesLeaves: recent === 0 && !layout.exact,
    fits(prompt, salt, running) {
      // Leaves and sinks that snapshots hold alone are not counted: a lower bound. The prompt's own leaves must stay.
      const own = findLeaves(prompt, salt).filter(({ leaf }) => leaf!.holders === 1).length * layout.bytes;
      let evictable = index.idleBytes - own;
      for (const { sequence } of snapshots) evictable += sequence.privateBytes;
      const pages = Math.ceil(prompt.length / pageTokens) - Math.floor(known(prompt, salt) / pageTokens);
      const tail = Math.min(tailTokens(sealing), prompt.length + 1);
      const needed =
        sequenceBytes + pages * layout.bytes + Math.ceil(tail / tailBlockTokens(pageTokens)) * tailBlockBytes;
      const growth = running * Math.max(layout.bytes, tailBlockBytes);
      return pool.used - evictable + needed + growth <= pool.capacity;
    },
    get stats() {
      const { size, idle, idleBytes } = index;
      const leaves = { sharedLeaves: size - idle, cachedLeaves: idle, cachedBytes: idleBytes };
      return { capacity: pool.capacity, used: pool.used, ...leaves, snapshots: snapshots.size, ...counts };
    },
    known,
    open(prompt, salt = '', owner) {
      let sequence: Sequence;
      try {
        sequence = openLongest(prompt, salt, owner);
      } catch (error) {
        // What it would reuse may leave no room for the rest: reuse less.
        if (!(error instanceof CapacityError && pool.makeRoom(sequenceBytes))) throw error;
        sequence = openLongest(prompt, salt, owner);
      }
      counts.pageQueries += Math.ceil(prompt.length / pageTokens);
      counts.pageHits += Math.floor(sequence.length / pageTokens);
      return sequence;
    },
    keep(sequence, owner) {
      if (owner) for (const snapshot of snapshots) if (snapshot.owner === owner && recent === 0) drop(snapshot);
      if (sequence.length > 0 && (owner || recent > 0)) snapshots.add({ sequence, owner });
      else sequence.dispose();
    },
    snapshot(sequence) {
      if (recent > 0 && pool.makeRoom(sequence.privateBytes)) snapshots.add({ sequence: sequence.fork() });
    },
    snapshotOf: owner => [...snapshots].findLast(snapshot => snapshot.owner === owner)?.sequence,
    forget(owner) {
      for (const snapshot of snapshots) if (snapshot.owner === owner) drop(snapshot);
    },
    take(owner) {
      const found = [...snapshots].findLast(snapshot => snapshot.owner === owner);
      if (found) snapshots.delete(found);
      return found?.sequence;
    },
    restore(salt = '') {
      const held: SharedBlock[] = [];
      const discard = () => {
        for (const block of held.splice(0)) pool.release(block);
      };
      const allocate = (bytes: number, offsets: readonly number[]) => {
        const block = pool.allocate(bytes, offsets);
        held.push(block);
        return block;
      };
      const leaves: Leaf[] = [];
      const sinks = allocate(...f16Block(f16Shape, shape.sinks));
      return {
        sinkBytes: sinks.block.bytes,
        tailBytes: tailFileBytes(f16Shape, sealing),
        async addLeaf(bytes) {
          const leaf = allocate(layout.bytes, partOffsets(layout));
          await device.ensureMemory?.([{ leaves: [leaf.block], tail: [], sinkBlock: sinks.block }]);
          device.writeBlock(leaf.block, bytes);
          leaves.push(leaf);
        },
        async finish({ ids, sinks: sinkBytes, tail }, owner, shares) {
          const start = { ids, leaves, sinks };
          const sequence = createSequence({ ...options, pool, index: shares ? index : undefined, salt, start });
          const unsealed = { from: leaves.length * pageTokens, to: ids.length };
          try {
            await device.ensureMemory?.([sequence.view]);
          } catch (error) {
            sequence.dispose();
            throw error;
          }
          device.writeBlock(sinks.block, sinkBytes);
          writeTail(device, sequence.view, sealing, unsealed, tail);
          sequence.commit(0, []);
          snapshots.add({ sequence, owner });
          discard();
        },
        discard,
      };
    },
    warm: tiers?.warm ?? (() => undefined),
    settle: async () => tiers?.settle(),
    makeRoom: pool.makeRoom,
    dispose() {
      while (dropOldestSnapshot() || index.evict());
      options.policy?.dispose?.();
    },
  };
}

function connectTiers(options: Omit<KvCacheOptions, 'tiers'> & CacheTiers & { pool: Pool; index: PrefixIndex }) {
  const keys = createNodeKeys(options.rootKey);
  const spill = createSpill({ ...options, keys, sinks: options.shape.sinks });
  return {
    onInsert(node: PrefixNode) {
      keys.add(node);
      spill.add(node);
    },
    settle: spill.settle,
    warm: createWarmer({ ...options, keys, onWarmed: spill.remove }),
  };
}

/** Number of tokens that a prompt shares with a sequence, at most all but the prompt's last. */
export function sharedLength(ids: readonly number[], prompt: readonly number[]): number {
  const max = Math.min(ids.length, prompt.length - 1);
  let shared = 0;
  while (shared < max && ids[shared] === prompt[shared]) shared++;
  return shared;
}
