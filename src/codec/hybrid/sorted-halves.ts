/**
 * The finer half by calibrated variance (`-v`). A head's dims are sorted by variance, and each half is rotated separately,
 * so that the energy of the large dims stays in the finer half. Levels are scaled by the root mean square of their half.
 *
 * Choosing the half after the rotation gains less: a rotation spreads what it would choose by (docs/codecs.md).
 */
import type { Shape } from '../codec.ts';
import { linearMapDomain } from '../domain.ts';
import type { CodecRequest } from '../family.ts';
import type { Domain } from '../page-codec.ts';
import { toMatrix } from '../parts/rotation.ts';
import { createRotation } from '../turbo/turbo.ts';

/** Scales of the levels of the finer and the coarser half; 1 for vectors whose halves have the same energy. */
export type LevelScales = readonly [number, number];

/** Maximum of log2(energy of the finer half / energy of the coarser half). */
const MAX_LOG_RATIO = 10;

/** [kv head][dim]: the mean square over all samples, [kv head][sample][dim]. */
export function variancePerDim(vectors: Float32Array, count: number, { headDim, kvHeads }: Shape): Float32Array {
  const variance = new Float64Array(kvHeads * headDim);
  vectors.forEach((x, i) => {
    variance[Math.floor(i / (count * headDim)) * headDim + (i % headDim)] += x ** 2 / count;
  });
  return Float32Array.from(variance);
}

/** y = (R1 fine dims, R2 coarse dims): an orthogonal matrix per head. */
export function sortedHalvesDomain(request: CodecRequest, variance: Float32Array): Domain {
  const { headDim, kvHeads } = request.shape;
  const half = Math.floor(headDim / 2);
  const [fine, coarse] = [createRotation(request, half), createRotation(request, headDim - half)];
  const matrices = new Float32Array(kvHeads * headDim * headDim);
  for (let head = 0; head < kvHeads; head++) {
    const ofHead = variance.subarray(head * headDim, (head + 1) * headDim);
    const order = Array.from(ofHead.keys()).sort((a, b) => ofHead[b] - ofHead[a] || a - b);
    const sortAndRotate = (x: Float64Array) => {
      const y = Float64Array.from(order, dim => x[dim]);
      fine.forward(y.subarray(0, half));
      coarse.forward(y.subarray(half));
      return y;
    };
    matrices.set(toMatrix(sortAndRotate, headDim, headDim), head * headDim * headDim);
  }
  return linearMapDomain(headDim, { encode: matrices, decode: matrices });
}

/**
 * One pair of scales for all heads, with a power of two as the ratio of energies: GPU kernels contain the levels, and
 * layers with the same levels share them. Rounding costs 1 to 2 % of the error.
 */
export function levelScales(variance: Float32Array, { headDim, kvHeads }: Shape): LevelScales {
  const half = Math.floor(headDim / 2);
  const energy = (sorted: Float32Array) => Math.max(1e-30, sorted.reduce((sum, v) => sum + v, 0) / sorted.length);
  let logRatio = 0;
  for (let head = 0; head < kvHeads; head++) {
    const sorted = variance.slice(head * headDim, (head + 1) * headDim).sort();
    logRatio += Math.log2(energy(sorted.subarray(headDim - half)) / energy(sorted.subarray(0, headDim - half)));
  }
  const ratio = 2 ** Math.min(MAX_LOG_RATIO, Math.max(0, Math.round(logRatio / kvHeads)));
  return [Math.sqrt((2 * ratio) / (1 + ratio)), Math.sqrt(2 / (1 + ratio))];
}
