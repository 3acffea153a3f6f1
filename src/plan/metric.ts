/** What an error costs: e^T M e is how much a wrong key moves the scores, or a wrong value the layer's output. */
import { createRandom } from '../codec/parts/random.ts';

/** Distances between query and key: half of them near, half of them anywhere in a row of 2048. */
const NEAR = 256;
const FAR = 2048;
const DISTANCES = 48;

/**
 * [kv head][dim][dim]: a key is read by queries at many distances D behind it, turned by R_D; the mean of R_D S R_D^T
 * over them, S being the second moment of queries before RoPE.
 */
export function keyMetric(moment: Float64Array, headDim: number, turn: Float64Array): Float64Array {
  const random = createRandom(96);
  const distances = [NEAR, FAR].flatMap(most =>
    Array.from({ length: DISTANCES }, () => Math.floor(random.uniform() * most)),
  );
  const metric = new Float64Array(moment.length);
  const turned = new Float64Array(headDim * headDim);
  for (let at = 0; at < moment.length; at += turned.length) {
    for (const distance of distances) {
      turned.set(moment.subarray(at, at + turned.length));
      turnBothSides(turned, headDim, turn, distance);
      for (let i = 0; i < turned.length; i++) metric[at + i] += turned[i] / distances.length;
    }
  }
  return metric;
}

/** R M R^T, in place: pairs of rows turn, then pairs of columns. */
function turnBothSides(m: Float64Array, dim: number, turn: Float64Array, positions: number): void {
  for (const [pairStep, lineStep] of [
    [dim, 1],
    [1, dim],
  ]) {
    for (let pair = 0; pair < turn.length; pair++) {
      const [cos, sin] = [Math.cos(turn[pair] * positions), Math.sin(turn[pair] * positions)];
      for (let line = 0; line < dim; line++) {
        const at = 2 * pair * pairStep + line * lineStep;
        const [a, b] = [m[at], m[at + pairStep]];
        m[at] = a * cos - b * sin;
        m[at + pairStep] = a * sin + b * cos;
      }
    }
  }
}

/**
 * [kv head][dim][dim]: a head's value goes through its columns of the output matrix W, [width][heads x headDim]; the sum
 * of W^T W over the heads that share it.
 */
export function valueMetric(
  output: Float32Array,
  { heads, kvHeads, headDim }: { heads: number; kvHeads: number; headDim: number },
): Float64Array {
  const inputs = heads * headDim;
  const group = heads / kvHeads;
  const metric = new Float64Array(kvHeads * headDim * headDim);
  for (let row = 0; row < output.length; row += inputs) {
    for (let head = 0; head < heads; head++) {
      const w = output.subarray(row + head * headDim, row + (head + 1) * headDim);
      const base = Math.floor(head / group) * headDim * headDim;
      for (let i = 0; i < headDim; i++) {
        for (let j = 0, at = base + i * headDim; j <= i; j++) metric[at + j] += w[i] * w[j];
      }
    }
  }
  for (let base = 0; base < metric.length; base += headDim * headDim) {
    for (let i = 0; i < headDim; i++) {
      for (let j = 0; j < i; j++) metric[base + j * headDim + i] = metric[base + i * headDim + j];
    }
  }
  return metric;
}
