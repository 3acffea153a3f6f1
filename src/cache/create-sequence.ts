/**
 * One sequence's cache: references to sealed leaves, and a private f16 tail. The visibility rule (kernel/visibility.ts)
 * decides which of them a query reads. Leaves are published in the prefix index as they are sealed, so that other sequences
 * with the same beginning can hold them too. The tail is a ring of small blocks; only those with tokens are allocated.
 */

import type { LeafSource } from '../eviction/eviction.ts';
import type { Block, KvShape, KvView, Tensor } from '../kernel/device.ts';
import { sealedPagesAt, sealPosition, tailCapacity } from '../kernel/visibility.ts';
import { assert, CapacityError, ContextError } from '../util/errors.ts';
import type { TailPlace } from './kept-tails.ts';
import { f16Block, leafBlock, pageBytes } from './leaf.ts';
import { createPageErrors, pageErrorBytes } from './page-errors.ts';
import { createPool, type Pool, type SharedBlock } from './pool.ts';
import type { Leaf } from './prefix.ts';
import { type HeldContent, type Sequence, type SequenceOptions, type SequenceRun, sinkPage } from './sequence.ts';
import { createTail, type TokenRange, tailTokens } from './tail.ts';

/** The id of a token that was added without one. */
const UNKNOWN = -1;

