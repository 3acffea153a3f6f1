/** Keys of evicted leaves with what is remembered of each; the oldest are forgotten. */

/** About 30 MB when full. */
export const MAX_REMEMBERED = 1 << 18;

export interface Memory<V> {
  readonly size: number;
  put(key: number, value: V): void;
  /** Removes and returns it. */
  take(key: number): V | undefined;
}

export function createMemory<V>(maxSize: () => number = () => MAX_REMEMBERED): Memory<V> {
  /** In order of insertion. */
  const values = new Map<number, V>();
  // Kept, because a new iterator would first skip all that was deleted: 350 us per key when it is full.
  let oldest = values.keys();
  return {
    get size() {
      return values.size;
    },
    put(key, value) {
      values.delete(key);
      values.set(key, value);
      for (const max = maxSize(); values.size > max; ) {
        const { value: first, done } = oldest.next();
        if (done) oldest = values.keys();
        else values.delete(first);
      }
    },
    take(key) {
      const value = values.get(key);
      values.delete(key);
      return value;
    },
  };
}
