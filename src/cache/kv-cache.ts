/**
 * The KV cache of a model with one plan: a pool of fixed capacity that all sequences share, an index of the prefixes that it
 * holds, and snapshots.
 *
 * A snapshot is an idle sequence, kept so that a later prompt can continue exactly there. Without a recent window every page
 * boundary is such a point anyway, and so is every token of a tail: that of a running sequence, of an owner's snapshot, or
 * one that is kept of a sequence that has ended. With a recent window, only snapshots are.
 */

import type { EvictionPolicy } from '../eviction/eviction.ts';
import type { Device, KvShape } from '../kernel/device.ts';
import { tailBlockTokens } from '../kernel/visibility.ts';
import type { LeafKey } from '../store/leaf-key.ts';
import type { TierChain } from '../store/tier-chain.ts';
import { CapacityError } from '../util/errors.ts';
import { createSequence } from './create-sequence.ts';
import { createIdleSinks } from './idle-sinks.ts';
import { countShared, createKeptTails, type SharedTail, type TailPlace } from './kept-tails.ts';
import { f16BlockBytes, type LeafLayout, pageBytes } from './leaf.ts';
import { createNodeKeys } from './node-keys.ts';
import { pageErrorBytes } from './page-errors.ts';
import { checkPause, type Pause, withPause } from './pause.ts';
import { createPool, type Pool } from './pool.ts';
import { createPrefixIndex, type Leaf, type PrefixEvent, type PrefixIndex, type PrefixNode } from './prefix.ts';
import { type Restoring, startRestoring } from './restore.ts';
import { type Sequence, type SequenceStart, sinkPage } from './sequence.ts';
import { createSpill } from './spill.ts';
import { tailTokens } from './tail.ts';
import { createWarmPages } from './two-tier.ts';
import { createWarmer } from './warm.ts';
import type { Warming } from './warming.ts';

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
  /** Two-tier mode: the f16 pages of idle sequences make room. */
  spillsPages?: boolean;
  /** Runs work between two passes. Default: at once. */
  exclusive?<T>(work: (pause: Pause) => Promise<T>): Promise<T>;
  /** The clock, in ms. Default: `performance.now`. */
  now?(): number;
}

/** What connects a cache with its tiers. */
export interface CacheTiers {
  chain: TierChain;
  /** The key of what precedes the first page of a salt. */
  rootKey(salt: string): LeafKey;
}

/** A text in the cache, compared with a prompt. */
export interface NearestText {
  /** Tokens that both begin with. Whole pages of them are reused, and tails. */
  shared: number;
  /** The tokens of the text after them, at most a few; none if it ends there. */
  next: number[];
}

/** The leaves of a prompt that were found last. Give a new prompt an empty one, and then always the same. */
export type KnownPath = PrefixNode[];

/** Who may continue a snapshot: a conversation. */
export type Owner = object;

export interface KvCacheStats {
  /** Max bytes of leaves, tails and sinks. */
  capacity: number;
  /** Bytes in use, including what is cached. */
  used: number;
  /** Leaves in the index that sequences or snapshots hold. */
  sharedLeaves: number;
  /** Leaves and tails that are only kept for later prompts, and can be evicted; their bytes, with their sinks. */
  cachedLeaves: number;
  cachedTails: number;
  cachedBytes: number;
  snapshots: number;
  /** Pages of prompts that were looked up, and that were found. */
  pageQueries: number;
  pageHits: number;
  evictions: number;
  /** In two-tier mode: f16 pages that were freed, and decoded back. */
  spilledPages: number;
  warmedPages: number;
}

