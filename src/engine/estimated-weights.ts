/**
 * Sums of softmax weights over a whole vocabulary, estimated: `Math.exp` of every logit would take a large part of a
 * pass with many sequences. A decision that the error could change is not made here; the caller then sums exactly.
 */

/** Bound of the error of an estimated sum and of the rounding of an exact one, relative to the sum. */
export const ESTIMATE_ERROR = 1e-9;

/** Ids per partial sum. */
const BLOCK = 256;
const STEPS = 2048;
/** Weights below 2 ** -EXPONENTS are left out: even a million of them are less than the error. */
const EXPONENTS = 64;
const FRACTIONS = Float64Array.from({ length: STEPS }, (_, i) => 2 ** (-i / STEPS));
const POWERS = Float64Array.from({ length: EXPONENTS }, (_, i) => 2 ** -i);

export interface EstimatedWeights {
  readonly total: number;
  /** The first id at which the cumulative weight exceeds `u * total`; undefined if the error could change it. */
  draw(u: number): number | undefined;
}

/** The weights exp((logit - max) / temperature) of logits of at least `floor`. */
export function estimateWeights(
  logits: Float32Array,
  max: number,
  temperature: number,
  floor: number,
): EstimatedWeights {
  const scale = (STEPS * Math.LOG2E) / temperature;
  const sumOf = (from: number, to: number) => sumRange(logits, from, Math.min(to, logits.length), max, scale, floor);
  const sums = new Float64Array(Math.ceil(logits.length / BLOCK));
  let total = 0;
  for (let b = 0; b < sums.length; b++) {
    sums[b] = sumOf(b * BLOCK, (b + 1) * BLOCK);
    total += sums[b]!;
  }
  return {
    total,
    draw(u) {
      const target = u * total;
      let [block, id, before] = [0, 0, 0];
      while (block < sums.length && before + sums[block]! <= target) before += sums[block++]!;
      let weight = 0;
      for (id = block * BLOCK; id < logits.length; id++) {
        weight = sumOf(id, id + 1);
        if (before + weight > target) break;
        before += weight;
      }
      const error = ESTIMATE_ERROR * total;
      return before + error < target && target < before + weight - error ? id : undefined;
    },
  };
}

/** The sum of the weights of a range of ids. */
function sumRange(logits: Float32Array, from: number, to: number, max: number, scale: number, floor: number): number {
  let sum = 0;
  for (let id = from; id < to; id++) {
    const logit = logits[id]!;
    const steps = (max - logit) * scale;
    if (!(logit >= floor && steps < STEPS * EXPONENTS)) continue;
    const whole = steps | 0;
    // A table up to the last whole step, and a Taylor series for the rest, whose error is below 1e-11.
    const rest = (whole - steps) * (Math.LN2 / STEPS);
    sum += FRACTIONS[whole & (STEPS - 1)]! * POWERS[whole >> 11]! * (1 + rest + 0.5 * rest * rest);
  }
  return sum;
}
