/** mead's uniform sibling: a mid-rise code of 0 to 6 bits a coefficient, with a step fitted for each. */
import type { Shape } from '../codec.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { prefixSums } from './books.ts';

export const MOST_BITS = 6;
/** The best step for N(0, 1), by bits. */
const GAUSSIAN = [0, 1.5958, 0.9965, 0.5858, 0.3354, 0.1881, 0.1041];
/** Steps that are tried, as parts of what a Gaussian would want, in order. */
const TRIES = [0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.8, 2.2];
/** Samples that a step is chosen by. */
const MOST_SAMPLES = 4096;

/** The best step for 1 to 6 bits, and the mean of weight x squared error with 0 to 6. */
export function fitSteps(
  count: number,
  value: (sample: number) => number,
  weights: Float32Array,
): { steps: Float32Array; loss: Float32Array } {
  const stride = Math.max(1, Math.floor(count / MOST_SAMPLES));
  const used = Math.floor((count - 1) / stride) + 1;
  const x = Float64Array.from({ length: used }, (_, i) => value(i * stride));
  const w = Float64Array.from({ length: used }, (_, i) => weights[i * stride] / used);
  const steps = new Float32Array(MOST_BITS + 1);
  const loss = new Float32Array(MOST_BITS + 1);
  for (let i = 0; i < used; i++) loss[0] += w[i] * x[i] ** 2;
  const spread = Math.sqrt(x.reduce((sum, v) => sum + v * v, 0) / used);
  for (let bits = 1; bits <= MOST_BITS; bits++) {
    loss[bits] = loss[0];
    for (const part of TRIES) {
      const step = Math.fround(part * spread * GAUSSIAN[bits]);
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
        // Too fine a step clips, too coarse a one rounds: past the best it only gets worse.
        break;
      }
    }
  }
  return { steps, loss };
}

/**
 * A page:
 *   codes   for each head and dim a column of pageTokens codes of its own bits (see pack.ts), two's complement, c for
 *           (c + 1/2) step; nothing where the plan gave it none.
 * `all` is [kv head][dim][bits]: the steps as they were fitted.
 */
export function uniformFormat(all: Float32Array, bits: Uint8Array, { headDim, pageTokens }: Shape): PageFormat {
  const grids = Array.from(bits, b => createGrid(pageTokens, 1, b, 'columns'));
  const offsets = prefixSums(grids.map(({ bytes }) => bytes));
  const steps = Float32Array.from(bits, (b, unit) => all[unit * (MOST_BITS + 1) + b]);
  const bytes = offsets[bits.length];
  const column = (page: Uint8Array, unit: number) => page.subarray(offsets[unit], offsets[unit + 1]);
  return {
    fields: [
      {
        name: 'codes',
        bytes,
        per: 'page',
        about: `for each head and dim, ${pageTokens} codes of its own 0 to 6 bits, two’s complement, (code + 1/2) step`,
      },
    ],
    fragment: { kind: 'mixed', bits, steps },
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
