/** RoPE on adjacent pairs of dims. */

/** Rotates each pair by `positions` times its frequency (radians per position), in place. Other dims are unchanged. */
export function applyRope(x: Float64Array, frequencies: Float64Array, positions: number): void {
  for (let i = 0; i < frequencies.length; i++) {
    const [cos, sin] = [Math.cos(frequencies[i] * positions), Math.sin(frequencies[i] * positions)];
    const [a, b] = [x[2 * i], x[2 * i + 1]];
    x[2 * i] = a * cos - b * sin;
    x[2 * i + 1] = a * sin + b * cos;
  }
}

/** The frequencies of RoPE without scaling, for synthetic keys; a real model's are in its config. */
export const createRopeFrequencies = (headDim: number, base = 10_000): Float64Array =>
  Float64Array.from({ length: Math.floor(headDim / 2) }, (_, i) => base ** ((-2 * i) / headDim));
