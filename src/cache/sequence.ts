/**
 * One sequence's cache: references to sealed leaves, and a private f16 tail. The visibility rule (kernel/visibility.ts)
 * decides which of them a query reads. Leaves are published in the prefix index as they are sealed, so that other sequences
 * with the same beginning can hold them too. The tail is a ring of small blocks; only those with tokens are allocated.
 */
import { assert, CapacityError } from '../errors.ts';
import type { Block, Device, KvShape, KvView, Tensor } from '../kernel/device.ts';
import { sealedPagesAt, sealPosition, tailCapacity } from '../kernel/visibility.ts';
import { f16Block, type LeafLayout, partOffsets } from './leaf.ts';
import { createPageErrors, type PageErrorRow, pageErrorBytes } from './page-errors.ts';
import { createPool, type Pool, type SharedBlock } from './pool.ts';
import type { Leaf, PrefixIndex } from './prefix.ts';
import { createTail, type TokenRange, tailTokens } from './tail.ts';

export interface SequenceOptions {
  device: Device;
  /** Where blocks are allocated. Default: on the device, without limit. */
  pool?: Pool;
  shape: Omit<KvShape, 'layers' | 'tailTokens'>;
  leaf: LeafLayout;
  /** The newest tokens, which stay in f16. */
  recent: number;
  /** Maximum number of tokens. */
  context: number;
  /** When the context is full: throw, or drop the oldest pages (the sinks stay). */
  overflow?: 'error' | 'slide';
  /** Where sealed leaves are published; without it they stay private. */
  index?: PrefixIndex;
  /** Sequences share leaves only with those of the same salt. */
  salt?: string;
  /** The content to start with. Default: empty. */
  start?: SequenceStart;
}

/** What a sequence starts with: the tokens of leaves, or a copy of another sequence. */
export interface SequenceStart {
  ids: readonly number[];
  /** Page index of leaves[0]. */
  firstLeaf?: number;
  leaves: readonly Leaf[];
  sinks: SharedBlock;
  /** Copied. Without it the tail is zeros, for the caller to write. */
  tail?: KvView['tail'];
}

/** A run of rows that all read the same sealed pages. */
export interface SequenceRun {
  /** Index of the first row in the chunk. */
  row: number;
  count: number;
  position: number;
  /** Number of pages that the rows read from codes. */
  sealedPages: number;
  /** The last of these pages is still in the tail and must be sealed before the run. */
  sealsPage: boolean;
}

export interface Sequence {
  readonly view: KvView;
  /** In shadow mode: the same sequence with its f16 pages. */
  readonly exactView?: KvView;
  readonly salt: string;
  /** Whether its leaves are published: others may have them. */
  readonly shares: boolean;
  /** Number of tokens, including dropped ones. */
  readonly length: number;
  /** The token ids, including dropped ones; a negative id is the handle of a token that is not known yet. */
  readonly ids: readonly number[];
  /** Number of tokens dropped by sliding. */
  readonly droppedTokens: number;
  /** Bytes of leaves, sinks, tail and page errors. Other sequences may hold the same leaves and sinks. */
  readonly bytes: number;
  readonly leafBytes: number;
  /** Bytes that a fork does not share: tail and page errors. */
  readonly privateBytes: number;
  /**
   * Maximum number of tokens in the next chunk. While sliding, a chunk ends where the next page is dropped, so that the
   * tokens that a row sees do not depend on how a prompt was divided into chunks.
   */
  readonly maxChunk: number;
  /**
   * Bytes that the next `count` tokens allocate: the leaves that they seal, blocks of the tail, and sinks to write if they
   * are shared.
   */
  bytesFor(count: number): number;
  /**
   * Makes room for `count` more tokens, allocates what they need, and divides them into runs. The next plan replaces one
   * that was not committed.
   */
  plan(count: number): SequenceRun[];
  /**
   * Adds the planned tokens, after the pass, and frees the tail's blocks of those that were sealed. With their ids,
   * publishes the leaves.
   */
  commit(count: number, tokens?: ArrayLike<number>): void;
  /** Replaces a token handle by the token's id. */
  setToken(position: number, id: number): void;
  /**
   * The length that `crop(length)` would leave. Sealed pages have no f16 values to return to the tail, so a crop into them
   * goes back to a page boundary, or, with a recent window (which would have to be in the tail), to 0.
   */
  croppedLength(length: number): number;
  /**
   * Removes tokens until at most `length` are left, and returns the new length. The sequence then continues exactly as if
   * the removed tokens had never been added.
   */
  crop(length: number): number;
  /** A second sequence with the same tokens: it holds the same leaves and a copy of the tail. */
  fork(): Sequence;
  /**
   * The squared errors of the sealed pages, by page (see page-errors.ts), read from the device; empty if no codec tracks
   * them. No pass may be running on the sequence.
   */
  readErrors(): Promise<ReadonlyMap<number, PageErrorRow>>;
  /** Releases all blocks. No pass may be running on the sequence. A second call does nothing. */
  dispose(): void;
}

/** The id of a token that was added without one. */
const UNKNOWN = -1;

