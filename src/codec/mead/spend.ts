/**
 * Where bits go: units (quads, or single dims) with a loss for every amount from 0 to the most, and one budget for all.
 * The steepest drop an amount comes first, looking ahead over all larger amounts, so that a flat first step does not
 * hide a steep second one.
 */
export function spend(losses: Float32Array, levels: number, budget: number): Uint8Array {
  const units = losses.length / levels;
  const amounts = new Uint8Array(units);
  const heap: { gain: number; unit: number; to: number }[] = [];
  const before = (a: number, b: number) =>
    heap[a].gain > heap[b].gain || (heap[a].gain === heap[b].gain && heap[a].unit < heap[b].unit);
  const swap = (a: number, b: number) => {
    [heap[a], heap[b]] = [heap[b], heap[a]];
  };
  const push = (unit: number) => {
    const now = amounts[unit];
    let best: { gain: number; unit: number; to: number } | undefined;
    for (let to = now + 1; to < levels; to++) {
      const gain = (losses[unit * levels + now] - losses[unit * levels + to]) / (to - now);
      if (!best || gain > best.gain) best = { gain, unit, to };
    }
    if (!best) return;
    let at = heap.push(best) - 1;
    for (let parent = (at - 1) >> 1; at > 0 && before(at, parent); at = parent, parent = (at - 1) >> 1)
      swap(at, parent);
  };
  const pop = () => {
    const top = heap[0];
    const last = heap.pop()!;
    if (heap.length > 0) {
      heap[0] = last;
      for (let at = 0; ; ) {
        let first = at;
        for (const child of [2 * at + 1, 2 * at + 2]) if (child < heap.length && before(child, first)) first = child;
        if (first === at) break;
        swap(at, first);
        at = first;
      }
    }
    return top;
  };

  for (let unit = 0; unit < units; unit++) push(unit);
  let left = budget;
  while (heap.length > 0) {
    const { unit, to } = pop();
    const cost = to - amounts[unit];
    // What does not fit is passed over; smaller steps of others may still.
    if (cost > left) continue;
    left -= cost;
    amounts[unit] = to;
    push(unit);
  }
  return amounts;
}
