/**
 * The sealed pages of a sequence: leaves, which others may hold too. In shadow and two-tier mode each page also has its f16
 * values, in a block of its own: those of the first leaves; of all, unless two-tier mode has spilled the newest ones.
 */
import type { Block } from '../kernel/device.ts';
import { type LeafLayout, leafBlock } from './leaf.ts';
import type { Pool, SharedBlock } from './pool.ts';
import type { Leaf } from './prefix.ts';
import type { SequenceStart } from './sequence.ts';

export type SealedPages = ReturnType<typeof createSealedPages>;

export function createSealedPages(pool: Pool, layout: LeafLayout, start?: SequenceStart) {
  const { exact } = layout;
  const leaves: Leaf[] = start?.leaves.map(pool.retain) ?? [];
  const exactPages: SharedBlock[] = start?.exactPages?.map(pool.retain) ?? [];
  let first = start?.firstLeaf ?? 0;
  /** Leaves of the last plan, until it is committed: no pass has sealed them yet. */
  let planned = 0;
  /** Leaves that it was opened with; those after them it has sealed itself. */
  let adopted = leaves.length;
  let [blocks, exactBlocks]: (readonly Block[])[] = [[], []];
  const noteChange = () => {
    blocks = leaves.map(({ block }) => block);
    exactBlocks = exactPages.map(({ block }) => block);
  };
  noteChange();
  /** The newest first: the index evicts children before their parents. */
  const release = (from: number, count: number) => {
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
    get bytes() {
      return leaves.length * layout.bytes + exactPages.length * (exact?.bytes ?? 0);
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
      leaves.push(pool.allocate(...leafBlock(layout)));
      planned++;
      if (exact) exactPages.push(pool.allocate(...leafBlock(exact)));
      noteChange();
    },
    commit() {
      planned = 0;
    },
    discardPlanned() {
      if (planned > 0) release(leaves.length - planned, planned);
      planned = 0;
    },
    /** Holds another leaf of the same text instead of its own. */
    replace(at: number, by: Leaf) {
      const own = leaves[at];
      leaves[at] = pool.retain(by);
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
