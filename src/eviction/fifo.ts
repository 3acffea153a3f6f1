import { createOrdered, type Evictable, type EvictionPolicy } from './eviction.ts';

/** First cached, first evicted. */
export function createFifo<T extends Evictable & { readonly id: number }>(): EvictionPolicy<T> {
  return createOrdered(({ id }) => id);
}
