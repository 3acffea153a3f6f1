/**
 * The visibility rule: a query at position t reads position n from codes if n >= sinks and
 * n < floor((t - recent) / P) P, else from f16. Everything that must know what a query sees asks here: sequences, devices,
 * codecs for vectors of one's own, memory estimates. It lives at the bottom so that all of them can.
 */

/** What of the rule decides how many pages are read from codes. */
export interface Sealing {
  pageTokens: number;
  /** Newest tokens that stay f16. */
  recent: number;
}

/** Pages that a query at this position reads from codes. */
export const sealedPages = (position: number, { pageTokens, recent }: Sealing): number =>
  Math.max(0, Math.floor((position - recent) / pageTokens));

/** The first position that reads this many pages from codes: the last of them is sealed just before it. */
export const sealPosition = (pages: number, { pageTokens, recent }: Sealing): number => pages * pageTokens + recent;

/** Pages of a sequence of this many tokens that are packed: what its last token read from codes. */
export const packedPages = (tokens: number, sealing: Sealing): number => sealedPages(tokens - 1, sealing);

/** Tokens that the f16 tail has room for: an unfinished page and the recent ones before it. */
export const tailRoom = ({ pageTokens, recent }: Sealing): number => pageTokens + recent;

/** What of the rule decides which tokens of sealed pages are read from f16 all the same. */
export interface Sinks {
  pageTokens: number;
  /** First tokens that stay f16. */
  sinks: number;
}

/** Sinks that a query reads from their f16 copies: those in the pages that it reads from codes. */
export const visibleSinks = (sealed: number, { pageTokens, sinks }: Sinks): number =>
  Math.min(sinks, sealed * pageTokens);

/** Tokens from `start`, a page's first, to skip in the codes: they are sinks. They may be more than the page has. */
export const skippedTokens = (start: number, sealed: number, shape: Sinks): number =>
  Math.max(0, visibleSinks(sealed, shape) - start);

/**
 * The first row of a page that is sealed as it is; rows before it are sealed as copies of it. They are sinks, which are
 * never read from codes: sealed as they are, they would widen the ranges that they share with other tokens (KIVI, OScaR)
 * for nothing. A page of sinks alone is never read; its last row is as good as any.
 */
export const firstCodedRow = ({ pageTokens, sinks }: Sinks, page: number): number =>
  Math.max(0, Math.min(pageTokens - 1, sinks - page * pageTokens));
