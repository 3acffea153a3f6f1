/**
 * The state algebra: a partial attention result {o, m, l} over some tokens is the weighted sum o of their values, the
 * largest score m, and the sum l of the weights exp(score - m). Merging the states of two sets of tokens gives the
 * state of their union, in whatever way the tokens were divided; the state over no tokens is the neutral element.
 */
export interface State {
  o: Float32Array;
  m: number;
  l: number;
}

export function emptyState(length: number): State {
  return { o: new Float32Array(length), m: Number.NEGATIVE_INFINITY, l: 0 };
}

/** Folds `other` into `state`. */
export function merge(state: State, other: State): void {
  if (other.l === 0) return;
  const m = Math.max(state.m, other.m);
  const [a, b] = [weight(state, m), weight(other, m)];
  for (let i = 0; i < state.o.length; i++) state.o[i] = a * state.o[i] + b * other.o[i];
  state.l = a * state.l + b * other.l;
  state.m = m;
}

const weight = (state: State, m: number) => (state.l === 0 ? 0 : Math.exp(state.m - m));

/** The attention output: zero over no tokens. */
export function output({ o, l }: State): Float32Array {
  return l === 0 ? new Float32Array(o.length) : o.map(x => x / l);
}
