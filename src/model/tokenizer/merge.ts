/** What both kinds of byte-pair encoding share: neighbours merge, the cheapest pair first and the leftmost of equals. */

/** What it costs to merge the runs `left` to `middle` and `middle` to `stop` of a text; nothing if they cannot. */
export type Cost = (text: string, left: number, middle: number, stop: number) => number | undefined;

/** Merges a text's characters until no two neighbours can. */
export function mergePairs(text: string, cost: Cost): string[] {
  // Symbols are runs of the text, named by where they start: end[i] is where it stops, prev[i] where the one before
  // starts. A start that was merged away has end 0.
  const end = new Int32Array(text.length);
  const prev = new Int32Array(text.length);
  let last = -1;
  for (let i = 0; i < text.length; i = end[i]!) {
    end[i] = i + (text.codePointAt(i)! > 0xffff ? 2 : 1);
    prev[i] = last;
    last = i;
  }

  const queue = new PairQueue();
  const offer = (left: number) => {
    const middle = end[left]!;
    if (middle >= text.length) return;
    const price = cost(text, left, middle, end[middle]!);
    if (price !== undefined) queue.push({ cost: price, left, middle, stop: end[middle]! });
  };
  for (let i = 0; i < text.length; i = end[i]!) offer(i);

  for (let pair = queue.pop(); pair; pair = queue.pop()) {
    const { left, middle, stop } = pair;
    // Stale, unless both halves are still the neighbours that were offered.
    if (end[left] !== middle || end[middle] !== stop) continue;
    end[left] = stop;
    end[middle] = 0;
    if (stop < text.length) prev[stop] = left;
    if (prev[left]! >= 0) offer(prev[left]!);
    offer(left);
  }

  const pieces: string[] = [];
  for (let i = 0; i < text.length; i = end[i]!) pieces.push(text.slice(i, end[i]));
  return pieces;
}

interface Pair {
  cost: number;
  left: number;
  middle: number;
  stop: number;
}

/** A binary heap: the cheapest first, then the leftmost. */
class PairQueue {
  readonly #heap: Pair[] = [];

  push(pair: Pair): void {
    const heap = this.#heap;
    let i = heap.length;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!before(pair, heap[parent]!)) break;
      heap[i] = heap[parent]!;
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
      if (child + 1 < heap.length && before(heap[child + 1]!, heap[child]!)) child++;
      if (!before(heap[child]!, pair)) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = pair;
    return top;
  }
}

function before(a: Pair, b: Pair): boolean {
  return a.cost < b.cost || (a.cost === b.cost && a.left < b.left);
}
