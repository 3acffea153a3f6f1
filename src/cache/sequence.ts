/**
 * One sequence's cache: sealed leaves plus a private f16 tail. The visibility rule lives here: a query at position t
 * reads position n from codes if n >= sinks and n < floor((t - recent) / P) P, else from f16.
 */
import { CapacityError } from '../errors.ts';
import type { Block, Device, KvShape, KvView } from '../kernel/device.ts';
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
}

export interface Sequence {
  readonly view: KvView;
  /** Tokens so far. */
  readonly length: number;
  /** Tokens dropped by sliding. */
  readonly dropped: number;
  /** Bytes of leaves, sinks and tail. */
  readonly bytes: number;
  /**
   * Tokens that the next chunk may have. Sliding drops a page whenever as many have come as a page holds, so there a
   * chunk ends where the next one is dropped: which tokens a row still sees does not depend on how chunks were cut.
   */
  readonly room: number;
  /** Makes room for `count` more tokens and says how they are cut into runs. */
  plan(count: number): Run[];
  /** The chunk that was planned is in. */
  commit(count: number): void;
  /** Back to the first `length` tokens, which must not reach into sealed pages. */
  truncate(length: number): void;
  /** Whether `truncate` can go there. */
  canTruncate(length: number): boolean;
  dispose(): void;
}

export function createSequence(options: SequenceOptions): Sequence {
  const { device, leaf, recent, context, overflow = 'error' } = options;
  const { pageTokens } = options.shape;
  const shape: KvShape = { ...options.shape, layers: leaf.layers, tailTokens: pageTokens + recent };
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
  const sinkBlock = halves(shape.sinks);
  let firstLeaf = 0;
  let length = 0;
  const view: KvView = {
    shape,
    leaves,
    tail,
    sinkBlock,
    get firstLeaf() {
      return firstLeaf;
    },
  };
  const sealedAt = (position: number) => Math.max(0, Math.floor((position - recent) / pageTokens));
  const held = () => length - firstLeaf * pageTokens;

  if (overflow === 'slide' && context <= shape.tailTokens)
    throw new CapacityError(
      `A context of ${context} cannot slide: it must exceed a page and the recent window, ${shape.tailTokens} tokens. ` +
        "Take a larger context, or overflow: 'error'.",
    );

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
      return leaves.length * leaf.bytes + tail.bytes + sinkBlock.bytes;
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
        const sealed = sealedAt(position);
        // The next position at which one more page is read from codes.
        const next = (sealed + 1) * pageTokens + recent;
        const run = Math.min(count - row, next - position);
        runs.push({ row, count: run, position, sealed });
        while (firstLeaf + leaves.length < sealed) leaves.push(device.block(leaf.bytes, cuts));
        row += run;
      }
      return runs;
    },
    commit(count) {
      length += count;
    },
    canTruncate: to => to <= length && sealedAt(Math.max(0, to - 1)) >= firstLeaf + leaves.length,
    truncate(to) {
      length = to;
    },
    dispose() {
      for (const block of [...leaves.splice(0), tail, sinkBlock]) device.free(block);
    },
  };
}
