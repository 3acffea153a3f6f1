/** The uniform variant of mead: a mid-rise code of 0 to 6 bits per coefficient, with a fitted quantization step. */
import type { Shape } from '../codec.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { prefixSums } from './additive.ts';

export const MAX_BITS = 6;
/** The optimal step for N(0, 1), by bits. */
const GAUSSIAN_STEP = [0, 1.5958, 0.9965, 0.5858, 0.3354, 0.1881, 0.1041];
/** Candidate steps, relative to the optimal step of a Gaussian, ascending. */
const STEP_FACTORS = [0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.8, 2.2];
/** Maximum number of samples that a step is fitted to. */
const MAX_SAMPLES = 4096;

/** The best step for 1 to 6 bits, and the weighted mean squared error with 0 to 6 bits. */
export function fitSteps(
  count: number,
  value: (sample: number) => number,
  weights: Float32Array,
): { steps: Float32Array; loss: Float32Array } {
  const stride = Math.max(1, Math.floor(count / MAX_SAMPLES));
  const used = Math.floor((count - 1) / stride) + 1;
  const x = Float64Array.from({ length: used }, (_, i) => value(i * stride));
  const w = Float64Array.from({ length: used }, (_, i) => weights[i * stride] / used);
  const steps = new Float32Array(MAX_BITS + 1);
  const loss = new Float32Array(MAX_BITS + 1);
  for (let i = 0; i < used; i++) loss[0] += w[i] * x[i] ** 2;
  const rms = Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / used);
  for (let bits = 1; bits <= MAX_BITS; bits++) {
    loss[bits] = loss[0];
    for (const factor of STEP_FACTORS) {
      const step = Math.fround(factor * rms * GAUSSIAN_STEP[bits]);
      const half = 2 ** (bits - 1);
      let error = 0;
      for (let i = 0; i < used; i++) {
        const code = Math.max(-half, Math.min(half - 1, Math.floor(x[i] / step)));
        error += w[i] * (x[i] - (code + 0.5) * step) ** 2;
      }
      if (error < loss[bits]) {
        loss[bits] = error;
        steps[bits] = step;
      } else if (steps[bits] > 0) {
        // Small steps clip and large steps round: past the minimum the error only grows.
        break;
      }
    }
  }
  return { steps, loss };
}

/**
 * A page:
 *   codes   for each head and dim a column of pageTokens codes (see pack.ts) with the bits that the plan gave it, possibly
 *           0. Two's complement, value (code + 1/2) step.
 * `allSteps` is [kv head][dim][bits]: the fitted steps.
 */
export function uniformFormat(allSteps: Float32Array, bits: Uint8Array, { headDim, pageTokens }: Shape): PageFormat {
  const grids = Array.from(bits, b => createGrid(pageTokens, 1, b, 'columns'));
  const offsets = prefixSums(grids.map(({ bytes }) => bytes));
  const steps = Float32Array.from(bits, (b, unit) => allSteps[unit * (MAX_BITS + 1) + b]);
  const bytes = offsets[bits.length];
  const column = (page: Uint8Array, unit: number) => page.subarray(offsets[unit], offsets[unit + 1]);
  return {
    fields: [
      {
        name: 'codes',
        bytes,
        per: 'page',
        about: `for each head and dim, ${pageTokens} codes of 0 to 6 bits, two’s complement, value (code + 1/2) step`,
      },
    ],
    encoding: { kind: 'mixed', bitsPerDim: bits, steps },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        for (let i = 0; i < headDim; i++) {
          const unit = head * headDim + i;
          if (bits[unit] === 0) continue;
          const half = 2 ** (bits[unit] - 1);
          for (let t = 0; t < tokens; t++) {
            const value = steps[unit] > 0 ? vectors[t * headDim + i] / steps[unit] : 0;
            const code = Math.max(-half, Math.min(half - 1, Math.floor(value)));
            grids[unit].write(column(page, unit), t, 0, code & (2 * half - 1));
          }
        }
      });
    },
    read(page, head, token, out) {
      for (let i = 0; i < headDim; i++) {
        const unit = head * headDim + i;
        const width = bits[unit];
        if (width === 0) {
          out[i] = 0;
          continue;
        }
        const code = grids[unit].read(column(page, unit), token, 0);
        const signed = code >= 2 ** (width - 1) ? code - 2 ** width : code;
        out[i] = (signed + 0.5) * steps[unit];
      }
    },
  };
}
