/**
 * The transform of mead, head by head: samples are turned to their place in a page, centred, and mapped so that an
 * error of size 1 costs the same in every direction (by the metric) and the first coefficients carry the most.
 */
import type { Shape, Side } from '../codec.ts';
import { turnPairs } from '../domain.ts';
import type { Samples } from '../learned.ts';
import { cholesky, eigenvectors, inverse, multiply } from '../parts/linear-algebra.ts';

/** Dims that a map of keys mixes: neighbours, which turn at nearly the same pace within a page. */
export const KEY_BLOCK = 8;
/** Added to the metric's mean diagonal, so that no direction is free. */
const FLOOR = 1e-3;

/** Dims that a map mixes, a side. */
export const blockOf = (side: Side, headDim: number): number => (side === 'key' ? KEY_BLOCK : headDim);

/** Samples of one head, [sample][dim]; keys are turned to their page's start. */
export function pageRelative({ vectors, count, positions }: Samples, head: number, shape: Shape, side: Side) {
  const { headDim, pageTokens, turn } = shape;
  const x = Float64Array.from(vectors.subarray(head * count * headDim, (head + 1) * count * headDim));
  if (side === 'key' && turn) {
    for (let i = 0; i < count; i++) {
      const start = Math.floor(positions[i] / pageTokens) * pageTokens;
      turnPairs(x.subarray(i * headDim, (i + 1) * headDim), turn, -start);
    }
  }
  return x;
}

/** One head's mean, which is subtracted from x, and its maps, [block][row][col]: y = x A, block by block. */
export function fitHead(
  x: Float64Array,
  { count, metric, attention }: Samples,
  head: number,
  d: number,
  block: number,
) {
  const mean = new Float64Array(d);
  for (let i = 0; i < x.length; i++) mean[i % d] += x[i] / count;
  for (let i = 0; i < x.length; i++) x[i] -= mean[i % d];
  const own = metric.subarray(head * d * d, (head + 1) * d * d);
  let diagonal = 0;
  for (let i = 0; i < d; i++) diagonal += own[i * d + i] / d;
  const weights = attention.subarray(head * count, (head + 1) * count);
  const maps = new Float64Array(d * block);
  for (let first = 0; first < d; first += block) {
    const m = new Float64Array(block * block);
    for (let i = 0; i < block; i++) {
      for (let j = 0; j < block; j++) {
        const value = diagonal > 0 ? own[(first + i) * d + first + j] / diagonal : 0;
        m[i * block + j] = value + (i === j ? FLOOR : 0);
      }
    }
    const l = cholesky(m, block);
    const covariance = covarianceOf(x, weights, d, first, block);
    // Of Y = X L: L^T C L.
    const lt = Float64Array.from(l, (_, at) => l[(at % block) * block + Math.floor(at / block)]);
    const u = eigenvectors(multiply(multiply(lt, covariance, block), l, block), block);
    maps.set(multiply(l, u, block), first * block);
  }
  return { mean, maps };
}

/** Weighted, of dims first to first + block. */
function covarianceOf(x: Float64Array, weights: Float32Array, d: number, first: number, block: number): Float64Array {
  const out = new Float64Array(block * block);
  for (let s = 0; s < weights.length; s++) {
    const at = s * d + first;
    for (let i = 0; i < block; i++) {
      const weighted = (weights[s] * x[at + i]) / weights.length;
      for (let j = 0; j <= i; j++) out[i * block + j] += weighted * x[at + j];
    }
  }
  for (let i = 0; i < block; i++) for (let j = 0; j < i; j++) out[j * block + i] = out[i * block + j];
  return out;
}

/** y = x A of one vector, in place. */
export function applyMaps(x: Float64Array, maps: ArrayLike<number>, block: number): void {
  const y = new Float64Array(block);
  for (let first = 0; first < x.length; first += block) {
    y.fill(0);
    for (let i = 0; i < block; i++) {
      for (let j = 0; j < block; j++) y[j] += x[first + i] * maps[(first + i) * block + j];
    }
    x.set(y, first);
  }
}

/** Dense [kv head][coded dim][dim] maps there and back from blocks; undefined where a block is singular. */
export function denseMaps(maps: Float32Array, kvHeads: number, d: number, block: number) {
  const encode = new Float32Array(kvHeads * d * d);
  const decode = new Float32Array(kvHeads * d * d);
  for (let at = 0; at < maps.length; at += block * block) {
    const head = Math.floor(at / (d * block));
    const first = (at / block) % d;
    const back = inverse(maps.subarray(at, at + block * block), block);
    if (!back) return undefined;
    for (let i = 0; i < block; i++) {
      for (let j = 0; j < block; j++) {
        encode[(head * d + first + j) * d + first + i] = maps[at + i * block + j];
        decode[(head * d + first + i) * d + first + j] = back[i * block + j];
      }
    }
  }
  return { encode, decode };
}
