/**
 * The transform of mead, head by head: samples are turned to their place in a page, centred, and mapped so that an
 * error of size 1 costs the same in every direction (by the metric) and the first coefficients carry the most.
 */
import type { Shape, Side } from '../codec.ts';
import { turnPairs } from '../domain.ts';
import type { Samples } from '../learned.ts';
import { cholesky, eigenvectors, inverse, multiply } from '../parts/linear-algebra.ts';

/** Dims of keys that are mixed where they turn fast: neighbours, which turn at nearly the same pace. */
const FAST_BLOCK = 8;
/** Pairs that turn by less than 2 radians within a usual page are slow: what they say together outlasts the turn. */
const SLOW = 2 / 128;
/** Added to the metric's mean diagonal, so that no direction is free. */
const FLOOR = 1e-3;

/**
 * Sizes of the blocks of dims that a map mixes, in order. Values are mixed whole; so are the slow pairs of keys, which
 * come last, and the fast ones before them in blocks of 8.
 */
export function blocksOf(side: Side, { headDim, turn }: Shape): number[] {
  const fast = side === 'key' && turn ? turn.findLastIndex(angle => angle >= SLOW) + 1 : 0;
  const blocks: number[] = Array(Math.ceil((2 * fast) / FAST_BLOCK)).fill(FAST_BLOCK);
  const slow = headDim - FAST_BLOCK * blocks.length;
  return slow > 0 ? [...blocks, slow] : blocks;
}

/** Numbers in a head's maps. */
export const mapLength = (blocks: readonly number[]): number => blocks.reduce((sum, size) => sum + size * size, 0);

/** Calls `visit` for each block with its first dim, its size, and where its map begins. */
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
  blocks: readonly number[],
) {
  const mean = new Float64Array(d);
  for (let i = 0; i < x.length; i++) mean[i % d] += x[i] / count;
  for (let i = 0; i < x.length; i++) x[i] -= mean[i % d];
  const own = metric.subarray(head * d * d, (head + 1) * d * d);
  let diagonal = 0;
  for (let i = 0; i < d; i++) diagonal += own[i * d + i] / d;
  const weights = attention.subarray(head * count, (head + 1) * count);
  const maps = new Float64Array(mapLength(blocks));
  forBlocks(blocks, (first, block, at) => {
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
    maps.set(multiply(l, u, block), at);
  });
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
export function applyMaps(x: Float64Array, maps: ArrayLike<number>, blocks: readonly number[]): void {
  forBlocks(blocks, (first, size, at) => {
    const y = new Float64Array(size);
    for (let i = 0; i < size; i++) {
      for (let j = 0; j < size; j++) y[j] += x[first + i] * maps[at + i * size + j];
    }
    x.set(y, first);
  });
}

/** Dense [kv head][coded dim][dim] maps there and back from blocks; undefined where a block is singular. */
export function denseMaps(maps: Float32Array, kvHeads: number, d: number, blocks: readonly number[]) {
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
