/**
 * The KV cache of a model with one plan: a pool of fixed capacity that all sequences share, an index of the prefixes that it
 * holds, and the idle sequences of owners.
 *
 * A prompt continues at any token that it shares with a text in the index: a sealed page, or a tail. With a recent window
 * pages and tails are not enough to go on exactly: rows before them were read in f16. Then a sequence is private: only its
 * owner continues it.
 */

import type { EvictionPolicy } from '../eviction/eviction.ts';
import type { Device, KvShape } from '../kernel/device.ts';
import { tailBlockTokens } from '../kernel/visibility.ts';
import type { LeafKey } from '../store/leaf-key.ts';
import type { TierChain } from '../store/tier-chain.ts';
import { CapacityError } from '../util/errors.ts';
import { createSequence } from './create-sequence.ts';
import { f16BlockBytes, firstVisiblePage, type LeafLayout, pageBytes, sealedBytes } from './leaf.ts';
import { createLeafFetcher } from './leaf-fetcher.ts';
import { createLeafWriter } from './leaf-writer.ts';
import { createNodeKeys } from './node-keys.ts';
import { pageErrorBytes } from './page-errors.ts';
import { checkPause, type Pause, withPause } from './pause.ts';
import { createPool, type Pool } from './pool.ts';
import type { Prefetch } from './prefetch.ts';
import { countShared, createPrefixIndex, type PrefixEvent, type PrefixIndex } from './prefix.ts';
import type { Leaf, PrefixNode, UnfinishedLeaf } from './prefix-node.ts';
import { type Restoring, startRestoring } from './restore.ts';
import { usablePages } from './sealed-pages.ts';
import { type Sequence, type SequenceStart, sinkPage } from './sequence.ts';
import { tailTokens } from './tail.ts';
import { createTwoTier } from './two-tier.ts';

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
  /** The tokens of the text after them, at most a few and those of one page; none if it ends there. */
  next: number[];
}

/** The leaves of a prompt that were found last. Give a new prompt an empty one, and then always the same. */
export type KnownPath = PrefixNode[];

/** Who keeps an idle sequence: a conversation. */
export type Owner = object;

export interface KvCacheStats {
  /** Max bytes of leaves, tails and sinks. */
  capacity: number;
  /** Bytes in use, including what is cached. */
  used: number;
  /** Leaves in the index that sequences hold, and their bytes. */
  sharedLeaves: number;
  sharedBytes: number;
  /** Leaves and tails that are only kept for later prompts, and can be evicted; their bytes, with their sinks. */
  cachedLeaves: number;
  cachedTails: number;
  cachedBytes: number;
  /** Sequences of owners that nothing runs on. */
  idleSequences: number;
  /** Pages of prompts that were looked up, and that were found. */
  pageQueries: number;
  pageHits: number;
  evictions: number;
  /** In two-tier mode: f16 pages that were freed, and decoded again. */
  spilledPages: number;
  decodedPages: number;
}

export interface KvCache {
  readonly stats: KvCacheStats;
  /** Bytes of a new sequence: it has no tail yet. */
  readonly sequenceBytes: number;
  /** Whether later prompts find what sequences have computed; if not, sequences are private. */
  readonly sharesLeaves: boolean;
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
   * continues its idle sequence; others copy what they find. Evicts what it must, and throws a CapacityError if that is not enough.
   */
  open(pause: Pause, prompt: readonly number[], salt?: string, owner?: Owner): Sequence;
  /** Keeps a sequence, now idle, in place of the last one of its owner; without an owner, what later prompts find of it. */
  keep(sequence: Sequence, owner?: Owner): void;
  /** The idle sequence of an owner. */
  idleOf(owner: Owner): Sequence | undefined;
  /** Disposes the owner's idle sequence. Its leaves stay cached. */
  forget(owner: Owner): void;
  /** Takes a sequence off the device to make room for others. What later prompts can find of it stays. */
  setAside(sequence: Sequence, owner?: Owner): void;
  /** Takes an owner's idle sequence out of the cache; give it back with `keep`. */
  take(owner: Owner): Sequence | undefined;
  /** Starts restoring a sequence from stored bytes. Call `finish` or `discard`. */
  restore(pause: Pause, salt?: string): Restoring;
  /**
   * Fetches the pages of a prompt that the tiers have and the index lacks; in two-tier mode, decodes those that were spilled
   * of the owner's idle sequence. Undefined if there are none to look for. `onChange`: a page arrived, or it has ended.
   */
  prefetch(prompt: readonly number[], salt: string, onChange: () => void, owner?: Owner): Prefetch | undefined;
  /** In two-tier mode: frees the f16 pages of an owner's idle sequence. */
  spill(owner: Owner): void;
  /** Hands the leaves that were sealed so far to the tiers. */
  settle(): Promise<void>;
  /** Whether `bytes` more fit, after evicting idle sequences and leaves that nobody uses. */
  makeRoom(bytes: number): boolean;
  /** The device has no more memory than is used now: that is the capacity from now on. */
  limitToUsed(): void;
  /** Frees idle sequences and cached leaves. Running sequences must be disposed before. */
  dispose(): void;
}

