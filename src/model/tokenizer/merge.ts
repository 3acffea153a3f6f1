/** The merge loop of both byte-pair encodings: merge the cheapest adjacent pair first, the leftmost among equals. */

/** The cost of merging text[start, middle) with text[middle, end); undefined if they cannot merge. */
export type MergeCost = (text: string, start: number, middle: number, end: number) => number | undefined;

/** Merges the characters of a text until no adjacent pair can merge. */
export function mergePairs(text: string, cost: MergeCost): string[] {
  // A symbol is identified by its start i: end[i] is its end, prev[i] the start of the previous symbol. A symbol that
  // was merged into the previous one has end 0.
  const end = new Int32Array(text.length);
  const prev = new Int32Array(text.length);
  let last = -1;
  for (let i = 0; i < text.length; i = end[i]) {
    end[i] = i + ((text.codePointAt(i) ?? 0) > 0xffff ? 2 : 1);
    prev[i] = last;
    last = i;
  }

  const queue = new PairQueue();
  const enqueue = (left: number) => {
    const middle = end[left];
    if (middle >= text.length) return;
    const stop = end[middle];
    const pairCost = cost(text, left, middle, stop);
    if (pairCost !== undefined) queue.push({ cost: pairCost, left, middle, stop });
  };
  for (let i = 0; i < text.length; i = end[i]) enqueue(i);

  for (let pair = queue.pop(); pair; pair = queue.pop()) {
    const { left, middle, stop } = pair;
    // Stale: one of the two has merged since.
    if (end[left] !== middle || end[middle] !== stop) continue;
    end[left] = stop;
    end[middle] = 0;
    if (stop < text.length) prev[stop] = left;
    if (prev[left] >= 0) enqueue(prev[left]);
    enqueue(left);
  }

  const pieces: string[] = [];
  for (let i = 0; i < text.length; i = end[i]) pieces.push(text.slice(i, end[i]));
  return pieces;
}

interface Pair {
  cost: number;
  left: number;
  middle: number;
  stop: number;
}

/** A binary min-heap by cost, then by position. */
class PairQueue {
  readonly #heap: Pair[] = [];

  push(pair: Pair): void {
    const heap = this.#heap;
    let i = heap.length;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!precedes(pair, heap[parent])) break;
      heap[i] = heap[parent];
      i = parent;
    }
    heap[i] = pair;
  }

  pop(): Pair | undefined {
    const heap = this.#heap;
    const top = heap[0];
    const pair = heap.pop();
    if (!pair || heap.length === 0) return top;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && precedes(heap[child + 1], heap[child])) child++;
      if (!precedes(heap[child], pair)) break;
      heap[i] = heap[child];
      i = child;
    }
    heap[i] = pair;
    return top;
  }
}

function precedes(a: Pair, b: Pair): boolean {
  return a.cost < b.cost || (a.cost === b.cost && a.left < b.left);
}
