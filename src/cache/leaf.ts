/**
 * The layout of a leaf: one part per layer, its key page and its value page, aligned so that devices read whole words.
 *
 * Layers that see only the last tokens have their pages in a block of their own, beside the leaf: it is freed when it is out
 * of their window, while the leaf stays.
 */

import type { KvLayer, KvShape, PageCodec } from '../kernel/device.ts';
import type { KeyReader, ValueReader } from '../kernel/page-readers.ts';
import { firstWindowPage } from '../kernel/visibility.ts';

const ALIGN = 16;
const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN;

/** How many tokens each layer sees; undefined: all. */
export type AttentionWindows = readonly (number | undefined)[];

export interface WindowPageLayout {
  readonly bytes: number;
  /** The longest window of a layer. */
  readonly tokens: number;
}

export interface LayerCodecs {
  keys: PageCodec & KeyReader;
  values: PageCodec & ValueReader;
}

export interface LeafLayout {
  /** All layers. Their offsets are in a leaf, or in a window page. */
  readonly layers: readonly KvLayer[];
  readonly bytes: number;
  /** Absent if no layer has a window, or all have one. */
  readonly windowPage?: WindowPageLayout;
  /** In shadow and two-tier mode: the same pages in f16, in a block of their own. */
  readonly exact?: LeafLayout;
}

export interface LeafOptions {
  /** The codec of f16 pages, for shadow and two-tier mode. */
  exact?: LayerCodecs;
  /** How many tokens each layer sees. Default: all see all. */
  windows?: AttentionWindows;
}

export function leafLayout(codecs: readonly LayerCodecs[], { exact, windows = [] }: LeafOptions = {}): LeafLayout {
  // With f16 pages, which have all layers, all pages stay.
  if (!exact) return layoutOf(codecs, windows, true);
  const exactCodecs = codecs.map(() => exact);
  return { ...layoutOf(codecs, windows, false), exact: layoutOf(exactCodecs, windows, false) };
}

function layoutOf(codecs: readonly LayerCodecs[], windows: AttentionWindows, freesPages: boolean): LeafLayout {
  const windowed = codecs.flatMap((_, layer) => windows[layer] ?? []);
  const isDivided = freesPages && windowed.length > 0 && windowed.length < codecs.length;
  const leaf = { bytes: 0, parts: 0 };
  const windowPage = isDivided ? { bytes: 0, parts: 0 } : leaf;
  const layers = codecs.map(({ keys, values }, layer): KvLayer => {
    const window = windows[layer];
    const block = window ? windowPage : leaf;
    const keyOffset = block.bytes;
    const valueOffset = keyOffset + align(keys.pageBytes);
    block.bytes = valueOffset + align(values.pageBytes);
    return { keys, values, part: block.parts++, keyOffset, valueOffset, ...(window && { window }) };
  });
  const { bytes } = leaf;
  return isDivided
    ? { layers, bytes, windowPage: { bytes: windowPage.bytes, tokens: Math.max(...windowed) } }
    : { layers, bytes };
}

/** Bytes of a new page: its codes and, in shadow and two-tier mode, its f16 values. */
export const pageBytes = ({ bytes, windowPage, exact }: LeafLayout): number =>
  bytes + (windowPage?.bytes ?? 0) + (exact?.bytes ?? 0);

/** The first window page that is visible to tokens after this many pages; `pages` if there are none. */
export const firstVisiblePage = ({ windowPage }: LeafLayout, pages: number, pageTokens: number): number =>
  windowPage ? firstWindowPage(pages, windowPage.tokens, pageTokens) : pages;

/** Bytes of the pages of one sequence that has sealed so many. */
export function sealedBytes(layout: LeafLayout, pages: number, pageTokens: number): number {
  const { bytes, windowPage, exact } = layout;
  const visible = pages - firstVisiblePage(layout, pages, pageTokens);
  return pages * (bytes + (exact?.bytes ?? 0)) + visible * (windowPage?.bytes ?? 0);
}

/** The layers whose pages are in leaves, or in window pages. */
const layersIn = ({ layers, windowPage }: LeafLayout, block: 'leaf' | 'windowPage') =>
  layers.filter(({ window }) => (window && windowPage ? block === 'windowPage' : block === 'leaf'));

/** Whether devices can read a block of unknown origin safely: some pages have lists, which must stay inside them. */
const isValidBlock = (layers: readonly KvLayer[], block: Uint8Array): boolean => {
  const isValid = ({ isValid, pageBytes }: PageCodec, offset: number) =>
    isValid?.(block.subarray(offset, offset + pageBytes)) ?? true;
  return layers.every(
    ({ keys, values, keyOffset, valueOffset }) => isValid(keys, keyOffset) && isValid(values, valueOffset),
  );
};

export const isValidLeaf = (layout: LeafLayout, leaf: Uint8Array): boolean =>
  leaf.length === layout.bytes && isValidBlock(layersIn(layout, 'leaf'), leaf);

export const isValidWindowPage = (layout: LeafLayout, page: Uint8Array): boolean =>
  page.length === layout.windowPage?.bytes && isValidBlock(layersIn(layout, 'windowPage'), page);

const offsetsOf = (layers: readonly KvLayer[]): number[] => layers.map(({ keyOffset }) => keyOffset);

/** A block for a leaf: its size, and where its parts start. */
export const leafBlock = (layout: LeafLayout): [bytes: number, partOffsets: number[]] => [
  layout.bytes,
  offsetsOf(layersIn(layout, 'leaf')),
];

/** A block for a window page. */
export const windowBlock = (layout: LeafLayout): [bytes: number, partOffsets: number[]] => [
  layout.windowPage?.bytes ?? 0,
  offsetsOf(layersIn(layout, 'windowPage')),
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
