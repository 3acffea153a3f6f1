/** What an error costs by its direction: e^T M e is how much it moves a layer's output. */

/**
 * [head][dim][dim]: what a head gives goes through its columns of the output matrix W, [width][heads x headDim]; W^T W
 * of each.
 */
export function outputGrams(
  output: Float32Array,
  { heads, headDim }: { heads: number; headDim: number },
): Float32Array<ArrayBuffer> {
  const inputs = heads * headDim;
  const grams = new Float64Array(inputs * headDim);
  for (let row = 0; row < output.length; row += inputs) {
    for (let i = 0; i < inputs; i++) {
      const head = i - (i % headDim);
      const x = output[row + i];
      for (let j = 0, at = i * headDim; j < headDim; j++) grams[at + j] += x * output[row + head + j];
    }
  }
  return Float32Array.from(grams);
}

/** [kv head][dim][dim]: the heads that share a value, each by how much it looks at values. */
export function valueMetric(
  grams: Float32Array,
  shares: Float64Array,
  { heads, kvHeads, headDim }: { heads: number; kvHeads: number; headDim: number },
): Float64Array {
  const size = headDim * headDim;
  const metric = new Float64Array(kvHeads * size);
  for (let i = 0; i < grams.length; i++) {
    const head = Math.floor(i / size);
    metric[Math.floor((head * kvHeads) / heads) * size + (i % size)] += shares[head] * grams[i];
  }
  return metric;
}

/** R M R^T, in place, R turning by so many positions: pairs of rows turn, then pairs of columns. */
export function turnBothSides(m: Float64Array, dim: number, turn: Float64Array, positions: number): void {
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