export interface KvCache {
  readonly stats: KvCacheStats;
  /** Bytes of a new sequence: it has no tail yet. */
  readonly sequenceBytes: number;
  /** Whether leaves are found again by later prompts: not with a recent window, where only snapshots are exact. */
  readonly sharesLeaves: boolean;
  /** Whether snapshots of any sequence are found by later prompts: with a recent window. */
  readonly sharesSnapshots: boolean;
  /**
   * Whether a prompt fits beside `running` sequences that each seal a leaf or grow their tail by a block, without taking
   * anything from them.
   */
  fits(prompt: readonly number[], salt: string, running: number, path?: KnownPath): boolean;
  /**
   * Tokens of the prompt that `open` would find, without opening anything. `path`: where the prompt was found last, so that
   * looking again is cheap.
   */
  known(prompt: readonly number[], salt?: string, path?: KnownPath): number;
  /** The text in the cache that shares the most tokens with a prompt. */
  nearest(prompt: readonly number[], salt?: string): NearestText;
  /**
   * Opens a sequence that holds as much of the prompt as is known, but not its last token: its logits are needed. An owner
   * continues its own snapshot; others copy it. Evicts what it must, and throws a CapacityError if that is not enough.
   */
  open(pause: Pause, prompt: readonly number[], salt?: string, owner?: Owner): Sequence;
  /** Keeps an idle sequence as a snapshot, or only its tail, for later prompts. `owner` can drop it again. */
  keep(sequence: Sequence, owner?: Owner): void;
  /**
   * A copy to `keep` as a snapshot. Undefined if later prompts can continue here without it, as they always can without a
   * recent window, or if there is no room.
   */
  snapshot(sequence: Sequence): Sequence | undefined;
  /** The snapshot of an owner. */
  snapshotOf(owner: Owner): Sequence | undefined;
  /** Disposes the owner's snapshot. Its leaves stay cached. */
  forget(owner: Owner): void;
  /** Takes a sequence off the device to make room for others. What later prompts can find of it stays. */
  setAside(sequence: Sequence, owner?: Owner): void;
  /** Takes an owner's snapshot out of the cache; give it back with `keep`. */
  take(owner: Owner): Sequence | undefined;
  /** Starts restoring a sequence from stored bytes. Call `finish` or `discard`. */
  restore(pause: Pause, salt?: string): Restoring;
  /**
   * Fetches the pages of a prompt that the tiers have and the index lacks; in two-tier mode, decodes those that were spilled
   * of the owner's snapshot. Undefined if there are none to look for. `onChange`: a page arrived, or it has ended.
   */
  warm(prompt: readonly number[], salt: string, onChange: () => void, owner?: Owner): Warming | undefined;
  /** In two-tier mode: frees the f16 pages of an owner's snapshot. */
  spill(owner: Owner): void;
  /** Hands the leaves that were sealed so far to the tiers. */
  settle(): Promise<void>;
  /** Whether `bytes` more fit, after evicting snapshots and leaves that nobody uses. */
  makeRoom(bytes: number): boolean;
  /** Frees snapshots and cached leaves. Running sequences must be disposed before. */
  dispose(): void;
}

/** Tails that are kept may take this share of the capacity when room is needed. */
const MAX_TAIL_SHARE = 1 / 8;

/** Enough to recognize a text. */
const MAX_NEXT_TOKENS = 8;

/** In no prompt. */
const NO_TOKEN = -1;

interface Snapshot {
  sequence: Sequence;
  owner?: Owner;
}

