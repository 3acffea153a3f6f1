/**
 * The sealed pages of a sequence: leaves, which others may hold too, and the window pages (leaf.ts) that its next token sees.
 * In shadow and two-tier mode each page also has its f16 values, in a block of its own: those of the first leaves; of all,
 * unless two-tier mode has spilled the newest ones.
 */
import type { Block, KvView } from '../kernel/device.ts';
import { assert } from '../util/errors.ts';
import { firstVisiblePage, type LeafLayout, leafBlock, windowBlock } from './leaf.ts';
import type { Pool, SharedBlock } from './pool.ts';
import { type Leaf, type WindowPage, windowPageOf } from './prefix-node.ts';
import type { SequenceStart } from './sequence.ts';

export type SealedPages = ReturnType<typeof createSealedPages>;

export function createSealedPages(pool: Pool, layout: LeafLayout, pageTokens: number, start?: SequenceStart) {
  const { exact } = layout;
  const leaves: Leaf[] = start?.leaves.map(pool.retain) ?? [];
  const exactPages: SharedBlock[] = start?.exactPages?.map(pool.retain) ?? [];
  let first = start?.firstLeaf ?? 0;
  /** One per leaf; undefined where no layer sees it any more. */
  const windowPages: (WindowPage | undefined)[] = leaves.map(() => undefined);
  /** Leaves of the last plan, until it is committed: no pass has sealed them yet. */
  let planned = 0;
  /** Leaves that it was opened with; those after them it has sealed itself. */
  let adopted = leaves.length;
  let [blocks, exactBlocks]: (readonly Block[])[] = [[], []];
  let windowBlocks: KvView['windowPages'];
  const noteChange = () => {
    blocks = leaves.map(({ block }) => block);
    exactBlocks = exactPages.map(({ block }) => block);
    if (layout.windowPage) windowBlocks = windowPages.map(page => page?.block);
  };
  /** Index in `leaves` of the first window page that is visible after this many of them. */
  const firstVisible = (count: number) => Math.max(0, firstVisiblePage(layout, first + count, pageTokens) - first);
  /** Holds the window pages that are visible after its leaves. */
  const holdWindowPages = () => {
    for (let at = firstVisible(leaves.length); at < leaves.length; at++) {
      if (windowPages[at]) continue;
      const page = windowPageOf(leaves[at]);
      assert(page, `page ${first + at} has no values of layers with a window`);
      windowPages[at] = pool.retain(page);
    }
  };
  holdWindowPages();
  noteChange();
  /** The newest first: the index evicts children before their parents. */
  const release = (from: number, count: number) => {
    for (const page of windowPages.splice(from, count)) if (page) pool.release(page);
    for (const page of exactPages.splice(from, count).reverse()) pool.release(page);
    for (const leaf of leaves.splice(from, count).reverse()) pool.release(leaf);
    noteChange();
  };
  return {
    leaves: leaves as readonly Leaf[],
    exactPages: exactPages as readonly SharedBlock[],
    get blocks() {
      return blocks;
    },
    get exactBlocks() {
      return exactBlocks;
    },
    get windowBlocks() {
      return windowBlocks;
    },
    /** The window pages that it holds. */
    get windowPages() {
      return windowPages.filter(page => page !== undefined);
    },
    get bytes() {
      const windowed = windowPages.filter(page => page !== undefined).length * (layout.windowPage?.bytes ?? 0);
      return leaves.length * layout.bytes + windowed + exactPages.length * (exact?.bytes ?? 0);
    },
    /** Index of the first page: sliding has dropped those before it. */
    get first() {
      return first;
    },
    /** Index of the page after the last one. */
    get end() {
      return first + leaves.length;
    },
    /** The same without pages that are planned. */
    get sealedEnd() {
      return first + leaves.length - planned;
    },
    /** Index of the first page that was spilled; undefined if passes can read all. */
    get firstSpilled() {
      return exact && exactPages.length < leaves.length ? first + exactPages.length : undefined;
    },
    /** The first leaf that it has sealed itself. */
    get firstOwn(): Leaf | undefined {
      return leaves[adopted];
    },
    /** Allocates the next page, which a pass will seal. */
    plan() {
      const leaf: Leaf = pool.allocate(...leafBlock(layout));
      leaves.push(leaf);
      windowPages.push(undefined);
      planned++;
      if (layout.windowPage) windowPages[leaves.length - 1] = leaf.windowPage = pool.allocate(...windowBlock(layout));
      if (exact) exactPages.push(pool.allocate(...leafBlock(exact)));
      noteChange();
    },
    commit() {
      planned = 0;
    },
    /** Releases the window pages that no later token sees. `onPassed` gets their leaves. */
    leaveWindow(onPassed?: (leaf: Leaf) => void) {
      const last = firstVisible(leaves.length) - 1;
      // After nearly every token there is none.
      if (!windowPages[last]) return;
      for (let at = last; at >= 0 && windowPages[at]; at--) {
        pool.release(windowPages[at]!);
        windowPages[at] = undefined;
        onPassed?.(leaves[at]);
      }
      noteChange();
    },
    /** The greatest number of pages, at most `count`, after which a token has all window pages that it sees. */
    croppedEnd(end: number): number {
      return first + usablePages(leaves.slice(0, Math.max(0, end - first)), firstVisible);
    },
    discardPlanned() {
      if (planned > 0) release(leaves.length - planned, planned);
      planned = 0;
    },
    /** Holds another leaf of the same text instead of its own. */
    replace(at: number, by: Leaf) {
      const own = leaves[at];
      leaves[at] = pool.retain(by);
      const ownPage = windowPages[at];
      const page = windowPageOf(by);
      if (ownPage && page && page !== ownPage) {
        windowPages[at] = pool.retain(page);
        pool.release(ownPage);
      }
      pool.release(own);
      noteChange();
    },
    /** Drops the oldest pages: the text goes on without them. */
    slide(count: number) {
      release(0, count);
      first += count;
    },
    /** Releases the pages from `end` on. */
    crop(end: number) {
      if (end === 0) first = 0;
      adopted = Math.min(adopted, end - first);
      release(end - first, leaves.length);
      holdWindowPages();
      noteChange();
    },
    /** Frees the newest f16 page: its codes stay. False if there is none. */
    spill(): boolean {
      const page = exactPages.pop();
      if (page) pool.release(page);
      noteChange();
      return page !== undefined;
    },
    /** Takes over the first f16 page that was spilled, decoded from its codes. */
    unspill(page: SharedBlock) {
      exactPages.push(page);
      noteChange();
    },
  };
}

/**
 * The greatest number of these leaves after which a text can go on: with all window pages that are visible then.
 * `firstVisible` is the first of them, by number of leaves.
 */
export function usablePages(leaves: readonly Leaf[], firstVisible: (count: number) => number): number {
  let usable = 0;
  let inRow = 0;
  for (const [i, leaf] of leaves.entries()) {
    inRow = windowPageOf(leaf) ? inRow + 1 : 0;
    if (inRow >= i + 1 - firstVisible(i + 1)) usable = i + 1;
  }
  return usable;
}
