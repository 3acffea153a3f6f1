/**
 * The squared errors of a sequence's sealed pages. Devices write them when they seal (`KvView.errors`); the host reads them
 * only on demand, and each page once.
 */
import type { Device, Tensor } from '../kernel/device.ts';
import type { LeafLayout } from './leaf.ts';

/** Pages whose errors a device holds: later pages overwrite those of earlier ones. */
const ROWS = 256;

/** One page's errors: keys of layer l at 2 l, values at 2 l + 1. */
export type PageErrorRow = Float32Array;

export interface PageErrors {
  readonly tensor: Tensor;
  /** Errors by page, of pages `first` to `end` - 1. Pages that were overwritten before any read are missing. */
  read(first: number, end: number): Promise<ReadonlyMap<number, PageErrorRow>>;
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
export function createPageErrors(device: Device, leaf: LeafLayout): PageErrors | undefined {
  if (!isTracked(leaf)) return undefined;
  const tensor = device.createTensor(ROWS, 2 * leaf.layers.length);
  const known = new Map<number, PageErrorRow>();
  return {
    tensor,
    async read(first, end) {
      for (const page of known.keys()) if (page < first) known.delete(page);
      const pages = Array.from({ length: end - first }, (_, i) => first + i);
      const unread = pages.filter(page => !known.has(page) && page >= end - ROWS);
      const rows = await Promise.all(unread.map(page => device.readRows(tensor, page % ROWS)));
      unread.forEach((page, i) => {
        known.set(page, rows[i]);
      });
      return new Map(known);
    },
    crop(end) {
      for (const page of known.keys()) if (page >= end) known.delete(page);
    },
  };
}
