/** k-means: Lloyd's algorithm until it converges, and the search for the nearest entry of a codebook. */
import { nearestEntry, POINT_BLOCK } from '../../kernel/wasm/kernels/nearest-entry.ts';
import { instantiate } from '../../kernel/wasm/module.ts';
import type { Random } from './random.ts';

/** Iteration stops if a round reduces the error by less than this fraction. */
const MIN_IMPROVEMENT = 2e-3;

/** A codebook of `entries` centroids for points [point][dims]. It starts from random points; empty cells keep their centroid. */
export function kmeans(
  points: Float32Array,
  dims: number,
  entries: number,
  random: Random,
  rounds = 30,
): Float32Array<ArrayBuffer> {
  const count = points.length / dims;
  const book = new Float32Array(entries * dims);
  // With fewer points than entries some entries are copies, whose cells stay empty.
  const start = sampleIndices(count, Math.min(count, entries), random);
  for (let e = 0; e < entries; e++) {
    const from = start[e % start.length] * dims;
    book.set(points.subarray(from, from + dims), e * dims);
  }
  // Most rounds use a subset of the points; all points then need few more rounds.
  const subset = Math.min(count, Math.max(32 * entries, Math.ceil(count / 8)));
  const assignCells = createNearestAssigner(points, dims, entries);
  let remaining = rounds;
  for (const used of subset < count ? [subset, count] : [count]) {
    let lastError = Number.POSITIVE_INFINITY;
    while (remaining > 0) {
      remaining--;
      const error = lloydStep(points, dims, book, assignCells(book, used));
      if (error >= lastError * (1 - MIN_IMPROVEMENT)) break;
      lastError = error;
    }
  }
  return book;
}

/** Moves every centroid to the mean of its cell. Returns the error before the move. */
function lloydStep(points: Float32Array, dims: number, book: Float32Array, cells: Uint16Array): number {
  const entries = book.length / dims;
  const sums = new Float64Array(entries * dims);
  const counts = new Uint32Array(entries);
  let error = 0;
  cells.forEach((cell, point) => {
    counts[cell]++;
    for (let i = 0; i < dims; i++) {
      const value = points[point * dims + i];
      sums[cell * dims + i] += value;
      error += (value - book[cell * dims + i]) ** 2;
    }
  });
  for (let e = 0; e < entries; e++) {
    if (counts[e] === 0) continue;
    for (let i = e * dims; i < (e + 1) * dims; i++) book[i] = sums[i] / counts[e];
  }
  return error;
}

/** A function that finds the nearest entries for the first `used` points, in WASM. Its result is valid until the next call. */
export function createNearestAssigner(points: Float32Array, dims: number, entries: number) {
  const blocks = Math.ceil(points.length / dims / POINT_BLOCK);
  const offsets = { points: 0, codes: 4 * dims * POINT_BLOCK * blocks, book: 0 };
  offsets.book = offsets.codes + 2 * POINT_BLOCK * blocks;
  const bytes = offsets.book + 4 * (dims + 1) * entries;
  const { memory, calls } = instantiate({ nearest: nearestEntry(dims) }, bytes);
  const blockedPoints = new Float32Array(memory.buffer, 0, dims * POINT_BLOCK * blocks);
  for (let point = 0, from = 0; from < points.length; point++) {
    const to = (point - (point % POINT_BLOCK)) * dims + (point % POINT_BLOCK);
    for (let i = 0; i < dims; i++, from++) blockedPoints[to + i * POINT_BLOCK] = points[from];
  }
  const bookWithNorms = new Float32Array(memory.buffer, offsets.book, (dims + 1) * entries);
  return (book: Float32Array, used: number): Uint16Array => {
    for (let e = 0; e < entries; e++) {
      let halfNorm = 0;
      for (let i = 0; i < dims; i++) {
        const c = book[e * dims + i];
        bookWithNorms[e * (dims + 1) + i] = c;
        halfNorm += (c * c) / 2;
      }
      bookWithNorms[e * (dims + 1) + dims] = halfNorm;
    }
    calls.nearest({ ...offsets, blocks: Math.ceil(used / POINT_BLOCK), entries });
    return new Uint16Array(memory.buffer, offsets.codes, used);
  };
}

/** The entry nearest to the vector at offset `at`; the first of equally near ones. */
export type NearestSearch = (x: Float32Array | Float64Array, at: number) => number;

/**
 * The nearest entry minimizes |entry|^2 / 2 - x . entry, which is half the work of a distance. Vectors are padded with zeros
 * to a multiple of 4 dims, for unrolling.
 */
export function createNearestSearch(book: Float32Array, dims: number): NearestSearch {
  const entries = book.length / dims;
  const width = 4 * Math.ceil(dims / 4);
  const centroids = new Float64Array(entries * width);
  const halfNorms = new Float64Array(entries);
  book.forEach((c, i) => {
    const e = Math.floor(i / dims);
    centroids[e * width + (i % dims)] = c;
    halfNorms[e] += (c * c) / 2;
  });
  const v = new Float64Array(width);
  return (x, at) => {
    for (let i = 0; i < dims; i++) v[i] = x[at + i];
    const [v0, v1, v2, v3] = v;
    let best = 0;
    let minScore = Number.POSITIVE_INFINITY;
    for (let e = 0, b = 0; e < entries; e++) {
      let score =
        halfNorms[e] - v0 * centroids[b] - v1 * centroids[b + 1] - v2 * centroids[b + 2] - v3 * centroids[b + 3];
      b += 4;
      for (let i = 4; i < width; i += 4, b += 4) {
        score -=
          v[i] * centroids[b] + v[i + 1] * centroids[b + 1] + v[i + 2] * centroids[b + 2] + v[i + 3] * centroids[b + 3];
      }
      if (score < minScore) {
        minScore = score;
        best = e;
      }
    }
    return best;
  };
}

/** `n` distinct random integers below `count`. */
export function sampleIndices(count: number, n: number, random: Random): Uint32Array {
  const all = Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = 0; i < n; i++) {
    const j = i + Math.floor(random.uniform() * (count - i));
    [all[i], all[j]] = [all[j], all[i]];
  }
  return all.subarray(0, n);
}
