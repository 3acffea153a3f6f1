/**
 * One sequence's cache: references to sealed leaves, and a private f16 tail. The visibility rule (kernel/visibility.ts)
 * decides which of them a query reads. Leaves are published in the prefix index as they are sealed, so that other sequences
 * with the same beginning can hold them too. The tail is a ring of small blocks; only those with tokens are allocated.
 */

import type { Block, KvShape, KvView, Tensor } from '../kernel/device.ts';
import { type SealingRule, sealedPagesAt, sealPosition, tailCapacity } from '../kernel/visibility.ts';
import { assert, CapacityError, ContextError } from '../util/errors.ts';
import { f16Block, pageBytes } from './leaf.ts';
import { createPageErrors, pageErrorBytes } from './page-errors.ts';
import { createPool } from './pool.ts';
import { publishLeaves, unfinishedLeaf } from './publish.ts';
import { createSealedPages } from './sealed-pages.ts';
import type { HeldContent, Sequence, SequenceOptions, SequenceRun } from './sequence.ts';
import { createTail, type TokenRange, tailTokens } from './tail.ts';

/** The id of a token that was added without one. */
const UNKNOWN = -1;

export function createSequence(options: SequenceOptions): Sequence {
  const { device, pool = createPool(device), leaf: layout, recent, context, index, salt = '', start } = options;
  const { overflow = 'error' } = options;
  const { pageTokens } = options.shape;
  const sealing = { pageTokens, recent };
  const shape: KvShape = { ...options.shape, layers: layout.layers, tailTokens: tailTokens(sealing) };
  if (overflow === 'slide') checkSlides(context, sealing);
  let ids = [...(start?.ids ?? [])];
  let disposed = false;
  /** Whether the last plan, or a tail that the caller writes, is not committed yet: nobody may find it. */
  let isPlanned = start !== undefined && !start.tail && ids.length > start.leaves.length * pageTokens;

  // First of all: allocating may evict what nobody holds.
  const sealed = createSealedPages(pool, layout, pageTokens, start);
  const sinkBlock = f16Block(shape, shape.sinks);
  let sinks = start ? pool.retain(start.sinks) : pool.allocate(...sinkBlock);
  const releasePages = () => {
    sealed.crop(0);
    pool.release(sinks);
  };
  const errors = orElse(() => createPageErrors(pool, layout), releasePages);
  const tail = createTail(pool, shape, sealing);
  const createView = (shape: KvShape, leavesNow: () => readonly Block[], errors?: Tensor): KvView => ({
    shape,
    errors,
    get tail() {
      return tail.blocks;
    },
    get leaves() {
      return leavesNow();
    },
    get windowPages() {
      return sealed.windowBlocks;
    },
    get sinkBlock() {
      return sinks.block;
    },
    get firstLeaf() {
      return sealed.first;
    },
  });
  const view = createView(shape, () => sealed.blocks, errors?.tensor);
  const exactView = layout.exact && createView({ ...shape, layers: layout.exact.layers }, () => sealed.exactBlocks);

  const published = () => ({ shape, salt, ids, sealed, sinks, tail });
  // One whose pass has failed is discarded soon: what its tail holds is unknown.
  const unfinished = () => (!index || isPlanned || disposed ? undefined : unfinishedLeaf(published()));
  const leaveIndex = index?.join((ofSalt, node) =>
    ofSalt === salt && sealed.leaves.at(-1)?.node === node ? unfinished() : undefined,
  );

  /** The tokens after the last leaf, up to `end`. */
  const unsealed = (end: number): TokenRange => ({ from: sealed.sealedEnd * pageTokens, to: end });
  /** Frees the blocks of tokens that are sealed, or were not added. */
  const trimTail = () => tail.trim(unsealed(ids.length));
  const heldTokens = () => ids.length - sealed.first * pageTokens;

  /** Drops what was allocated by a plan that failed, or whose pass did: the next plan seals these pages again. */
  const discardPlanned = () => {
    isPlanned = false;
    sealed.discardPlanned();
    errors?.crop(sealed.end);
    trimTail();
  };

  /** Makes room in the context. */
  const slide = (count: number) => {
    if (heldTokens() + count <= context) return;
    if (overflow === 'error')
      throw new ContextError(
        option =>
          `${ids.length} tokens and ${count} more exceed the context of ${context}. Start a new conversation, shorten the ` +
          `prompt, open the model with a larger ${option('context')}, or use ${option('overflow', 'slide')} to drop the ` +
          'oldest tokens.',
      );
    const dropped = Math.ceil((heldTokens() + count - context) / pageTokens);
    if (dropped > sealed.leaves.length)
      throw new ContextError(`A chunk of ${count} tokens exceeds the context of ${context}. Use smaller chunks.`);
    sealed.slide(dropped);
  };

  /** While the sinks are incomplete, new tokens are written to them: other holders must not see that. */
  const writesSharedSinks = () => ids.length < shape.sinks && sinks.holders > 1;
  const takeOwnSinks = () => {
    const own = pool.allocateCopy(sinks.block, ...sinkBlock);
    pool.release(sinks);
    sinks = own;
  };

  const allocate = (count: number): SequenceRun[] => {
    if (writesSharedSinks()) takeOwnSinks();
    tail.grow(unsealed(ids.length + count));
    const runs = divideRows(ids.length, count, sealed.end, sealing);
    for (const { sealsPage, sealedPages } of runs) {
      if (!sealsPage) continue;
      sealed.plan();
      errors?.noteSealed(sealedPages - 1);
    }
    return runs;
  };

  const croppedLength = (length: number) => {
    if (length >= ids.length) return ids.length;
    let cropped = length;
    if (sealedPagesAt(cropped, sealing) < sealed.sealedEnd)
      cropped = recent === 0 ? pageTokens * sealed.croppedEnd(Math.floor(cropped / pageTokens)) : 0;
    // A sequence of this length would still have pages that this one has dropped.
    const dropped = Math.max(0, Math.ceil((cropped - context) / pageTokens));
    return dropped < sealed.first ? 0 : cropped;
  };

  const maxChunk = () => {
    if (overflow === 'error' || ids.length < context) return context - ids.length;
    return pageTokens - ((ids.length - context) % pageTokens);
  };

  const hold = (): HeldContent => {
    assert(!disposed, 'a disposed sequence was used');
    const blocks = [...[...sealed.leaves, ...sealed.windowPages, ...sealed.exactPages], ...[sinks, ...tail.shared]].map(
      pool.retain,
    );
    const release = () => {
      for (const block of blocks.splice(0).reverse()) pool.release(block);
    };
    return { view: { ...view }, exactView: exactView && { ...exactView }, length: ids.length, release };
  };

  const dispose = () => {
    if (disposed) return;
    disposed = true;
    leaveIndex?.();
    ids = [];
    tail.trim({ from: 0, to: 0 });
    releasePages();
    if (errors) pool.freeTensor(errors.tensor);
  };

  if (start) orElse(() => tail.copy(unsealed(ids.length), start.tail ?? []), dispose);

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
    get unfinished() {
      return unfinished();
    },
    get isDisposed() {
      return disposed;
    },
    get isPlanned() {
      return isPlanned;
    },
    get readableLength() {
      return sealed.firstSpilled === undefined ? ids.length : sealed.firstSpilled * pageTokens;
    },
    get droppedTokens() {
      return sealed.first * pageTokens;
    },
    get bytes() {
      return disposed ? 0 : sealed.bytes + sinks.block.bytes + tail.bytes + pageErrorBytes(layout);
    },
    get privateBytes() {
      return disposed ? 0 : tail.bytes + pageErrorBytes(layout);
    },
    get leafBytes() {
      return sealed.bytes;
    },
    get maxChunk() {
      return maxChunk();
    },
    get maxDrafts() {
      const lastOfPage = sealPosition(sealedPagesAt(ids.length, sealing) + 1, sealing) - 1;
      return Math.max(0, Math.min(maxChunk(), lastOfPage - ids.length) - 1);
    },
    bytesFor(count) {
      const pages = Math.max(0, sealedPagesAt(ids.length + count - 1, sealing) - sealed.sealedEnd);
      const ownSinks = writesSharedSinks() ? sinks.block.bytes : 0;
      return pages * pageBytes(layout) + tail.bytesFor(unsealed(ids.length + count)) + ownSinks;
    },
    plan(count) {
      assert(!disposed, 'a disposed sequence was used');
      discardPlanned();
      assert(sealed.firstSpilled === undefined, 'a pass would read pages that were spilled');
      slide(count);
      isPlanned = true;
      return orElse(() => allocate(count), discardPlanned);
    },
    commit(count, tokens) {
      sealed.commit();
      isPlanned = false;
      for (let i = 0; i < count; i++) ids.push(tokens?.[i] ?? UNKNOWN);
      trimTail();
      if (tokens && index) publishLeaves(index, published());
      sealed.leaveWindow(index?.notePassed);
    },
    spillPage: sealed.spill,
    unspillPage: sealed.unspill,
    setToken(position, id) {
      ids[position] = id;
    },
    croppedLength,
    crop(maxLength) {
      discardPlanned();
      const length = croppedLength(maxLength);
      if (length === ids.length) return length;
      sealed.crop(length === 0 ? 0 : sealedPagesAt(length, sealing));
      errors?.crop(sealed.end);
      ids.length = length;
      trimTail();
      return length;
    },
    fork() {
      assert(!disposed, 'a disposed sequence was used');
      assert(!isPlanned, 'a sequence was copied while a pass was running on it');
      // If this is idle, making room for the copy may dispose it.
      const { release } = hold();
      try {
        const { first: firstLeaf, leaves, exactPages } = sealed;
        const start = { ids, firstLeaf, leaves, exactPages, sinks, tail: tail.blocks };
        return createSequence({ ...options, pool, start });
      } finally {
        release();
      }
    },
    hold,
    readErrors: async () => (await errors?.read(sealed.leaves, sealed.first)) ?? new Map(),
    dispose,
    discard() {
      const firstOwn = sealed.first === 0 ? sealed.firstOwn?.node : undefined;
      if (firstOwn) index?.remove(firstOwn);
      dispose();
    },
  };
}

