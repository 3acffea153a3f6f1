/** A binary heap. */

export interface Heap<T> {
  readonly size: number;
  push(item: T): void;
  /** Removes and returns the first item. */
  pop(): T | undefined;
  /** Keeps only these items. */
  filter(keep: (item: T) => boolean): void;
}

export function createHeap<T>(precedes: (a: T, b: T) => boolean): Heap<T> {
  let items: T[] = [];
  const swap = (a: number, b: number) => {
    [items[a], items[b]] = [items[b], items[a]];
  };
  const siftDown = (start: number) => {
    for (let at = start; ; ) {
      let first = at;
      for (const child of [2 * at + 1, 2 * at + 2])
        if (child < items.length && precedes(items[child], items[first])) first = child;
      if (first === at) return;
      swap(at, first);
      at = first;
    }
  };
  return {
    get size() {
      return items.length;
    },
    push(item) {
      let at = items.push(item) - 1;
      for (let parent = (at - 1) >> 1; at > 0 && precedes(items[at], items[parent]); parent = (at - 1) >> 1) {
        swap(at, parent);
        at = parent;
      }
    },
    pop() {
      const first = items[0];
      const last = items.pop();
      if (items.length > 0) {
        items[0] = last!;
        siftDown(0);
      }
      return first;
    },
    filter(keep) {
      items = items.filter(keep);
      for (let at = (items.length >> 1) - 1; at >= 0; at--) siftDown(at);
    },
  };
}