export function createKvCache(options: KvCacheOptions): KvCache {
  const { device, shape, leaf: layout, recent, capacity, spillsPages = false } = options;
  const exclusive = options.exclusive ?? withPause;
  const now = options.now ?? (() => performance.now());
  const { pageTokens } = shape;
  /** Least recently used first. */
  const snapshots = new Set<Snapshot>();
  const sealing = { pageTokens, recent };
  const f16Shape = { ...shape, layers: layout.layers };
  const f16Bytes = (tokens: number) => f16BlockBytes(f16Shape, tokens);
  const tailBlockBytes = f16Bytes(tailBlockTokens(pageTokens));
  const sequenceBytes = f16Bytes(shape.sinks) + pageErrorBytes(layout);
  const counts = { pageQueries: 0, pageHits: 0, evictions: 0, spilledPages: 0, warmedPages: 0 };

  const newestOf = (owner: Owner) => [...snapshots].findLast(snapshot => snapshot.owner === owner);
  const spillPage = ({ sequence }: Snapshot): boolean => {
    const spilled = sequence.spillPage();
    if (spilled) counts.spilledPages++;
    return spilled;
  };
  const spillOldest = (): boolean => spillsPages && [...snapshots].some(spillPage);
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
  /** A token takes several times as many bytes in a tail as in a leaf, so tails must not take the room of many leaves. */
  const reclaim = (): boolean => {
    if (tails.bytes > MAX_TAIL_SHARE * pool.capacity) return tails.dropOldest();
    return spillOldest() || dropOldestSnapshot() || evict() || tails.dropOldest();
  };
  const pool = createPool(device, {
    capacity,
    reclaim,
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  const { policy, onEvent } = options;
  const idleSinks = createIdleSinks();
  const index: PrefixIndex = createPrefixIndex(() => pool, {
    ...{ pageTokens, policy, onEvent },
    onInsert: node => tiers?.onInsert(node),
    onRemove: node => tails.dropAt(node),
    idleSinks,
  });
  const tails = createKeptTails(() => pool, idleSinks);
  const tiers = options.tiers && connectTiers({ ...options, ...options.tiers, exclusive, now, pool, index });
  const warmPages = createWarmPages({ ...options, exclusive, now, pool, onWarmed: () => counts.warmedPages++ });
  // In shadow mode prompts read f16 pages and answers codes, and in two-tier mode pages may have been decoded from codes, so
  // a page depends on more than its tokens.
  const published = layout.exact ? undefined : index;
  const sharesSnapshots = recent > 0 && !layout.exact;
  const sharesLeaves = recent === 0 && !layout.exact;
  /** Whose tails can be shared: opened, and maybe disposed since. */
  const running = new Set<Sequence>();
  const create = (salt: string, start?: SequenceStart) =>
    createSequence({ ...options, pool, index: published, salt, start });

  /** Leaves that hold the beginning of the prompt. With a recent window, rows after them would differ from a cold run. */
  const findLeaves = (prompt: readonly number[], salt: string, known?: KnownPath): readonly PrefixNode[] => {
    if (recent > 0) return [];
    const path = index.find(salt, prompt, prompt.length - 1, known);
    return path.length > sinkPage(shape) ? path : [];
  };

  /** The snapshot from which the most tokens can be reused, and how many. `path`: the leaves of the prompt. */
  const findSnapshot = (
    path: readonly PrefixNode[],
    prompt: readonly number[],
    salt: string,
    owner?: Owner,
  ): { snapshot?: Snapshot; length: number } => {
    const last = path.at(-1)?.leaf;
    let best: { snapshot?: Snapshot; length: number } = { length: 0 };
    for (const snapshot of snapshots) {
      const { sequence } = snapshot;
      if (sequence.salt !== salt || !(sequence.shares || (owner && snapshot.owner === owner))) continue;
      const from = last && sequence.hasLeaf(path.length - 1, last) ? path.length * pageTokens : 0;
      const length = sequence.croppedLength(Math.min(sequence.hotLength, sharedLength(sequence.ids, prompt, from)));
      if (length > best.length) best = { snapshot, length };
    }
    return best;
  };

  /** The tail after these leaves that shares the most tokens with the prompt: a kept one, or that of a running sequence. */
  const findTail = (
    path: readonly PrefixNode[],
    prompt: readonly number[],
    salt: string,
  ): { sequence?: Sequence; kept?: SharedTail; length: number } => {
    const from = path.length * pageTokens;
    const place: TailPlace = path.at(-1) ?? salt;
    const kept = tails.find(place, prompt, from);
    let best: ReturnType<typeof findTail> = { kept, length: from + (kept?.shared ?? 0) };
    for (const sequence of running) {
      if (sequence.isDisposed) running.delete(sequence);
      // One whose pass has failed is discarded soon: what its tail holds is unknown.
      if (sequence.isDisposed || sequence.isPlanned || sequence.tailPlace !== place) continue;
      const length = sharedLength(sequence.ids, prompt, from);
      if (length > best.length) best = { sequence, length };
    }
    return best;
  };

  const known: KvCache['known'] = (prompt, salt = '', path) => {
    const leaves = findLeaves(prompt, salt, path);
    return Math.max(findTail(leaves, prompt, salt).length, findSnapshot(leaves, prompt, salt).length);
  };

  /** Opens a sequence with these leaves, and the shared tokens of a tail after them. */
  const openFrom = (path: readonly PrefixNode[], salt: string, kept?: SharedTail): Sequence => {
    if (path.length === 0 && !kept) return create(salt);
    const leaves = path.map(({ leaf }) => leaf!);
    const ids = path.flatMap(({ tokens }) => tokens);
    const sinks = path[sinkPage(shape)]?.sinks ?? kept!.tail.sinks!;
    if (!kept) return create(salt, { ids, leaves, sinks });
    const { tail, shared } = kept;
    const blocks = tail.blocks.map(one => one?.block);
    return tails.use(tail, () =>
      create(salt, { ids: [...ids, ...tail.ids.slice(0, shared)], leaves, sinks, tail: blocks }),
    );
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
    const { snapshot, length } = findSnapshot(path, prompt, salt, owner);
    const tail = findTail(path, prompt, salt);
    if (snapshot && length > path.length * pageTokens && length >= tail.length)
      return continueSnapshot(snapshot, length, owner);
    if (!tail.sequence) return openFrom(path, salt, tail.kept);
    const copy = tail.sequence.fork();
    copy.crop(tail.length);
    return copy;
  };

  const keepTail = (sequence: Sequence) => {
    const tail = sequence.detachTail();
    if (tail) tails.keep(tail);
  };

  const keep = (sequence: Sequence, owner?: Owner) => {
    running.delete(sequence);
    if (owner) for (const snapshot of snapshots) if (snapshot.owner === owner && recent === 0) drop(snapshot);
    if (sequence.length > 0 && (owner || sharesSnapshots)) snapshots.add({ sequence, owner });
    else if (sharesLeaves) keepTail(sequence);
    else sequence.dispose();
  };

  return {
    sequenceBytes,
    sharesLeaves,
    sharesSnapshots,
    fits(prompt, salt, running, path) {
      // Published leaves, and sinks, that snapshots hold alone are not counted: a lower bound. The prompt's own leaves must
      // stay.
      const own = findLeaves(prompt, salt, path).filter(({ leaf }) => leaf!.holders === 1).length * layout.bytes;
      let evictable = index.idleBytes - own + tails.bytes + idleSinks.bytes;
      for (const { sequence } of snapshots) evictable += sequence.privateBytes + (published ? 0 : sequence.leafBytes);
      const pages = Math.ceil(prompt.length / pageTokens) - Math.floor(known(prompt, salt, path) / pageTokens);
      const tail = Math.min(tailTokens(sealing), prompt.length + 1);
      const needed =
        sequenceBytes + pages * pageBytes(layout) + Math.ceil(tail / tailBlockTokens(pageTokens)) * tailBlockBytes;
      const growth = running * Math.max(pageBytes(layout), tailBlockBytes);
      return pool.used - evictable + needed + growth <= pool.capacity;
    },
    get stats() {
      const { size, idle, idleBytes } = index;
      const leaves = { sharedLeaves: size - idle, cachedLeaves: idle };
      const cached = { cachedTails: tails.count, cachedBytes: idleBytes + tails.bytes + idleSinks.bytes };
      return { capacity: pool.capacity, used: pool.used, ...leaves, ...cached, snapshots: snapshots.size, ...counts };
    },
    known,
    nearest(prompt, salt = '') {
      const path = sharesLeaves ? index.find(salt, prompt, prompt.length) : [];
      const from = path.length * pageTokens;
      const place: TailPlace = path.at(-1) ?? salt;
      const sequences = [...running, ...Array.from(snapshots, ({ sequence }) => sequence)].filter(
        sequence => !sequence.isDisposed && sequence.salt === salt && countShared(sequence.ids, prompt, 0) >= from,
      );
      const texts = [
        ...(sharesLeaves ? index.following(salt, path.at(-1)).map(({ tokens }) => tokens) : []),
        ...Array.from(tails.at(place), ({ ids }) => ids),
        ...sequences.map(({ ids }) => ids.slice(from)),
      ];
      let best: NearestText = { shared: from, next: [] };
      for (const ids of texts) {
        const count = countShared(ids, prompt, from, 0);
        // The newest one, unless another is the beginning of the prompt.
        if (from + count < best.shared || (from + count === best.shared && count > 0 && best.next.length === 0))
          continue;
        best = { shared: from + count, next: ids.slice(count, count + MAX_NEXT_TOKENS) };
      }
      return best;
    },
    open(pause, prompt, salt = '', owner) {
      checkPause(pause);
      let sequence: Sequence;
      try {
        sequence = openLongest(prompt, salt, owner);
      } catch (error) {
        // What it would reuse may leave no room for the rest: reuse less.
        if (!(error instanceof CapacityError && pool.makeRoom(sequenceBytes))) throw error;
        sequence = openLongest(prompt, salt, owner);
      }
      if (sharesLeaves) running.add(sequence);
      counts.pageQueries += Math.ceil(prompt.length / pageTokens);
      counts.pageHits += Math.floor(sequence.length / pageTokens);
      return sequence;
    },
    keep,
    snapshot(sequence) {
      const { ids, length, salt, shares } = sequence;
      if (!sharesSnapshots || !shares || known([...ids, NO_TOKEN], salt) === length) return undefined;
      return pool.makeRoom(sequence.privateBytes) ? sequence.fork() : undefined;
    },
    snapshotOf: owner => newestOf(owner)?.sequence,
    forget(owner) {
      for (const snapshot of snapshots) if (snapshot.owner === owner) drop(snapshot);
    },
    setAside(sequence, owner) {
      if (spillsPages) keep(sequence, owner);
      else sequence.dispose();
    },
    take(owner) {
      const found = newestOf(owner);
      if (found) snapshots.delete(found);
      return found?.sequence;
    },
    restore(pause, salt = '') {
      checkPause(pause);
      return startRestoring({
        ...{ device, pool, shape: f16Shape, leaf: layout, sealing },
        create: (start, shares) => createSequence({ ...options, pool, index: shares ? index : undefined, salt, start }),
        keep: (sequence, owner) => snapshots.add({ sequence, owner }),
      });
    },
    warm(prompt, salt, onChange, owner) {
      if (!spillsPages) return tiers?.warm(prompt, salt, onChange);
      const found = owner && newestOf(owner);
      if (!found) return undefined;
      // Now the most recently used one: others make room for it.
      snapshots.delete(found);
      snapshots.add(found);
      return warmPages(found.sequence, sharedLength(found.sequence.ids, prompt), onChange);
    },
    spill(owner) {
      for (const snapshot of snapshots) if (snapshot.owner === owner) while (spillPage(snapshot));
    },
    settle: async () => tiers?.settle(),
    makeRoom: pool.makeRoom,
    dispose() {
      while (dropOldestSnapshot() || tails.dropOldest() || index.evict());
    },
  };
}

function connectTiers(
  options: Omit<KvCacheOptions, 'tiers' | 'exclusive' | 'now'> &
    Required<Pick<KvCacheOptions, 'exclusive' | 'now'>> &
    CacheTiers & { pool: Pool; index: PrefixIndex },
) {
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

/** Number of tokens that a prompt shares with a sequence, at most all but the prompt's last. The first `from` are equal. */
export const sharedLength = (ids: readonly number[], prompt: readonly number[], from = 0): number =>
  Math.max(0, Math.min(from + countShared(ids, prompt, from), prompt.length - 1));
