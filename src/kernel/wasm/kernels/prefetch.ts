/**
 * Software prefetch: a loop loads the bytes that are read next, one part per iteration, while it computes. The hardware
 * prefetcher starts over with every block of a page.
 */
import { type I32, i32 } from '../emit.ts';
import type { Kernel } from '../module.ts';

export interface PrefetchRange {
  address: I32;
  bytes: number;
}

const CACHE_LINE = 64;

/** Returns an emitter of the prefetches of one loop iteration; `iterations` of them cover the range. */
export function prefetcher(k: Kernel, range: PrefetchRange | undefined, iterations: number): () => void {
  if (!range) return () => {};
  const step = Math.floor(range.bytes / iterations);
  const address = k.i32(range.address);
  return () => {
    for (let offset = 0; offset < step; offset += CACHE_LINE) k.do(i32.prefetch(address, offset));
    k.increment(address, step);
  };
}
