/**
 * Sinks stay f16 and are never read from codes, yet the first page has rows for them. Coded as they are, they would widen
 * the ranges that they share with other tokens (per channel over a group of tokens in KIVI and OScaR) for nothing. So the
 * rows of sinks are coded as copies of the first token behind them, on every device and in `codec/kv.ts`.
 */
import type { KvShape } from './device.ts';

/** The first row of a page that is coded as it is; rows before it are copies of it. */
export function firstCodedRow({ sinks, pageTokens }: Pick<KvShape, 'sinks' | 'pageTokens'>, page: number): number {
  // A page of nothing but sinks is never read: its last row is as good as any.
  return Math.max(0, Math.min(pageTokens - 1, sinks - page * pageTokens));
}
