/**
 * The transform of mead, per head: samples are made page-relative, centered, and mapped so that a unit error has the same
 * cost in every direction (by the metric) and the first coefficients have the largest variance.
 */

import type { Shape, Side } from '../codec.ts';
import type { Samples } from '../learned.ts';
import { cholesky, eigenvectors, inverse, multiply } from '../parts/linear-algebra.ts';
import { applyRope } from '../parts/rope.ts';

/** Block size for the fast pairs of keys: neighbouring pairs, which rotate at nearly the same frequency. */
const FAST_BLOCK = 8;
/** Pairs that rotate by less than 2 radians per page (of 128) are slow: their correlations persist within a page. */
const SLOW_FREQUENCY = 2 / 128;
/** Added to the diagonal of the normalized metric, so that it is positive definite. */
const METRIC_REGULARIZATION = 1e-3;

/**
 * Sizes of the diagonal blocks of a map. Values have a single block. Keys have blocks of 8 dims for the fast pairs, then
 * one block for all slow pairs.
 */
export function transformBlocks(side: Side, { headDim, ropeFrequencies }: Shape): number[] {
  const fast =
    side === 'key' && ropeFrequencies ? ropeFrequencies.findLastIndex(angle => angle >= SLOW_FREQUENCY) + 1 : 0;
  const blocks: number[] = Array(Math.ceil((2 * fast) / FAST_BLOCK)).fill(FAST_BLOCK);
  const slow = headDim - FAST_BLOCK * blocks.length;
  return slow > 0 ? [...blocks, slow] : blocks;
}

/** Length of one head's maps. */
export const mapLength = (blocks: readonly number[]): number => blocks.reduce((sum, size) => sum + size * size, 0);

/** Calls `visit` for each block with its first dim, its size, and the offset of its map. */
function forBlocks(blocks: readonly number[], visit: (first: number, size: number, at: number) => void): void {
  let [first, at] = [0, 0];
  for (const size of blocks) {
    visit(first, size, at);
    first += size;
    at += size * size;
  }
}

export function identityMaps(kvHeads: number, blocks: readonly number[]): Float32Array {
  const length = mapLength(blocks);
  const maps = new Float32Array(kvHeads * length);
  for (let head = 0; head < kvHeads; head++)
    forBlocks(blocks, (_, size, at) => {
      for (let i = 0; i < size; i++) maps[head * length + at + i * (size + 1)] = 1;
    });
  return maps;
}

/** Samples of one head, [sample][dim]; keys are page-relative. */
export function toPageRelative({ vectors, count, positions }: Samples, head: number, shape: Shape, side: Side) {
  const { headDim, pageTokens, ropeFrequencies } = shape;
  const x = Float64Array.from(vectors.subarray(head * count * headDim, (head + 1) * count * headDim));
  if (side === 'key' && ropeFrequencies) {
    for (let i = 0; i < count; i++) {
      const start = Math.floor(positions[i] / pageTokens) * pageTokens;
      applyRope(x.subarray(i * headDim, (i + 1) * headDim), ropeFrequencies, -start);
    }
  }
  return x;
}

/** One head's mean, which it subtracts from x, and its maps [block][row][col]: y = x A, block by block. */
export function fitTransform(
  x: Float64Array,
  { count, metric, attentionWeights }: Samples,
  head: number,
  d: number,
  blocks: readonly number[],
) {
  const mean = new Float64Array(d);
  for (let i = 0; i < x.length; i++) mean[i % d] += x[i] / count;
  for (let i = 0; i < x.length; i++) x[i] -= mean[i % d];
  const headMetric = metric.subarray(head * d * d, (head + 1) * d * d);
  let diagonal = 0;
  for (let i = 0; i < d; i++) diagonal += headMetric[i * d + i] / d;
  const weights = attentionWeights.subarray(head * count, (head + 1) * count);
  const maps = new Float64Array(mapLength(blocks));
  forBlocks(blocks, (first, block, at) => {
    const m = new Float64Array(block * block);
    for (let i = 0; i < block; i++) {
      for (let j = 0; j < block; j++) {
        const value = diagonal > 0 ? headMetric[(first + i) * d + first + j] / diagonal : 0;
        m[i * block + j] = value + (i === j ? METRIC_REGULARIZATION : 0);
      }
    }
    const l = cholesky(m, block);
    const covariance = covarianceOf(x, weights, d, first, block);
    // The covariance of Y = X L is L^T C L.
    const lt = Float64Array.from(l, (_, at) => l[(at % block) * block + Math.floor(at / block)]);
    const u = eigenvectors(multiply(multiply(lt, covariance, block), l, block), block);
    maps.set(multiply(l, u, block), at);
  });
  return { mean, maps };
}

/** The weighted covariance of dims first to first + block - 1. */
function covarianceOf(x: Float64Array, weights: Float32Array, d: number, first: number, block: number): Float64Array {
  const out = new Float64Array(block * block);
  for (let s = 0; s < weights.length; s++) {
    const offset = s * d + first;
    for (let i = 0; i < block; i++) {
      const weighted = (weights[s] * x[offset + i]) / weights.length;
      for (let j = 0; j <= i; j++) out[i * block + j] += weighted * x[offset + j];
    }
  }
  for (let i = 0; i < block; i++) for (let j = 0; j < i; j++) out[j * block + i] = out[i * block + j];
  return out;
}

/** y = x A for one vector, in place. */
export function applyMaps(x: Float64Array, maps: ArrayLike<number>, blocks: readonly number[]): void {
  forBlocks(blocks, (first, size, at) => {
    const y = new Float64Array(size);
    for (let i = 0; i < size; i++) {
      for (let j = 0; j < size; j++) y[j] += x[first + i] * maps[at + i * size + j];
    }
    x.set(y, first);
  });
}

/** Dense encode and decode matrices [kv head][coded dim][dim] from blocks; undefined if a block is singular. */
export function toDenseMaps(maps: Float32Array, kvHeads: number, d: number, blocks: readonly number[]) {
  const encode = new Float32Array(kvHeads * d * d);
  const decode = new Float32Array(kvHeads * d * d);
  let singular = false;
  for (let head = 0; head < kvHeads; head++) {
    forBlocks(blocks, (first, size, at) => {
      const map = maps.subarray(head * mapLength(blocks) + at, head * mapLength(blocks) + at + size * size);
      const back = inverse(map, size);
      if (!back) singular = true;
      for (let i = 0; back && i < size; i++) {
        for (let j = 0; j < size; j++) {
          encode[(head * d + first + j) * d + first + i] = map[i * size + j];
          decode[(head * d + first + i) * d + first + j] = back[i * size + j];
        }
      }
    });
  }
  return singular ? undefined : { encode, decode };
}
