/**
 * One sequence's cache: sealed leaves plus a private f16 tail. Which of them a query reads is the visibility rule's
 * (kernel/visibility.ts).
 */
import { assert, CapacityError } from '../errors.ts';
import type { Block, Device, KvShape, KvView } from '../kernel/device.ts';
import { sealedPages, sealPosition, tailRoom } from '../kernel/visibility.ts';
import { halfBytes, type LeafLayout } from './leaf.ts';

export interface SequenceOptions {
  device: Device;
  shape: Omit<KvShape, 'layers' | 'tailTokens'>;
  leaf: LeafLayout;
  /** Newest tokens that stay f16. */
  recent: number;
  /** Most tokens that it may hold. */
  context: number;
  /** What happens past them: an error, or the oldest pages behind the sinks are dropped. */
  overflow?: 'error' | 'slide';
}

/** A run of rows that all read the same sealed pages. */
export interface Run {
  /** Of the chunk's rows. */
  row: number;
  count: number;
  position: number;
  /** Pages that they read from codes. */
  sealed: number;
  /** Whether the last of these pages is still in the tail: it must be sealed before the run. */
  seals: boolean;
}

export interface Sequence {
  readonly view: KvView;
  /** Tokens so far. */
  readonly length: number;
  /** Tokens dropped by sliding. */
  readonly dropped: number;
  /** Bytes of leaves, sinks and tail. */
  readonly bytes: number;
  /** Bytes of leaves alone. */
  readonly pageBytes: number;
  /**
   * Tokens that the next chunk may have. Sliding drops a page whenever as many have come as a page holds, so there a
   * chunk ends where the next one is dropped: which tokens a row still sees does not depend on how chunks were cut.
   */
  readonly room: number;
  /** Makes room for `count` more tokens and says how they are cut into runs. */
  plan(count: number): Run[];
  /** The chunk that was planned is in. */
  commit(count: number): void;
  /**
   * Forgets tokens until at most `length` are left and the sequence can go on exactly as if no more had ever come, and
   * says how many are left. The f16 originals of sealed pages are gone: before the tail, that is the end of a page, or
   * with a recent window, which lies before the tail, nothing at all.
   */
  crop(length: number): number;
  /** Frees its blocks. Nothing may still be running on it. Twice is harmless. */
  dispose(): void;
}

export function createSequence(options: SequenceOptions): Sequence {
  const { device, leaf, recent, context, overflow = 'error' } = options;
  const { pageTokens } = options.shape;
  const sealing = { pageTokens, recent };
  const shape: KvShape = { ...options.shape, layers: leaf.layers, tailTokens: tailRoom(sealing) };
  if (overflow === 'slide' && context <= shape.tailTokens)
    throw new CapacityError(
      `A context of ${context} cannot slide: it must exceed a page and the recent window, ${shape.tailTokens} tokens. ` +
        "Take a larger context, or overflow: 'error'.",
    );
  const leaves: Block[] = [];
  const cuts = leaf.layers.map(({ keyOffset }) => keyOffset);
  const halves = (tokens: number) => {
    const layer = halfBytes(shape, tokens) / cuts.length;
    return device.block(
      layer * cuts.length,
      cuts.map((_, i) => i * layer),
    );
  };
  const tail = halves(shape.tailTokens);
  const sinkBlock = orFree(device, tail, () => halves(shape.sinks));
  let firstLeaf = 0;
  let length = 0;
  let version = 0;
  let disposed = false;
  const view: KvView = {
    shape,
    leaves,
    tail,
    sinkBlock,
    get firstLeaf() {
      return firstLeaf;
    },
    get version() {
      return version;
    },
  };
  const sealedEnd = () => firstLeaf + leaves.length;
  /** Pages that sliding has dropped once there are this many tokens. */
  const slidAt = (tokens: number) => Math.max(0, Math.ceil((tokens - context) / pageTokens));
  const held = () => length - firstLeaf * pageTokens;

  const makeRoom = (count: number) => {
    if (held() + count <= context) return;
    if (overflow === 'error')
      throw new CapacityError(
        `${length} tokens and ${count} more do not fit into a context of ${context}. Start anew, shorten the prompt, ` +
          "open the model with a larger context, or use overflow: 'slide' to forget the oldest tokens.",
      );
    while (held() + count > context && leaves.length > 0) {
      device.free(leaves.shift()!);
      firstLeaf++;
      version++;
    }
    if (held() + count > context)
      throw new CapacityError(`A chunk of ${count} tokens does not fit into a context of ${context}, even alone.`);
  };

  return {
    view,
    get length() {
      return length;
    },
    get dropped() {
      return firstLeaf * pageTokens;
    },
    get bytes() {
      return disposed ? 0 : leaves.length * leaf.bytes + tail.bytes + sinkBlock.bytes;
    },
    get pageBytes() {
      return leaves.length * leaf.bytes;
    },
    get room() {
      if (overflow === 'error' || length < context) return context - length;
      return pageTokens - ((length - context) % pageTokens);
    },
    plan(count) {
      makeRoom(count);
      const runs: Run[] = [];
      for (let row = 0; row < count; ) {
        const position = length + row;
        const sealed = sealedPages(position, sealing);
        const run = Math.min(count - row, sealPosition(sealed + 1, sealing) - position);
        const seals = sealed > sealedEnd();
        if (seals) {
          leaves.push(device.block(leaf.bytes, cuts));
          version++;
        }
        assert(sealed <= sealedEnd(), `page ${sealed - 1} is read from codes, and ${sealedEnd()} pages are sealed`);
        runs.push({ row, count: run, position, sealed, seals });
        row += run;
      }
      return runs;
    },
    commit(count) {
      length += count;
    },
    crop(to) {
      if (to >= length) return length;
      let left = to;
      if (sealedPages(left, sealing) < sealedEnd()) left = recent === 0 ? left - (left % pageTokens) : 0;
      // A sequence that came no further would still have the pages that this one has dropped.
      if (slidAt(left) < firstLeaf) left = 0;
      if (left === 0) firstLeaf = 0;
      for (const block of leaves.splice(sealedPages(left, sealing) - firstLeaf)) device.free(block);
      version++;
      length = left;
      return length;
    },
    dispose() {
      if (disposed) return;
      disposed = true;
      length = 0;
      for (const block of [...leaves.splice(0), tail, sinkBlock]) device.free(block);
    },
  };
}

/** Gives a block back where what comes after it fails. */
function orFree<T>(device: Device, block: Block, work: () => T): T {
  try {
    return work();
  } catch (error) {
    device.free(block);
    throw error;
  }
}
