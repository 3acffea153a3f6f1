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
  return {
    get size() {
      return values.size;
    },
    put(key, value) {
      values.delete(key);
      values.set(key, value);
      const max = maxSize();
      for (const oldest of values.keys()) {
        if (values.size <= max) return;
        values.delete(oldest);
      }
    },
    take(key) {
      const value = values.get(key);
      values.delete(key);
      return value;
    },
  };
}
