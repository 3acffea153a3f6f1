/**
 * The visibility rule: a query at position t reads position n from codes if n >= sinks and
 * n < floor((t - recent) / P) P, else from f16; it does not see n at all if the layer has a window and n <= t - window.
 * Sequences, devices, the codec library and memory estimates all use
 * these functions.
 */

import type { Block, KvView } from './device.ts';

/** The settings that decide how many pages are read from codes. */
export interface SealingRule {
  pageTokens: number;
  /** The newest tokens, which stay in f16. */
  recent: number;
}

/** Number of pages that a query at this position reads from codes. */
export const sealedPagesAt = (position: number, { pageTokens, recent }: SealingRule): number =>
  Math.max(0, Math.floor((position - recent) / pageTokens));

/** The first position that reads this many pages from codes. The last of them is sealed just before it. */
export const sealPosition = (pages: number, { pageTokens, recent }: SealingRule): number => pages * pageTokens + recent;

/** Number of sealed pages of a sequence with this many tokens: those that its last token read from codes. */
export const packedPages = (tokens: number, sealing: SealingRule): number => sealedPagesAt(tokens - 1, sealing);

/** Capacity of the f16 tail in tokens: an unfinished page and the recent window before it. */
export const tailCapacity = ({ pageTokens, recent }: SealingRule): number => pageTokens + recent;

/**
 * Tokens per block of a tail: small, so that a short sequence has a small tail. A page, which is a multiple of 16 tokens,
 * begins with a block and consists of whole ones.
 */
export const tailBlockTokens = (pageTokens: number): number => Math.min(16, pageTokens / 2);

/** The same capacity in blocks. */
export const tailBlocks = (sealing: SealingRule): number =>
  Math.ceil(tailCapacity(sealing) / tailBlockTokens(sealing.pageTokens));

/** The first position that a query sees in a layer with this window; all layers without one see position 0. */
export const firstVisible = (position: number, window = Number.POSITIVE_INFINITY): number =>
  Math.max(0, position + 1 - window);

/** The first page that is visible, in layers with a window, to tokens after this many pages. */
export const firstWindowPage = (pages: number, window: number, pageTokens: number): number =>
  Math.floor(firstVisible(pages * pageTokens, window) / pageTokens);

/** The blocks that hold the pages of a layer. */
export const pagesOf = (view: KvView, layer: number): readonly (Block | undefined)[] =>
  (view.shape.layers[layer].window && view.windowPages) || view.leaves;

/** The block that holds a page of a layer, which must be there. */
export const pageBlock = (view: KvView, layer: number, page: number): Block =>
  pagesOf(view, layer)[page - view.firstLeaf]!;

/** The settings that decide which tokens of sealed pages are still read from f16. */
export interface SinkRule {
  pageTokens: number;
  /** The first tokens, which stay in f16. */
  sinks: number;
}

/** Number of sinks that a query reads from the sink block: those inside the pages that it reads from codes. */
export const visibleSinks = (sealed: number, { pageTokens, sinks }: SinkRule): number =>
  Math.min(sinks, sealed * pageTokens);

/** Number of sinks from position `start` (a page's first) on, to skip in the codes. It may exceed the page. */
export const skippedTokens = (start: number, sealed: number, shape: SinkRule): number =>
  Math.max(0, visibleSinks(sealed, shape) - start);

/**
 * The first row of a page that is not a sink. Sinks are never read from codes, but they would widen the ranges that they
 * share with other tokens (KIVI, OScaR), so copies of this row are encoded in their place. In a page of sinks only it is
 * the last row.
 */
export const firstCodedRow = ({ pageTokens, sinks }: SinkRule, page: number): number =>
  Math.max(0, Math.min(pageTokens - 1, sinks - page * pageTokens));
