/**
 * The window pages that the prefix index holds (leaf.ts): those of its leaves, until texts have left them behind and
 * others need the room.
 */
import type { Pool } from './pool.ts';
import type { Leaf, PrefixNode, WindowPage } from './prefix-node.ts';

export function createWindowPages(pool: () => Pool) {
  /** Leaves whose window pages texts have left behind, the first one first. */
  const passed = new Set<Leaf>();
  let bytes = 0;
  /** Of those that only the index holds. */
  let idleBytes = 0;

  /** Whether the index holds the window page of a leaf. */
  const has = ({ node, windowPage }: Leaf) => node !== undefined && windowPage?.node === node;
  const isIdle = (leaf: Leaf) => has(leaf) && leaf.windowPage!.holders === 1;
  const drop = (leaf: Leaf) => {
    const { windowPage } = leaf;
    passed.delete(leaf);
    if (!windowPage || !has(leaf)) return;
    bytes -= windowPage.block.bytes;
    if (windowPage.holders === 1) idleBytes -= windowPage.block.bytes;
    windowPage.node = undefined;
    pool().release(windowPage);
  };

  return {
    get idleBytes() {
      return idleBytes;
    },
    /** Of those that sequences hold, too. */
    get sharedBytes() {
      return bytes - idleBytes;
    },
    get passedBytes() {
      let sum = 0;
      for (const leaf of passed) if (isIdle(leaf)) sum += leaf.windowPage!.block.bytes;
      return sum;
    },
    hold(node: PrefixNode, page: WindowPage | undefined): void {
      if (!page || !node.leaf || has(node.leaf)) return;
      node.leaf.windowPage = pool().retain(page);
      page.node = node;
      bytes += page.block.bytes;
    },
    drop,
    notePassed(leaf: Leaf): void {
      passed.delete(leaf);
      if (has(leaf)) passed.add(leaf);
    },
    /** Drops the one that was left behind first; false if there is none. */
    dropPassed(): boolean {
      for (const leaf of passed) {
        if (isIdle(leaf)) {
          drop(leaf);
          return true;
        }
        // One that is in use comes back when it is left behind again.
        passed.delete(leaf);
      }
      return false;
    },
    noteIdle(page: WindowPage): void {
      idleBytes += page.block.bytes;
    },
    noteBusy(page: WindowPage): void {
      idleBytes -= page.block.bytes;
    },
  };
}
