/** Error metrics: e^T M e is how much an error e of a key or value changes a layer's output. */

/**
 * [head][dim][dim]: the Gram matrices W^T W of each head's columns of the output matrix W, [width][heads x headDim], whose
 * rows are multiplied by the weights of the norm that follows, if there is one.
 */
export function outputGrams(
  output: Float32Array,
  { heads, headDim }: { heads: number; headDim: number },
  normWeights?: Float32Array,
): Float32Array<ArrayBuffer> {
  const inputs = heads * headDim;
  const grams = new Float64Array(inputs * headDim);
  for (let row = 0; row < output.length; row += inputs) {
    const weight = (normWeights?.[row / inputs] ?? 1) ** 2;
    for (let i = 0; i < inputs; i++) {
      const head = i - (i % headDim);
      const x = weight * output[row + i];
      for (let j = 0, at = i * headDim; j < headDim; j++) grams[at + j] += x * output[row + head + j];
    }
  }
  return Float32Array.from(grams);
}

/** [kv head][dim][dim]: the Gram matrices of the query heads of each KV head, weighted by their squared probabilities. */
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

/** R M R^T in place, where R is RoPE by `positions`: rotates pairs of rows, then pairs of columns. */
export function ropeBothSides(m: Float64Array, dim: number, frequencies: Float64Array, positions: number): void {
  for (const [pairStep, lineStep] of [
    [dim, 1],
    [1, dim],
  ]) {
    for (let pair = 0; pair < frequencies.length; pair++) {
      const [cos, sin] = [Math.cos(frequencies[pair] * positions), Math.sin(frequencies[pair] * positions)];
      for (let line = 0; line < dim; line++) {
        const i = 2 * pair * pairStep + line * lineStep;
        const [a, b] = [m[i], m[i + pairStep]];
        m[i] = a * cos - b * sin;
        m[i + pairStep] = a * sin + b * cos;
      }
    }
  }
}
