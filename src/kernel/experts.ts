/** Mixtures of experts, on devices that the host can read. */

import type { ExpertWeighting } from './device.ts';

/** Writes the ids of the experts with the largest logits, best first (of equal ones the first), and their weights. */
export function chooseExperts(
  logits: Float32Array,
  experts: Float32Array,
  weights: Float32Array,
  weighting: ExpertWeighting,
): void {
  const isChosen = new Uint8Array(logits.length);
  for (let i = 0; i < experts.length; i++) {
    let best = -1;
    for (let e = 0; e < logits.length; e++) if (!isChosen[e] && (best < 0 || logits[e] > logits[best])) best = e;
    isChosen[best] = 1;
    experts[i] = best;
  }
  const chosen = experts.map(e => logits[e]);
  const max = chosen[0];
  const sum = (weighting === 'softmax of all' ? logits : chosen).reduce((sum, x) => sum + Math.exp(x - max), 0);
  const weightOf = (x: number) => (weighting === 'sigmoid' ? 1 / (1 + Math.exp(-x)) : Math.exp(x - max) / sum);
  weights.set(chosen.map(weightOf));
}