/**
 * When room is needed, tails that are kept may take this share of the capacity, and so may window pages that texts have left
 * behind.
 */
const MAX_SHARE = 1 / 8;

/** Enough to recognize a text. */
const MAX_NEXT_TOKENS = 8;

/** What the index holds of a prompt. */
interface FoundPath {
  leaves: readonly PrefixNode[];
  /** The one after them from which the most tokens can be used. */
  unfinished?: UnfinishedLeaf;
  /** Number of tokens. */
  length: number;
}

export function createKvCache(options: KvCacheOptions): KvCache {
  const { device, shape, leaf: layout, recent, capacity } = options;
  const exclusive = options.exclusive ?? withPause;
  const now = options.now ?? (() => performance.now());
  const { pageTokens } = shape;
  /** Least recently used first. */
  const idle = new Map<Owner, Sequence>();
  const sealing = { pageTokens, recent };
  const f16Shape = { ...shape, layers: layout.layers };
  const f16Bytes = (tokens: number) => f16BlockBytes(f16Shape, tokens);
  const tailBlockBytes = f16Bytes(tailBlockTokens(pageTokens));
  const sequenceBytes = f16Bytes(shape.sinks) + pageErrorBytes(layout);
  const counts = { pageQueries: 0, pageHits: 0, evictions: 0 };

  const take = (owner: Owner): Sequence | undefined => {
    const sequence = idle.get(owner);
    idle.delete(owner);
    return sequence;
  };
  const forget = (owner: Owner) => take(owner)?.dispose();
  const forgetOldest = (): boolean => {
    const [oldest] = idle.keys();
    if (oldest) forget(oldest);
    return oldest !== undefined;
  };
  const evict = () => {
    const done = index.evict();
    if (done) counts.evictions++;
    return done;
  };
  /** A token takes several times as many bytes in a tail as in a leaf, so tails must not take the room of many leaves. */
  const reclaim = (): boolean => {
    if (index.unfinishedBytes > MAX_SHARE * pool.capacity) return index.dropUnfinished();
    if (index.passedBytes > MAX_SHARE * pool.capacity) return index.dropPassed();
    const isSpilled = twoTier && [...idle.values()].some(twoTier.spillPage);
    return isSpilled || forgetOldest() || evict() || index.dropUnfinished() || index.dropPassed();
  };
  const pool = createPool(device, {
    capacity,
    reclaim,
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  /** Of the leaves on a path: after how many of them a text can go on. */
  const countUsable = (path: readonly PrefixNode[]): number =>
    layout.windowPage
      ? usablePages(
          path.map(({ leaf }) => leaf!),
          pages => firstVisiblePage(layout, pages, pageTokens),
        )
      : path.length;
  const { policy, onEvent } = options;
  const index: PrefixIndex = createPrefixIndex(() => pool, {
    ...{ pageTokens, policy, onEvent },
    onInsert: node => tiers?.onInsert(node),
  });
  const tiers =
    options.tiers && connectTiers({ ...options, ...options.tiers, exclusive, now, pool, index, countUsable });
  const twoTier = options.spillsPages ? createTwoTier({ ...options, exclusive, now, pool }) : undefined;
  // With a recent window, rows after a page would differ from a cold run. In shadow mode prompts read f16 pages and answers
  // codes, and in two-tier mode pages may have been decoded from codes, so a page depends on more than its tokens.
  const sharesLeaves = recent === 0 && !layout.exact;
  const published = sharesLeaves ? index : undefined;
  const create = (salt: string, start?: SequenceStart) =>
    createSequence({ ...options, pool, index: published, salt, start });

  /** The longest path that holds the beginning of the prompt: sealed leaves, and an unfinished one. */
  const findPath = (prompt: readonly number[], salt: string, known?: KnownPath): FoundPath => {
    const path = index.find(salt, prompt, prompt.length - 1, known);
    const usable = countUsable(path);
    // Fewer pages than the sinks have are of no use.
    const leaves = usable > sinkPage(shape) ? path.slice(0, usable) : [];
    const from = leaves.length * pageTokens;
    let best: FoundPath = { leaves, length: from };
    for (const unfinished of index.unfinishedAfter(salt, leaves.at(-1))) {
      const length = Math.min(from + countShared(unfinished.tokens, prompt, from), prompt.length - 1);
      if (length > best.length) best = { leaves, unfinished, length };
    }
    return best;
  };

  const openPath = (
    { leaves: path, unfinished, length }: FoundPath,
    prompt: readonly number[],
    salt: string,
  ): Sequence => {
    if (length === 0) return create(salt);
    const leaves = path.map(({ leaf }) => leaf!);
    const sinks = path[sinkPage(shape)]?.sinks ?? unfinished!.sinks!;
    const start = { ids: prompt.slice(0, length), leaves, sinks };
    if (!unfinished) return create(salt, start);
    const tail = unfinished.blocks.map(one => one?.block);
    return index.using(unfinished, () => create(salt, { ...start, tail }));
  };

  /** The idle sequence of the owner, cropped to what the prompt shares with it, if that is more than `found` tokens. */
  const continueOwn = (prompt: readonly number[], salt: string, owner: Owner, found: number): Sequence | undefined => {
    const own = idle.get(owner);
    if (own?.salt !== salt) return undefined;
    const length = own.croppedLength(Math.min(own.readableLength, sharedLength(own.ids, prompt)));
    // What others find of it is a copy: they may need what would be cropped.
    if (length < found || length === 0 || (length === found && length < own.length)) return undefined;
    idle.delete(owner);
    own.crop(length);
    return own;
  };

  /** Reuses as much as possible. */
  const openLongest = (prompt: readonly number[], salt: string, owner?: Owner): Sequence => {
    const found = findPath(prompt, salt);
    return (owner && continueOwn(prompt, salt, owner, found.length)) ?? openPath(found, prompt, salt);
  };

  const keep = (sequence: Sequence, owner?: Owner) => {
    if (owner) forget(owner);
    if (owner && sequence.length > 0) return void idle.set(owner, sequence);
    const { unfinished } = sequence;
    if (unfinished) index.keepUnfinished(unfinished);
    sequence.dispose();
  };

  return {
    sequenceBytes,
    sharesLeaves,
    fits(prompt, salt, running, path) {
      // Published leaves, and sinks, that idle sequences hold alone are not counted: a lower bound. The prompt's own leaves must
      // stay.
      const found = findPath(prompt, salt, path);
      let evictable = index.idleBytes;
      for (const { leaf } of found.leaves)
        for (const block of [leaf, leaf!.windowPage]) if (block?.holders === 1) evictable -= block.block.bytes;
      for (const sequence of idle.values()) evictable += sequence.privateBytes + (published ? 0 : sequence.leafBytes);
      const [after, before] = [Math.ceil(prompt.length / pageTokens), Math.floor(found.length / pageTokens)];
      const pages = sealedBytes(layout, after, pageTokens) - sealedBytes(layout, before, pageTokens);
      const tail = Math.min(tailTokens(sealing), prompt.length + 1);
      const needed = sequenceBytes + pages + Math.ceil(tail / tailBlockTokens(pageTokens)) * tailBlockBytes;
      const growth = running * Math.max(pageBytes(layout), tailBlockBytes);
      return pool.used - evictable + needed + growth <= pool.capacity;
    },
    get stats() {
      const { size, idle: cachedLeaves, unfinished: cachedTails, idleBytes: cachedBytes } = index;
      const spills = { spilledPages: twoTier?.spilledPages ?? 0, decodedPages: twoTier?.decodedPages ?? 0 };
      const sharedLeaves = size - cachedLeaves;
      const sharedBytes = sharedLeaves * layout.bytes + index.sharedWindowBytes;
      const cached = { sharedLeaves, sharedBytes, cachedLeaves, cachedTails, cachedBytes };
      return { capacity: pool.capacity, used: pool.used, ...cached, idleSequences: idle.size, ...counts, ...spills };
    },
    known: (prompt, salt = '', path) => findPath(prompt, salt, path).length,
    nearest(prompt, salt = '') {
      const path = index.find(salt, prompt, prompt.length);
      const from = path.length * pageTokens;
      const last = path.at(-1);
      const texts = [...index.following(salt, last), ...index.unfinishedAfter(salt, last)];
      let best: NearestText = { shared: from, next: [] };
      for (const { tokens } of texts) {
        const count = countShared(tokens, prompt, from);
        // The newest one, unless another is the beginning of the prompt.
        if (from + count < best.shared || (from + count === best.shared && count > 0 && best.next.length === 0))
          continue;
        best = { shared: from + count, next: tokens.slice(count, count + MAX_NEXT_TOKENS) };
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
      counts.pageQueries += Math.ceil(prompt.length / pageTokens);
      counts.pageHits += Math.floor(sequence.length / pageTokens);
      return sequence;
    },
    keep,
    idleOf: owner => idle.get(owner),
    forget,
    setAside(sequence, owner) {
      if (twoTier) keep(sequence, owner);
      else sequence.dispose();
    },
    take,
    restore(pause, salt = '') {
      checkPause(pause);
      return startRestoring({
        ...{ device, pool, shape: f16Shape, leaf: layout, sealing },
        create: (start, shares) =>
          createSequence({ ...options, pool, index: shares ? published : undefined, salt, start }),
        keep,
      });
    },
    prefetch(prompt, salt, onChange, owner) {
      if (!twoTier) return tiers?.fetch(prompt, salt, onChange);
      const found = owner && take(owner);
      if (!found) return undefined;
      // Now the most recently used one: others make room for it.
      idle.set(owner, found);
      return twoTier.decode(found, sharedLength(found.ids, prompt), onChange);
    },
    spill(owner) {
      const sequence = idle.get(owner);
      while (sequence && twoTier?.spillPage(sequence));
    },
    settle: async () => tiers?.settle(),
    makeRoom: pool.makeRoom,
    limitToUsed: pool.limitToUsed,
    dispose() {
      while (forgetOldest() || index.dropUnfinished() || index.evict());
    },
  };
}

function connectTiers(
  options: Omit<KvCacheOptions, 'tiers' | 'exclusive' | 'now'> &
    Required<Pick<KvCacheOptions, 'exclusive' | 'now'>> &
    CacheTiers & { pool: Pool; index: PrefixIndex; countUsable(path: readonly PrefixNode[]): number },
) {
  const keys = createNodeKeys(options.rootKey);
  const writer = createLeafWriter({ ...options, keys, sinks: options.shape.sinks });
  return {
    onInsert(node: PrefixNode) {
      keys.add(node);
      writer.add(node);
    },
    settle: writer.settle,
    fetch: createLeafFetcher({ ...options, keys, onFetched: writer.remove }),
  };
}

/** Number of tokens that a prompt shares with a sequence, at most all but the prompt's last. */
export const sharedLength = (ids: readonly number[], prompt: readonly number[]): number =>
  Math.max(0, Math.min(countShared(ids, prompt), prompt.length - 1));