export function createSequence(options: SequenceOptions): Sequence {
  const {
    device,
    pool = createPool(device),
    leaf: layout,
    recent,
    context,
    overflow = 'error',
    index,
    salt = '',
    start,
  } = options;
  const { pageTokens } = options.shape;
  const sealing = { pageTokens, recent };
  const shape: KvShape = { ...options.shape, layers: layout.layers, tailTokens: tailTokens(sealing) };
  if (overflow === 'slide' && context <= tailCapacity(sealing))
    throw new CapacityError(
      option =>
        `${option('overflow', 'slide')} needs a context of more than one page plus the recent window ` +
        `(${tailCapacity(sealing)} tokens); got ${context}. Use a larger ${option('context')}, or ${option('overflow', 'error')}.`,
    );
  const createF16Block = (tokens: number): SharedBlock => pool.allocate(...f16Block(shape, tokens));
  const copyOf = (block: Block, tokens: number): SharedBlock => {
    const copy = createF16Block(tokens);
    releaseOnError(pool, [copy], () => device.copyBlock(block, copy.block));
    return copy;
  };
  // First of all: allocating may evict what nobody holds.
  const leaves: Leaf[] = start?.leaves.map(pool.retain) ?? [];
  /** The f16 pages of the first leaves: of all, unless some were spilled. */
  const exactPages: SharedBlock[] = start?.exactPages?.map(pool.retain) ?? [];
  const held: SharedBlock[] = [...leaves, ...exactPages, ...(start ? [pool.retain(start.sinks)] : [])];
  const holdNew = (create: () => SharedBlock): SharedBlock => {
    held.push(releaseOnError(pool, held, create));
    return held[held.length - 1];
  };
  let sinks = start?.sinks ?? holdNew(() => createF16Block(shape.sinks));
  const errors = releaseOnError(pool, held, () => createPageErrors(pool, layout));
  let ids = [...(start?.ids ?? [])];
  let firstLeaf = start?.firstLeaf ?? 0;
  let disposed = false;
  const tail = createTail(pool, shape, sealing);
  /** Leaves that it was opened with; those after them it has sealed itself. */
  let sharedLeaves = start?.leaves.length ?? 0;
  /** Leaves of the last plan, until it is committed: no pass has sealed them yet. */
  let planned = 0;
  /** Whether the last plan is not committed yet. */
  let isPlanned = false;
  let [blocks, exactBlocks]: (readonly Block[])[] = [[], []];
  const noteChange = () => {
    blocks = leaves.map(({ block }) => block);
    exactBlocks = exactPages.map(({ block }) => block);
  };
  noteChange();
  const createView = (shape: KvShape, leavesNow: () => readonly Block[], errors?: Tensor): KvView => ({
    shape,
    errors,
    get tail() {
      return tail.blocks;
    },
    get leaves() {
      return leavesNow();
    },
    get sinkBlock() {
      return sinks.block;
    },
    get firstLeaf() {
      return firstLeaf;
    },
  });
  const view = createView(shape, () => blocks, errors?.tensor);
  const exactView = layout.exact && createView({ ...shape, layers: layout.exact.layers }, () => exactBlocks);
  const endLeaf = () => firstLeaf + leaves.length;
  /** The tokens after the last leaf, up to `end`. */
  const unsealed = (end: number): TokenRange => ({ from: (endLeaf() - planned) * pageTokens, to: end });
  /** Frees the blocks of tokens that are sealed, or were not added. */
  const trimTail = () => tail.trim(unsealed(ids.length));
  /** Number of pages that sliding has dropped at this length. */
  const droppedPagesAt = (tokens: number) => Math.max(0, Math.ceil((tokens - context) / pageTokens));
  /** Whether all pages can be read: none was spilled. */
  const isHot = () => !layout.exact || exactPages.length === leaves.length;
  const leafBytes = () => leaves.length * layout.bytes + exactPages.length * (layout.exact?.bytes ?? 0);
  const heldTokens = () => ids.length - firstLeaf * pageTokens;
  /** Releases leaves, the newest first: the index evicts children before their parents. */
  const releaseLeaves = (start: number, count: number) => {
    for (const page of exactPages.splice(start, count).reverse()) pool.release(page);
    for (const leaf of leaves.splice(start, count).reverse()) pool.release(leaf);
  };
  /** Drops what was allocated by a plan that failed, or whose pass did: the next plan seals these pages again. */
  const discardPlanned = () => {
    isPlanned = false;
    if (planned > 0) {
      releaseLeaves(leaves.length - planned, planned);
      planned = 0;
      errors?.crop(endLeaf());
      noteChange();
    }
    trimTail();
  };
  /** While the sinks are incomplete, new tokens are written to them: other holders must not see that. */
  const writesSharedSinks = () => ids.length < shape.sinks && sinks.holders > 1;
  const takeOwnSinks = () => {
    const own = copyOf(sinks.block, shape.sinks);
    pool.release(sinks);
    sinks = own;
    noteChange();
  };

  const makeRoom = (count: number) => {
    if (heldTokens() + count <= context) return;
    if (overflow === 'error')
      throw new ContextError(
        option =>
          `${ids.length} tokens and ${count} more exceed the context of ${context}. Start a new conversation, shorten the ` +
          `prompt, open the model with a larger ${option('context')}, or use ${option('overflow', 'slide')} to drop the ` +
          'oldest tokens.',
      );
    const dropped = Math.ceil((heldTokens() + count - context) / pageTokens);
    if (dropped > leaves.length)
      throw new ContextError(`A chunk of ${count} tokens exceeds the context of ${context}. Use smaller chunks.`);
    releaseLeaves(0, dropped);
    firstLeaf += dropped;
    noteChange();
  };

  const planRuns = (count: number): SequenceRun[] => {
    const runs: SequenceRun[] = [];
    for (let row = 0; row < count; ) {
      const position = ids.length + row;
      const sealed = sealedPagesAt(position, sealing);
      const rows = Math.min(count - row, sealPosition(sealed + 1, sealing) - position);
      const sealsPage = sealed > endLeaf();
      if (sealsPage) {
        leaves.push(pool.allocate(...leafBlock(layout)));
        planned++;
        if (layout.exact) exactPages.push(pool.allocate(...leafBlock(layout.exact)));
        errors?.noteSealed(sealed - 1);
        noteChange();
      }
      assert(sealed <= endLeaf(), `page ${sealed - 1} is read from codes, but only ${endLeaf()} pages are sealed`);
      runs.push({ row, count: rows, position, sealedPages: sealed, sealsPage });
      row += rows;
    }
    return runs;
  };

  const croppedLength = (length: number) => {
    if (length >= ids.length) return ids.length;
    let cropped = length;
    if (sealedPagesAt(cropped, sealing) < endLeaf() - planned)
      cropped = recent === 0 ? cropped - (cropped % pageTokens) : 0;
    // A sequence of this length would still have pages that this one has dropped.
    return droppedPagesAt(cropped) < firstLeaf ? 0 : cropped;
  };

  const tailPlace = (): TailPlace | undefined => {
    if (!index || firstLeaf > 0) return undefined;
    const pages = leaves.length - planned;
    return pages === 0 ? salt : leaves[pages - 1].node;
  };

  /** The node under which the next leaf is published: the last leaf's, or the root. Undefined if that leaf is private. */
  const parentNode = (page: number) => (page === 0 ? index?.root(salt) : leaves[page - 1]?.node);

  let sourceOf: ((position: number) => LeafSource) | undefined;
  /** Publishes the leaves that have no node yet. A sequence that has slid publishes none: its later pages saw less. */
  const publish = () => {
    if (!index || firstLeaf > 0) return;
    for (let page = leaves.findIndex(({ node }) => !node); page >= 0 && page < leaves.length; page++) {
      const parent = parentNode(page);
      if (!parent) return;
      const tokens = ids.slice(page * pageTokens, (page + 1) * pageTokens);
      assert(
        tokens.every(id => id >= 0),
        `page ${page} was sealed before its tokens were known`,
      );
      const own = leaves[page];
      const ownSinks = page === sinkPage(shape) ? sinks : undefined;
      const source = sourceOf?.((page + 1) * pageTokens - 1);
      const { leaf } = index.insert(parent, tokens, own, ownSinks, source);
      if (leaf === own || !leaf) continue;
      // Another sequence has sealed the same page.
      leaves[page] = pool.retain(leaf);
      pool.release(own);
      noteChange();
    }
  };

  const hold = (): HeldContent => {
    assert(!disposed, 'a disposed sequence was used');
    const blocks = [...leaves, ...exactPages, sinks, ...tail.shared].map(pool.retain);
    const release = () => {
      for (const block of blocks.splice(0).reverse()) pool.release(block);
    };
    return { view: { ...view }, exactView: exactView && { ...exactView }, length: ids.length, release };
  };

  const dispose = () => {
    if (disposed) return;
    disposed = true;
    ids = [];
    releaseLeaves(0, leaves.length);
    tail.trim({ from: 0, to: 0 });
    pool.release(sinks);
    if (errors) pool.freeTensor(errors.tensor);
  };

  if (start) {
    try {
      tail.grow(unsealed(ids.length));
      tail.blocks.forEach((block, place) => {
        const from = start.tail?.[place];
        if (block && from) device.copyBlock(from, block);
      });
    } catch (error) {
      dispose();
      throw error;
    }
  }

  return {
    view,
    exactView,
    salt,
    shares: index !== undefined,
    get length() {
      return ids.length;
    },
    get ids() {
      return ids;
    },
    get tailPlace() {
      return tailPlace();
    },
    get isDisposed() {
      return disposed;
    },
    get isPlanned() {
      return isPlanned;
    },
    hasLeaf: (page, leaf) => leaves[page - firstLeaf] === leaf,
    get hotLength() {
      return isHot() ? ids.length : (firstLeaf + exactPages.length) * pageTokens;
    },
    get droppedTokens() {
      return firstLeaf * pageTokens;
    },
    get bytes() {
      if (disposed) return 0;
      return leafBytes() + sinks.block.bytes + tail.bytes + pageErrorBytes(layout);
    },
    get privateBytes() {
      return disposed ? 0 : tail.bytes + pageErrorBytes(layout);
    },
    get leafBytes() {
      return leafBytes();
    },
    get maxChunk() {
      if (overflow === 'error' || ids.length < context) return context - ids.length;
      return pageTokens - ((ids.length - context) % pageTokens);
    },
    bytesFor(count) {
      const pages = Math.max(0, sealedPagesAt(ids.length + count - 1, sealing) - endLeaf() + planned);
      const ownSinks = writesSharedSinks() ? sinks.block.bytes : 0;
      return pages * pageBytes(layout) + tail.bytesFor(unsealed(ids.length + count)) + ownSinks;
    },
    plan(count) {
      assert(!disposed, 'a disposed sequence was used');
      discardPlanned();
      assert(isHot(), 'a pass would read pages that were spilled');
      makeRoom(count);
      isPlanned = true;
      try {
        if (writesSharedSinks()) takeOwnSinks();
        tail.grow(unsealed(ids.length + count));
        return planRuns(count);
      } catch (error) {
        discardPlanned();
        throw error;
      }
    },
    commit(count, tokens) {
      planned = 0;
      isPlanned = false;
      for (let i = 0; i < count; i++) ids.push(tokens?.[i] ?? UNKNOWN);
      trimTail();
      if (tokens) publish();
    },
    spillPage() {
      const page = exactPages.pop();
      if (page) pool.release(page);
      noteChange();
      return page !== undefined;
    },
    addExactPage(page) {
      assert(!isHot(), 'no page was spilled');
      exactPages.push(page);
      noteChange();
    },
    setSources(of) {
      sourceOf = of;
    },
    setToken(position, id) {
      ids[position] = id;
    },
    croppedLength,
    crop(maxLength) {
      discardPlanned();
      const length = croppedLength(maxLength);
      if (length === ids.length) return length;
      if (length === 0) firstLeaf = 0;
      releaseLeaves(Math.max(0, sealedPagesAt(length, sealing) - firstLeaf), leaves.length);
      sharedLeaves = Math.min(sharedLeaves, leaves.length);
      errors?.crop(endLeaf());
      ids.length = length;
      trimTail();
      noteChange();
      return length;
    },
    fork() {
      assert(!disposed, 'a disposed sequence was used');
      assert(!isPlanned, 'a sequence was copied while a pass was running on it');
      // If this is a snapshot, making room for the copy may dispose it.
      const { release } = hold();
      try {
        const start = { ids, firstLeaf, leaves, exactPages, sinks, tail: tail.blocks };
        return createSequence({ ...options, pool, start });
      } finally {
        release();
      }
    },
    hold,
    readErrors: async () => (await errors?.read(leaves, firstLeaf)) ?? new Map(),
    dispose,
    detachTail() {
      discardPlanned();
      const [from, place] = [unsealed(0).from, tailPlace()];
      // A token that is not known is one that nobody has read.
      const unknown = ids.findIndex((id, i) => i >= from && id < 0);
      const to = unknown < 0 ? ids.length : unknown;
      if (place === undefined || disposed || to === from) return void dispose();
      tail.trim({ from, to });
      const ownSinks = leaves.length <= sinkPage(shape) ? pool.retain(sinks) : undefined;
      const detached = { place, ids: ids.slice(from, to), blocks: tail.detach(), sinks: ownSinks };
      dispose();
      return detached;
    },
    discard() {
      const firstOwn = firstLeaf === 0 ? leaves[sharedLeaves]?.node : undefined;
      if (firstOwn) index?.remove(firstOwn);
      dispose();
    },
  };
}

/** Releases the blocks if `work` throws. */
function releaseOnError<T>(pool: Pool, blocks: readonly SharedBlock[], work: () => T): T {
  try {
    return work();
  } catch (error) {
    for (const block of [...blocks].reverse()) pool.release(block);
    throw error;
  }
}
