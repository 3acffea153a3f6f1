/**
 * Two-tier mode: passes read f16 pages. Every page has its codes, too, so when room is needed the f16 pages of idle
 * sequences are just freed (spilled), and decoded from the codes again while the next request of their owner waits.
 */

import type { Device, KvShape, PageCodec } from '../kernel/device.ts';
import { createYielder } from '../platform/event-loop.ts';
import { CapacityError } from '../util/errors.ts';
import { type LeafLayout, leafBlock } from './leaf.ts';
import type { Pool, SharedBlock } from './pool.ts';
import { createPrefetchState, type Prefetch, type PrefetchState } from './prefetch.ts';
import type { Sequence } from './sequence.ts';

interface TwoTierOptions {
  device: Device;
  pool: Pool;
  leaf: LeafLayout;
  shape: Pick<KvShape, 'kvHeads' | 'headDim' | 'pageTokens'>;
  /** Runs work between two passes. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
  /** The clock, in ms. */
  now(): number;
}

export interface TwoTier {
  /** Number of f16 pages that were freed, and decoded again. */
  readonly spilledPages: number;
  readonly decodedPages: number;
  /** Frees the newest f16 page of a sequence; false if it has none. */
  spillPage(sequence: Sequence): boolean;
  /** Decodes the spilled pages of an idle sequence among its first `tokens`; undefined if there are none. */
  decode(sequence: Sequence, tokens: number, onChange: () => void): Prefetch | undefined;
}

export function createTwoTier({ device, pool, leaf: layout, shape, exclusive, now }: TwoTierOptions): TwoTier {
  const { pageTokens } = shape;
  const exact = layout.exact!;
  let [spilledPages, decodedPages] = [0, 0];

  const allocate = (): SharedBlock | undefined => {
    try {
      return pool.allocate(...leafBlock(exact));
    } catch (error) {
      if (error instanceof CapacityError) return undefined;
      throw error;
    }
  };

  /** The f16 pages of a leaf, whose first token is at `start`. */
  const decodeLeaf = async (leaf: Uint8Array, start: number): Promise<Uint8Array> => {
    const pages = new Uint8Array(exact.bytes);
    const rows = new Float32Array(pageTokens * shape.kvHeads * shape.headDim);
    const pageAt = (bytes: Uint8Array, offset: number, { pageBytes }: PageCodec) =>
      bytes.subarray(offset, offset + pageBytes);
    const decode = (codec: PageCodec, at: number, f16: PageCodec, f16At: number) => {
      codec.decode(pageAt(leaf, at, codec), pageTokens, rows, start);
      f16.encode(rows, pageTokens, pageAt(pages, f16At, f16), start);
    };
    const yielder = createYielder();
    for (const [layer, { keys, values, keyOffset, valueOffset }] of layout.layers.entries()) {
      const f16 = exact.layers[layer];
      decode(keys, keyOffset, f16.keys, f16.keyOffset);
      decode(values, valueOffset, f16.values, f16.valueOffset);
      if (yielder.isDue()) await yielder.yieldNow();
    }
    return pages;
  };

  /** Decodes the first spilled page. False if there is no room, other than by spilling more of the same sequence. */
  const decodePage = async (sequence: Sequence): Promise<boolean> => {
    const { view, readableLength: start } = sequence;
    const block = allocate();
    if (!block) return false;
    const source = view.leaves[start / pageTokens - view.firstLeaf];
    let isTaken = false;
    try {
      if (sequence.readableLength !== start) return false;
      await device.ensureMemory?.([view, { leaves: [block.block], tail: [], sinkBlock: view.sinkBlock }]);
      const page = await decodeLeaf(await device.readBlock(source), start);
      if (sequence.isDisposed || sequence.readableLength !== start) return false;
      // It was cropped to where this page begins.
      if (view.leaves[start / pageTokens - view.firstLeaf] !== source) return false;
      device.writeBlock(block.block, page);
      sequence.unspillPage(block);
      isTaken = true;
    } finally {
      if (!isTaken) pool.release(block);
    }
    decodedPages++;
    return true;
  };

  /** Number of spilled pages among the first `tokens`. */
  const countSpilled = ({ view, exactView, length, readableLength }: Sequence, tokens: number): number => {
    const needed = Math.ceil((Math.min(tokens, length) - readableLength) / pageTokens);
    return Math.max(0, Math.min(needed, view.leaves.length - exactView!.leaves.length));
  };

  const decodeAll = async (sequence: Sequence, tokens: number, state: PrefetchState, onChange: () => void) => {
    // Two that need the same room could take it from each other forever: none tries more often than it has pages.
    const pages = countSpilled(sequence, tokens);
    for (let page = 1; page <= pages && !state.isCancelled && !state.isBlocked; page++) {
      await exclusive(async () => {
        // Meanwhile it may have been disposed, or cropped.
        if (countSpilled(sequence, tokens) > 0) state.isBlocked = !(await decodePage(sequence));
      });
      state.note(page, pages - page);
      onChange();
    }
  };

  return {
    get spilledPages() {
      return spilledPages;
    },
    get decodedPages() {
      return decodedPages;
    },
    spillPage(sequence) {
      const isSpilled = sequence.spillPage();
      if (isSpilled) spilledPages++;
      return isSpilled;
    },
    decode(sequence, tokens, onChange) {
      const spilled = countSpilled(sequence, tokens);
      if (spilled === 0) return undefined;
      const state = createPrefetchState(spilled, () => countSpilled(sequence, tokens) > 0, now);
      void state.end(decodeAll(sequence, tokens, state, onChange), onChange);
      return state;
    },
  };
}
