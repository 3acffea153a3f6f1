/**
 * Distributes a budget over units (quads or single dims). `losses` is [unit][amount], for amounts from 0 to levels - 1.
 * Greedy: the unit with the largest drop of the loss per amount comes first. All larger amounts are considered, so that a
 * flat first step does not hide a steep second one (the convex hull).
 */
export function allocateBits(losses: Float32Array, levels: number, budget: number): Uint8Array {
  const units = losses.length / levels;
  const amounts = new Uint8Array(units);
  const heap: { gain: number; unit: number; to: number }[] = [];
  const precedes = (a: number, b: number) =>
    heap[a].gain > heap[b].gain || (heap[a].gain === heap[b].gain && heap[a].unit < heap[b].unit);
  const swap = (a: number, b: number) => {
    [heap[a], heap[b]] = [heap[b], heap[a]];
  };
  const push = (unit: number) => {
    const current = amounts[unit];
    let best: { gain: number; unit: number; to: number } | undefined;
    for (let to = current + 1; to < levels; to++) {
      const gain = (losses[unit * levels + current] - losses[unit * levels + to]) / (to - current);
      if (!best || gain > best.gain) best = { gain, unit, to };
    }
    if (!best) return;
    let at = heap.push(best) - 1;
    for (let parent = (at - 1) >> 1; at > 0 && precedes(at, parent); at = parent, parent = (at - 1) >> 1)
      swap(at, parent);
  };
  const pop = () => {
    const top = heap[0];
    const last = heap.pop()!;
    if (heap.length > 0) {
      heap[0] = last;
      for (let at = 0; ; ) {
        let first = at;
        for (const child of [2 * at + 1, 2 * at + 2]) if (child < heap.length && precedes(child, first)) first = child;
        if (first === at) break;
        swap(at, first);
        at = first;
      }
    }
    return top;
  };

  for (let unit = 0; unit < units; unit++) push(unit);
  let remaining = budget;
  while (heap.length > 0) {
    const { unit, to } = pop();
    const cost = to - amounts[unit];
    // Skip a step that does not fit; smaller steps of other units may fit.
    if (cost > remaining) continue;
    remaining -= cost;
    amounts[unit] = to;
    push(unit);
  }
  return amounts;
}
