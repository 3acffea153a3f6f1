/** Mixtures of experts, on devices that the host can read. */

/**
 * Writes the ids of the experts with the largest logits, best first (of equal ones the first), and their weights: the
 * softmax over all experts, or over the chosen ones.
 */
export function chooseExperts(
  logits: Float32Array,
  experts: Float32Array,
  weights: Float32Array,
  normalize: boolean,
): void {
  const isChosen = new Uint8Array(logits.length);
  for (let i = 0; i < experts.length; i++) {
    let best = -1;
    for (let e = 0; e < logits.length; e++) if (!isChosen[e] && (best < 0 || logits[e] > logits[best])) best = e;
    isChosen[best] = 1;
    experts[i] = best;
  }
  const max = logits[experts[0]];
  const sum = (normalize ? experts.map(e => logits[e]) : logits).reduce((sum, x) => sum + Math.exp(x - max), 0);
  for (let i = 0; i < experts.length; i++) weights[i] = Math.exp(logits[experts[i]] - max) / sum;
}
