/**
 * The squared errors of sealed pages. Devices write them to a tensor of the sequence that seals (`KvView.errors`); the host
 * reads them only on demand, and each page once. Then they stay with the leaf, whoever holds it.
 */
import type { Tensor } from '../kernel/device.ts';
import type { LeafLayout } from './leaf.ts';
import type { Pool } from './pool.ts';
import type { Leaf } from './prefix-node.ts';

/** Pages whose errors a device holds: later pages overwrite those of earlier ones. */
const ROWS = 256;

/** One page's errors: keys of layer l at 2 l, values at 2 l + 1. */
export type PageErrorRow = Float32Array;

export interface PageErrors {
  readonly tensor: Tensor;
  /** Notes that this sequence has sealed the page: its errors are in the tensor. */
  noteSealed(page: number): void;
  /**
   * Reads what was not read yet, stores it in the leaves, and returns all that is known, by page; `leaves` start at page
   * `first`. Pages that were overwritten before any read are missing.
   */
  read(leaves: readonly Leaf[], first: number): Promise<ReadonlyMap<number, PageErrorRow>>;
  /** Forgets pages from `end` on. */
  crop(end: number): void;
}

const isTracked = ({ layers }: LeafLayout) =>
  layers.some(({ keys, values }) => keys.squaredError !== undefined || values.squaredError !== undefined);

/** Bytes of a sequence's errors on the device, if a codec tracks them. */
export const trackedErrorBytes = (layers: number): number => 4 * ROWS * 2 * layers;
export const pageErrorBytes = (leaf: LeafLayout): number =>
  isTracked(leaf) ? trackedErrorBytes(leaf.layers.length) : 0;

/** Undefined if no codec tracks errors. */
export function createPageErrors(pool: Pool, leaf: LeafLayout): PageErrors | undefined {
  if (!isTracked(leaf)) return undefined;
  const tensor = pool.allocateTensor(ROWS, 2 * leaf.layers.length);
  const unread = new Set<number>();
  return {
    tensor,
    noteSealed(page) {
      unread.delete(page - ROWS);
      unread.add(page);
    },
    async read(leaves, first) {
      const held = [...leaves];
      const pages = [...unread].filter(page => page >= first);
      unread.clear();
      const rows = await Promise.all(pages.map(page => pool.device.readRows(tensor, page % ROWS)));
      pages.forEach((page, i) => {
        held[page - first].errors = rows[i];
      });
      return new Map(held.flatMap(({ errors }, i) => (errors ? [[first + i, errors]] : [])));
    },
    crop(end) {
      for (const page of unread) if (page >= end) unread.delete(page);
    },
  };
}
