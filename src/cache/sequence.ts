/**
 * One sequence's cache: sealed leaves and a private f16 tail. The visibility rule (kernel/visibility.ts) decides which of
 * them a query reads.
 */
import { assert, CapacityError } from '../errors.ts';
import type { Block, Device, KvShape, KvView } from '../kernel/device.ts';
import { sealedPagesAt, sealPosition, tailCapacity } from '../kernel/visibility.ts';
import { f16BlockBytes, type LeafLayout } from './leaf.ts';
import { createPageErrors, type PageErrorRow, pageErrorBytes } from './page-errors.ts';

export interface SequenceOptions {
  device: Device;
  shape: Omit<KvShape, 'layers' | 'tailTokens'>;
  leaf: LeafLayout;
  /** The newest tokens, which stay in f16. */
  recent: number;
  /** Maximum number of tokens. */
  context: number;
  /** When the context is full: throw, or drop the oldest pages (the sinks stay). */
  overflow?: 'error' | 'slide';
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
  /** Number of tokens, including dropped ones. */
  readonly length: number;
  /** Number of tokens dropped by sliding. */
  readonly droppedTokens: number;
  /** Bytes of leaves, sinks, tail and page errors. */
  readonly bytes: number;
  readonly leafBytes: number;
  /**
   * Maximum number of tokens in the next chunk. While sliding, a chunk ends where the next page is dropped, so that the
   * tokens that a row sees do not depend on how a prompt was divided into chunks.
   */
  readonly maxChunk: number;
  /** Makes room for `count` more tokens, allocates the leaves that they seal, and divides them into runs. */
  plan(count: number): SequenceRun[];
  /** Adds the planned tokens to the length, after the pass. */
  commit(count: number): void;
  /**
   * Removes tokens until at most `length` are left, and returns the new length. The sequence then continues exactly as if
   * the removed tokens had never been added. Sealed pages have no f16 values to return to the tail, so a crop into them
   * goes back to a page boundary, or, with a recent window (which would have to be in the tail), to 0.
   */
  crop(length: number): number;
  /**
   * The squared errors of the sealed pages, by page (see page-errors.ts), read from the device; empty if no codec tracks
   * them. No pass may be running on the sequence.
   */
  readErrors(): Promise<ReadonlyMap<number, PageErrorRow>>;
  /** Frees all blocks. No pass may be running on the sequence. A second call does nothing. */
  dispose(): void;
}

export function createSequence(options: SequenceOptions): Sequence {
  const { device, leaf, recent, context, overflow = 'error' } = options;
  const { pageTokens } = options.shape;
  const sealing = { pageTokens, recent };
  const shape: KvShape = { ...options.shape, layers: leaf.layers, tailTokens: tailCapacity(sealing) };
  if (overflow === 'slide' && context <= shape.tailTokens)
    throw new CapacityError(
      `overflow: 'slide' needs a context of more than one page plus the recent window (${shape.tailTokens} tokens); ` +
        `got ${context}. Use a larger context, or overflow: 'error'.`,
    );
  const leaves: Block[] = [];
  const layerOffsets = leaf.layers.map(({ keyOffset }) => keyOffset);
  const createF16Block = (tokens: number) => {
    const layerBytes = f16BlockBytes(shape, tokens) / layerOffsets.length;
    return device.createBlock(
      layerBytes * layerOffsets.length,
      layerOffsets.map((_, i) => i * layerBytes),
    );
  };
  const tail = createF16Block(shape.tailTokens);
  const sinkBlock = freeOnError(device, [tail], () => createF16Block(shape.sinks));
  const errors = freeOnError(device, [tail, sinkBlock], () => createPageErrors(device, leaf));
  let firstLeaf = 0;
  let length = 0;
  let version = 0;
  let disposed = false;
  const view: KvView = {
    shape,
    leaves,
    tail,
    sinkBlock,
    errors: errors?.tensor,
    get firstLeaf() {
      return firstLeaf;
    },
    get version() {
      return version;
    },
  };
  const endLeaf = () => firstLeaf + leaves.length;
  /** Number of pages that sliding has dropped at this length. */
  const droppedPagesAt = (tokens: number) => Math.max(0, Math.ceil((tokens - context) / pageTokens));
  const heldTokens = () => length - firstLeaf * pageTokens;

  const makeRoom = (count: number) => {
    if (heldTokens() + count <= context) return;
    if (overflow === 'error')
      throw new CapacityError(
        `${length} tokens and ${count} more exceed the context of ${context}. Start a new conversation, shorten the ` +
          "prompt, open the model with a larger context, or use overflow: 'slide' to drop the oldest tokens.",
      );
    for (const leaf of leaves.splice(0, Math.ceil((heldTokens() + count - context) / pageTokens))) {
      device.free(leaf);
      firstLeaf++;
      version++;
    }
    if (heldTokens() + count > context)
      throw new CapacityError(`A chunk of ${count} tokens exceeds the context of ${context}. Use smaller chunks.`);
  };

  return {
    view,
    get length() {
      return length;
    },
    get droppedTokens() {
      return firstLeaf * pageTokens;
    },
    get bytes() {
      return disposed ? 0 : leaves.length * leaf.bytes + tail.bytes + sinkBlock.bytes + pageErrorBytes(leaf);
    },
    get leafBytes() {
      return leaves.length * leaf.bytes;
    },
    get maxChunk() {
      if (overflow === 'error' || length < context) return context - length;
      return pageTokens - ((length - context) % pageTokens);
    },
    plan(count) {
      makeRoom(count);
      const runs: SequenceRun[] = [];
      for (let row = 0; row < count; ) {
        const position = length + row;
        const sealed = sealedPagesAt(position, sealing);
        const rows = Math.min(count - row, sealPosition(sealed + 1, sealing) - position);
        const sealsPage = sealed > endLeaf();
        if (sealsPage) {
          leaves.push(device.createBlock(leaf.bytes, layerOffsets));
          version++;
        }
        assert(sealed <= endLeaf(), `page ${sealed - 1} is read from codes, but only ${endLeaf()} pages are sealed`);
        runs.push({ row, count: rows, position, sealedPages: sealed, sealsPage });
        row += rows;
      }
      return runs;
    },
    commit(count) {
      length += count;
    },
    crop(maxLength) {
      if (maxLength >= length) return length;
      let newLength = maxLength;
      if (sealedPagesAt(newLength, sealing) < endLeaf())
        newLength = recent === 0 ? newLength - (newLength % pageTokens) : 0;
      // A sequence of this length would still have pages that this one has dropped.
      if (droppedPagesAt(newLength) < firstLeaf) newLength = 0;
      if (newLength === 0) firstLeaf = 0;
      for (const block of leaves.splice(sealedPagesAt(newLength, sealing) - firstLeaf)) device.free(block);
      errors?.crop(endLeaf());
      version++;
      length = newLength;
      return length;
    },
    readErrors: async () => (await errors?.read(firstLeaf, endLeaf())) ?? new Map(),
    dispose() {
      if (disposed) return;
      disposed = true;
      length = 0;
      for (const handle of [...leaves.splice(0), tail, sinkBlock, ...(errors ? [errors.tensor] : [])])
        device.free(handle);
    },
  };
}

/** Frees the blocks if `work` throws. */
function freeOnError<T>(device: Device, blocks: readonly Block[], work: () => T): T {
  try {
    return work();
  } catch (error) {
    for (const block of blocks) device.free(block);
    throw error;
  }
}