/** Throws if a sequence of this context could not drop whole pages. */
export function checkSlides(context: number, sealing: SealingRule): void {
  if (context > tailCapacity(sealing)) return;
  throw new CapacityError(
    option =>
      `${option('overflow', 'slide')} needs a context of more than one page plus the recent window ` +
      `(${tailCapacity(sealing)} tokens); got ${context}. Use a larger ${option('context')}, or ${option('overflow', 'error')}.`,
  );
}

/** Divides rows into runs that read the same sealed pages. `sealed`: the number of pages before. */
function divideRows(start: number, count: number, sealed: number, sealing: SealingRule): SequenceRun[] {
  const runs: SequenceRun[] = [];
  let end = sealed;
  for (let row = 0; row < count; ) {
    const position = start + row;
    const sealedPages = sealedPagesAt(position, sealing);
    const rows = Math.min(count - row, sealPosition(sealedPages + 1, sealing) - position);
    const sealsPage = sealedPages > end;
    if (sealsPage) end++;
    assert(sealedPages <= end, `page ${sealedPages - 1} is read from codes, but only ${end} pages are sealed`);
    runs.push({ row, count: rows, position, sealedPages, sealsPage });
    row += rows;
  }
  return runs;
}

/** Undoes what came before if `work` throws. */
function orElse<T>(work: () => T, undo: () => void): T {
  try {
    return work();
  } catch (error) {
    undo();
    throw error;
  }
}
