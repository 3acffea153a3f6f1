/**
 * Online softmax: a partial attention result {o, m, l} over some tokens is the weighted sum o of their values, the
 * maximum score m, and the sum l of the weights exp(score - m). Merging the states of two disjoint sets of tokens gives
 * the state of their union. The state over no tokens is the neutral element.
 */
export interface AttentionState {
  o: Float32Array;
  m: number;
  l: number;
}

/** The state of no tokens, from which merging starts. */
export function emptyState(length: number): AttentionState {
  return { o: new Float32Array(length), m: Number.NEGATIVE_INFINITY, l: 0 };
}

/** Merges `other` into `state`. */
export function mergeStates(state: AttentionState, other: AttentionState): void {
  if (other.l === 0) return;
  const m = Math.max(state.m, other.m);
  const [a, b] = [weight(state, m), weight(other, m)];
  for (let i = 0; i < state.o.length; i++) state.o[i] = a * state.o[i] + b * other.o[i];
  state.l = a * state.l + b * other.l;
  state.m = m;
}

const weight = (state: AttentionState, m: number) => (state.l === 0 ? 0 : Math.exp(state.m - m));

/** The attention output: zero over no tokens. */
export function attentionOutput({ o, l }: AttentionState): Float32Array {
  return l === 0 ? new Float32Array(o.length) : o.map(x => x / l);
}
