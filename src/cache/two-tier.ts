/**
 * Two-tier mode: passes read f16 pages. Every page has its codes, too, so when room is needed the f16 pages of idle
 * conversations are just freed, and decoded back from the codes while the next request of their conversation waits.
 */

import type { Device, KvShape } from '../kernel/device.ts';
import { CapacityError } from '../util/errors.ts';
import { type LeafLayout, leafBlock, transcodeLeaf } from './leaf.ts';
import type { Pool, SharedBlock } from './pool.ts';
import type { Sequence } from './sequence.ts';
import { createWarmingState, type Warming, type WarmingState } from './warming.ts';

interface WarmPagesOptions {
  device: Device;
  pool: Pool;
  leaf: LeafLayout;
  shape: Pick<KvShape, 'kvHeads' | 'headDim' | 'pageTokens'>;
  /** Runs work between two passes. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
  /** The clock, in ms. */
  now(): number;
  onWarmed(): void;
}

/** Decodes the spilled pages of an idle sequence among its first `tokens`; undefined if there are none. */
export type WarmPages = (sequence: Sequence, tokens: number, onChange: () => void) => Warming | undefined;

export function createWarmPages(options: WarmPagesOptions): WarmPages {
  const { device, pool, leaf: layout, shape, exclusive, now, onWarmed } = options;
  const { pageTokens } = shape;
  const { exact } = layout;

  const allocate = (): SharedBlock | undefined => {
    try {
      return pool.allocate(...leafBlock(exact!));
    } catch (error) {
      if (error instanceof CapacityError) return undefined;
      throw error;
    }
  };

  /** Decodes the first spilled page. False if there is no room, other than by spilling more of the same sequence. */
  const warmPage = async (sequence: Sequence): Promise<boolean> => {
    const { view, hotLength: start } = sequence;
    const block = allocate();
    if (!block) return false;
    const source = view.leaves[start / pageTokens - view.firstLeaf];
    let isTaken = false;
    try {
      if (sequence.hotLength !== start) return false;
      await device.ensureMemory?.([view, { leaves: [block.block], tail: [], sinkBlock: view.sinkBlock }]);
      const page = await transcodeLeaf(layout, await device.readBlock(source), exact!, shape, start);
      if (sequence.isDisposed || sequence.hotLength !== start) return false;
      device.writeBlock(block.block, page);
      sequence.addExactPage(block);
      isTaken = true;
    } finally {
      if (!isTaken) pool.release(block);
    }
    onWarmed();
    return true;
  };

  /** Number of spilled pages among the first `tokens`. */
  const countSpilled = ({ view, exactView, length, hotLength }: Sequence, tokens: number): number => {
    const needed = Math.ceil((Math.min(tokens, length) - hotLength) / pageTokens);
    return Math.max(0, Math.min(needed, view.leaves.length - exactView!.leaves.length));
  };

  const warmAll = async (sequence: Sequence, tokens: number, state: WarmingState, onChange: () => void) => {
    // Two that need the same room could take it from each other for ever: none tries more often than it has pages.
    const pages = countSpilled(sequence, tokens);
    for (let page = 1; page <= pages && !state.isCancelled && !state.isBlocked; page++) {
      await exclusive(async () => {
        // Meanwhile it may have been disposed, or cropped.
        if (countSpilled(sequence, tokens) > 0) state.isBlocked = !(await warmPage(sequence));
      });
      state.note(page, pages - page);
      onChange();
    }
  };

  return (sequence, tokens, onChange) => {
    const spilled = countSpilled(sequence, tokens);
    if (spilled === 0) return undefined;
    const state = createWarmingState(spilled, () => countSpilled(sequence, tokens) > 0, now);
    void warmAll(sequence, tokens, state, onChange)
      // The device is lost, or the model was disposed: the request itself will tell.
      .catch(() => {})
      .then(() => {
        state.isActive = false;
        onChange();
      });
    return state;
  };
}
