/** The layout of a leaf: one part per layer, its key page and its value page, aligned so that devices read whole words. */

import type { KvLayer, KvShape, PageCodec } from '../kernel/device.ts';
import type { KeyReader, ValueReader } from '../kernel/page-readers.ts';

const ALIGN = 16;
const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN;

export interface LayerCodecs {
  keys: PageCodec & KeyReader;
  values: PageCodec & ValueReader;
}

/** How many tokens each layer sees; undefined: all. */
export type AttentionWindows = readonly (number | undefined)[];

export interface LeafLayout {
  readonly layers: readonly KvLayer[];
  readonly bytes: number;
  /** In shadow and two-tier mode: the same pages in f16, in a block of their own. */
  readonly exact?: LeafLayout;
}

export interface LeafOptions {
  /** The codec of f16 pages, for shadow and two-tier mode. */
  exact?: LayerCodecs;
  /** How many tokens each layer sees. Default: all see all. */
  windows?: AttentionWindows;
}

export function leafLayout(codecs: readonly LayerCodecs[], { exact, windows }: LeafOptions = {}): LeafLayout {
  let offset = 0;
  const layers = codecs.map(({ keys, values }, part): KvLayer => {
    const keyOffset = offset;
    const valueOffset = keyOffset + align(keys.pageBytes);
    offset = valueOffset + align(values.pageBytes);
    return { keys, values, part, keyOffset, valueOffset, window: windows?.[part] };
  });
  return {
    layers,
    bytes: offset,
    ...(exact && {
      exact: leafLayout(
        codecs.map(() => exact),
        { windows },
      ),
    }),
  };
}

/** Bytes of a page: its codes and, in shadow and two-tier mode, its f16 values. */
export const pageBytes = ({ bytes, exact }: LeafLayout): number => bytes + (exact?.bytes ?? 0);

/** Whether devices can read a leaf of unknown origin safely: some pages have lists, which must stay inside them. */
export function isValidLeaf({ layers }: LeafLayout, leaf: Uint8Array): boolean {
  const isValid = ({ isValid, pageBytes }: PageCodec, offset: number) =>
    isValid?.(leaf.subarray(offset, offset + pageBytes)) ?? true;
  return layers.every(
    ({ keys, values, keyOffset, valueOffset }) => isValid(keys, keyOffset) && isValid(values, valueOffset),
  );
}

/** Where each part starts in a leaf. */
export const partOffsets = ({ layers }: LeafLayout): number[] => layers.map(({ keyOffset }) => keyOffset);

/** A block for a leaf: its size, and where its parts start. */
export const leafBlock = (layout: LeafLayout): [bytes: number, partOffsets: number[]] => [
  layout.bytes,
  partOffsets(layout),
];

/** Size of a tail or sink block, and where each layer, which is a part, starts in it. */
export function f16Block(
  shape: Pick<KvShape, 'layers' | 'kvHeads' | 'headDim'>,
  tokens: number,
): [bytes: number, partOffsets: number[]] {
  const bytes = f16BlockBytes(shape, tokens);
  return [bytes, shape.layers.map((_, layer) => (layer * bytes) / shape.layers.length)];
}

/** Size of a tail or sink block: f16 keys and values of `tokens` tokens in all layers. */
export function f16BlockBytes(
  { layers, kvHeads, headDim }: Pick<KvShape, 'layers' | 'kvHeads' | 'headDim'>,
  tokens: number,
): number {
  return layers.length * 2 * kvHeads * tokens * headDim * 2;
}
