/** Mixtures of experts, on devices that the host can read. */
import { MIN_SCORE_SUM, type RoutingRule } from './device.ts';

/** Writes the ids of the chosen experts, best first (of equal ones the first), and their weights. */
export function chooseExperts(
  logits: Float32Array,
  experts: Float32Array,
  weights: Float32Array,
  { scores, normalized, scale, groups }: RoutingRule,
  bias?: Float32Array,
): void {
  const max = logits.reduce((a, b) => Math.max(a, b));
  const unscaled = (x: number) => (scores === 'sigmoid' ? 1 / (1 + Math.exp(-x)) : Math.exp(x - max));
  const total = scores === 'sigmoid' ? 1 : logits.reduce((sum, x) => sum + unscaled(x), 0);
  // Scores are in the order of logits, which are exact.
  const ranks = bias || groups ? logits.map((x, e) => unscaled(x) / total + (bias?.[e] ?? 0)) : logits;
  const isTaken = groups ? outsideBestGroups(ranks, groups) : new Uint8Array(logits.length);
  for (let i = 0; i < experts.length; i++) {
    let best = -1;
    for (let e = 0; e < ranks.length; e++) if (!isTaken[e] && (best < 0 || ranks[e] > ranks[best])) best = e;
    isTaken[best] = 1;
    experts[i] = best;
  }
  const chosen = Array.from(experts, e => unscaled(logits[e]));
  const sum = normalized
    ? Math.max(
        MIN_SCORE_SUM,
        chosen.reduce((sum, x) => sum + x, 0),
      )
    : total;
  weights.set(chosen.map(x => (scale * x) / sum));
}

/** One for each expert that is in none of the best groups; of equal groups, the first are better. */
function outsideBestGroups(ranks: Float32Array, { count, used }: NonNullable<RoutingRule['groups']>): Uint8Array {
  const size = ranks.length / count;
  const sums = Array.from({ length: count }, (_, g) => {
    const [best, second] = ranks.slice(g * size, (g + 1) * size).sort((a, b) => b - a);
    return Math.fround(best + second);
  });
  const isBetter = (a: number, b: number) => sums[a] > sums[b] || (sums[a] === sums[b] && a < b);
  const place = sums.map((_, g) => sums.filter((_, other) => isBetter(other, g)).length);
  return Uint8Array.from(ranks, (_, e) => Number(place[Math.floor(e / size)] >= used));
}