/** The page in which the sinks end: a prefix with fewer pages has no complete sink block to share. */
export const sinkPage = ({ sinks, pageTokens }: { sinks: number; pageTokens: number }): number =>
  Math.max(0, Math.ceil(sinks / pageTokens) - 1);

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
      `overflow: 'slide' needs a context of more than one page plus the recent window (${tailCapacity(sealing)} tokens); ` +
        `got ${context}. Use a larger context, or overflow: 'error'.`,
    );
  const createF16Block = (tokens: number): SharedBlock => pool.allocate(...f16Block(shape, tokens));
  const copyOf = (block: Block, tokens: number): SharedBlock => {
    const copy = createF16Block(tokens);
    releaseOnError(pool, [copy], () => device.copyBlock(block, copy.block));
    return copy;
  };
  // First of all: allocating may evict what nobody holds.
  const leaves: Leaf[] = start?.leaves.map(pool.retain) ?? [];
  const held: SharedBlock[] = [...leaves, ...(start ? [pool.retain(start.sinks)] : [])];
  const hold = (create: () => SharedBlock): SharedBlock => {
    held.push(releaseOnError(pool, held, create));
    return held[held.length - 1];
  };
  let sinks = start?.sinks ?? hold(() => createF16Block(shape.sinks));
  const errors = releaseOnError(pool, held, () => createPageErrors(pool, layout));
  let ids = [...(start?.ids ?? [])];
  let firstLeaf = start?.firstLeaf ?? 0;
  let disposed = false;
  const tail = createTail(pool, shape, sealing);
  /** Leaves of the last plan, until it is committed: no pass has sealed them yet. */
  let planned = 0;
  let blocks: readonly Block[] = leaves.map(({ block }) => block);
  const createView = (shape: KvShape, errors?: Tensor): KvView => ({
    shape,
    errors,
    get tail() {
      return tail.blocks;
    },
    get leaves() {
      return blocks;
    },
    get sinkBlock() {
      return sinks.block;
    },
    get firstLeaf() {
      return firstLeaf;
    },
  });
  const view = createView(shape, errors?.tensor);
  const noteChange = () => {
    blocks = leaves.map(({ block }) => block);
  };
  const endLeaf = () => firstLeaf + leaves.length;
  /** The tokens after the last leaf, up to `end`. */
  const unsealed = (end: number): TokenRange => ({ from: (endLeaf() - planned) * pageTokens, to: end });
  /** Frees the blocks of tokens that are sealed, or were not added. */
  const trimTail = () => tail.trim(unsealed(ids.length));
  /** Number of pages that sliding has dropped at this length. */
  const droppedPagesAt = (tokens: number) => Math.max(0, Math.ceil((tokens - context) / pageTokens));
  const heldTokens = () => ids.length - firstLeaf * pageTokens;
  /** Releases leaves, the newest first: the index evicts children before their parents. */
  const releaseLeaves = (start: number, count: number) => {
    for (const leaf of leaves.splice(start, count).reverse()) pool.release(leaf);
  };
  /** Drops what was allocated by a plan that failed, or whose pass did: the next plan seals these pages again. */
  const discardPlanned = () => {
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
      throw new CapacityError(
        `${ids.length} tokens and ${count} more exceed the context of ${context}. Start a new conversation, shorten the ` +
          "prompt, open the model with a larger context, or use overflow: 'slide' to drop the oldest tokens.",
      );
    const dropped = Math.ceil((heldTokens() + count - context) / pageTokens);
    if (dropped > leaves.length)
      throw new CapacityError(`A chunk of ${count} tokens exceeds the context of ${context}. Use smaller chunks.`);
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
        leaves.push(pool.allocate(layout.bytes, partOffsets(layout)));
        planned++;
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

  /** The node under which the next leaf is published: the last leaf's, or the root. Undefined if that leaf is private. */
  const parentNode = (page: number) => (page === 0 ? index?.root(salt) : leaves[page - 1]?.node);

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
      const { leaf } = index.insert(parent, tokens, own, page === sinkPage(shape) ? sinks : undefined);
      if (leaf === own || !leaf) continue;
      // Another sequence has sealed the same page.
      leaves[page] = pool.retain(leaf);
      pool.release(own);
      noteChange();
    }
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
    exactView: layout.exact && createView({ ...shape, layers: layout.exact }),
    salt,
    shares: index !== undefined,
    get length() {
      return ids.length;
    },
    get ids() {
      return ids;
    },
    get droppedTokens() {
      return firstLeaf * pageTokens;
    },
    get bytes() {
      if (disposed) return 0;
      return leaves.length * layout.bytes + sinks.block.bytes + tail.bytes + pageErrorBytes(layout);
    },
    get privateBytes() {
      return disposed ? 0 : tail.bytes + pageErrorBytes(layout);
    },
    get leafBytes() {
      return leaves.length * layout.bytes;
    },
    get maxChunk() {
      if (overflow === 'error' || ids.length < context) return context - ids.length;
      return pageTokens - ((ids.length - context) % pageTokens);
    },
    bytesFor(count) {
      const pages = Math.max(0, sealedPagesAt(ids.length + count - 1, sealing) - endLeaf() + planned);
      const ownSinks = writesSharedSinks() ? sinks.block.bytes : 0;
      return pages * layout.bytes + tail.bytesFor(unsealed(ids.length + count)) + ownSinks;
    },
    plan(count) {
      assert(!disposed, 'a disposed sequence was used');
      discardPlanned();
      makeRoom(count);
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
      for (let i = 0; i < count; i++) ids.push(tokens?.[i] ?? UNKNOWN);
      trimTail();
      if (tokens) publish();
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
      errors?.crop(endLeaf());
      ids.length = length;
      trimTail();
      noteChange();
      return length;
    },
    fork() {
      assert(!disposed, 'a disposed sequence was used');
      discardPlanned();
      // If this is a snapshot, making room for the copy may dispose it.
      return tail.holding(() =>
        createSequence({ ...options, pool, start: { ids, firstLeaf, leaves, sinks, tail: tail.blocks } }),
      );
    },
    readErrors: async () => (await errors?.read(leaves, firstLeaf)) ?? new Map(),
    dispose,
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
