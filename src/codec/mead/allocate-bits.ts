import { createHeap } from '../../util/heap.ts';

/**
 * Distributes a budget over units (quads or single dims). `losses` is [unit][amount], for amounts from 0 to levels - 1.
 * Greedy: the unit with the largest drop of the loss per amount comes first. All larger amounts are considered, so that a
 * flat first step does not hide a steep second one (the convex hull).
 */
export function allocateBits(losses: Float32Array, levels: number, budget: number): Uint8Array {
  const units = losses.length / levels;
  const amounts = new Uint8Array(units);
  const heap = createHeap<{ gain: number; unit: number; to: number }>(
    (a, b) => a.gain > b.gain || (a.gain === b.gain && a.unit < b.unit),
  );
  const push = (unit: number) => {
    const current = amounts[unit];
    let best: { gain: number; unit: number; to: number } | undefined;
    for (let to = current + 1; to < levels; to++) {
      const gain = (losses[unit * levels + current] - losses[unit * levels + to]) / (to - current);
      if (!best || gain > best.gain) best = { gain, unit, to };
    }
    if (best) heap.push(best);
  };

  for (let unit = 0; unit < units; unit++) push(unit);
  let remaining = budget;
  for (let step = heap.pop(); step; step = heap.pop()) {
    const { unit, to } = step;
    const cost = to - amounts[unit];
    // Skip a step that does not fit; smaller steps of other units may fit.
    if (cost > remaining) continue;
    remaining -= cost;
    amounts[unit] = to;
    push(unit);
  }
  return amounts;
}
